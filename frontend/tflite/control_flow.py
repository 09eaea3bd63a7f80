"""Converters of IF and WHILE, whose subgraphs become graphs of the node."""

from __future__ import annotations

import tflite

from smelt.errors import ModelError
from smelt.frontend.tflite.operation import ANY_TYPE, Converter, TfliteOperation
from smelt.ops.control.branches import If, While


def _if(operation: TfliteOperation) -> None:
    options = operation.options(tflite.IfOptions)
    chosen = [options.integer(f"{name}SubgraphIndex") for name in ("Then", "Else")]
    then, otherwise = map(operation.subgraph, chosen)
    operation.emit(If(then, otherwise), *operation.inputs(), moves_data=True)


def _while(operation: TfliteOperation) -> None:
    options = operation.options(tflite.WhileOptions)
    called = [options.integer(f"{name}SubgraphIndex") for name in ("Cond", "Body")]
    condition, body = map(operation.subgraph, called)
    if not operation.output_count:
        raise ModelError(f"{operation} carries no tensors: the file is corrupted")
    operation.emit(While(condition, body), *operation.inputs(), moves_data=True)


CONVERTERS = {"IF": Converter(_if, ANY_TYPE), "WHILE": Converter(_while, ANY_TYPE)}

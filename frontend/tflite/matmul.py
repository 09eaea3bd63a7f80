"""Converter of BATCH_MATMUL."""

from __future__ import annotations

import tflite

from smelt.frontend.tflite.operation import Converter, TfliteOperation
from smelt.ir import Value
from smelt.ops.core.matmul import MatMul, swapped


def _batch_matmul(operation: TfliteOperation) -> None:
    options = operation.options(tflite.BatchMatMulOptions, optional=True)
    a, b = operation.input(0), operation.input(1)
    if b.is_constant:
        b = operation.weights(0)
    op = MatMul(_permutation(a, options.flag("AdjX")), _permutation(b, options.flag("AdjY")))
    operation.emit(op, a, b)


def _permutation(operand: Value, adjoint: bool) -> tuple[int, ...]:
    rank = len(operand.type.shape)
    return swapped(rank) if adjoint and rank > 1 else ()


CONVERTERS = {"BATCH_MATMUL": Converter(_batch_matmul)}

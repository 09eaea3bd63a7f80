"""If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.frontend.onnx.operation import Converter, Operation, Results
from smelt.ir import Graph, Value
from smelt.ops.control import If


def _if(operation: Operation) -> Results:
    """A condition known at compile time leaves one of the graphs, in place."""
    condition = operation.value(0)
    if condition.type.size != 1:
        raise operation.wrong(f"its condition '{condition.name}' is {condition.type}, not one bool")
    if condition.data is not None:
        return operation.inline("then_branch" if condition.data.item() else "else_branch")
    then_graph, then_captures = operation.subgraph("then_branch")
    else_graph, else_captures = operation.subgraph("else_branch")
    captures = tuple(dict.fromkeys((*then_captures, *else_captures)))
    graphs = (
        _taking(captures, then_graph, then_captures),
        _taking(captures, else_graph, else_captures),
    )
    return operation.emit_all(If(*graphs), condition, *captures)


def _taking(wanted: Sequence[Value], graph: Graph, own: Sequence[Value]) -> Graph:
    """The graph, whose inputs stand for the values `own`, with an input for each of `wanted`."""
    inputs = dict(zip(own, graph.inputs, strict=True))
    unused = ((v, Value(f"{graph.name}:{v.name}", v.type)) for v in wanted if v not in inputs)
    inputs |= dict(unused)
    return replace(graph, inputs=tuple(inputs[v] for v in wanted))


CONVERTERS: dict[str, Converter] = {"If": _if}
"""Operator's name to its converter."""

"""If, Loop and Scan."""

from __future__ import annotations

from smelt.frontend.onnx.operation import Converter, Operation, Results
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
        operation.widened(then_graph, then_captures, captures),
        operation.widened(else_graph, else_captures, captures),
    )
    return operation.emit_all(If(*graphs), condition, *captures)


CONVERTERS: dict[str, Converter] = {"If": _if}
"""Operator's name to its converter."""

"""Float rewrite: replaces division of vectors by their norm with `L2Normalization`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from smelt.ir import Graph, Node, Value
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.l2_normalization import L2Normalization
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.tile import Tile

_SMALL = 1e-5
"""Largest lower bound of a norm, or number added to it, that does not affect typical vectors."""


def use_norms(graph: Graph) -> Graph:
    """Replace quotients of rows and their norms, in the forms of PyTorch's `normalize` and ONNX."""
    producer = graph.producer

    def rule(node: Node) -> tuple[Sequence[Node], Sequence[Value]] | None:
        least = _least_norm(node, producer)
        if least is None:
            return None
        made = replace(node, op=L2Normalization(least), inputs=(node.input(0),))
        return [made], made.outputs

    made = graph.rewrite(rule)
    return graph if made.nodes == graph.nodes else _needed(made)


def _least_norm(node: Node, producer: Mapping[Value, Node]) -> float | None:
    """Return the lower bound of the norm that a node divides rows by, or None for other nodes."""
    if not isinstance(node.op, Binary) or (node.op.kind, node.op.activation) != _DIVISION:
        return None
    x, least = node.input(0), 0.0
    norm = producer.get(node.input(1))
    if norm is not None and isinstance(norm.op, Tile):
        norm = producer.get(norm.input(0))
    bounded = None if norm is None else _bounded(norm)
    if bounded is not None:
        norm, least = producer.get(bounded[0]), bounded[1]
    if norm is None or not isinstance(norm.op, Reduce) or norm.input(0) is not x:
        return None
    last = (len(x.type.shape) - 1,)
    of_rows = (norm.op.kind, norm.op.axes, norm.op.keep_dims) == ("l2", last, True)
    return least if of_rows and 0.0 <= least <= _SMALL else None


_DIVISION = "div", Activation.NONE


def _bounded(node: Node) -> tuple[Value, float] | None:
    """Return the operand and the constant of a node that keeps a norm from zero, or None."""
    op = node.op
    if isinstance(op, Unary) and op.kind == "clamp" and op.beta == float("inf"):
        return node.input(0), op.alpha
    if not isinstance(op, Binary) or op.kind not in ("maximum", "add"):
        return None
    if op.activation is not Activation.NONE:
        return None
    for x, constant in (node.inputs, node.inputs[::-1]):
        if x is not None and constant is not None and constant.data is not None:
            return (x, float(constant.array.ravel()[0])) if constant.type.size == 1 else None
    return None


def _needed(graph: Graph) -> Graph:
    """Remove nodes whose results are no longer read."""
    nodes, read = list[Node](), set(graph.results)
    for node in reversed(graph.nodes):
        if not read.isdisjoint(node.outputs):
            nodes.append(node)
            read.update(v for v in node.inputs if v is not None)
    return replace(graph, nodes=tuple(reversed(nodes)))

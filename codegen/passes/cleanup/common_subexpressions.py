"""Elimination of common subexpressions and of arithmetic without effect."""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.rewriting import Matcher, is_float, replace_nodes
from smelt.ir import Graph, Node, Op, Rewrite, Rounding, TensorType, Value
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.cast import Cast
from smelt.ops.core.unary import Unary

_Same = tuple[Op, tuple[Value | None, ...], tuple[TensorType, ...], Rounding | None]


def share_common_nodes(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Merge nodes that apply the same operator to the same operands.

    A node whose output is a result of the graph is kept.
    """
    results = set(graph.results)
    first: dict[_Same, Node] = {}

    def share(node: Node) -> Rewrite:
        types = tuple(value.type for value in node.outputs)
        other = first.setdefault((node.op, node.inputs, types, node.rounding), node)
        if other is node or not results.isdisjoint(node.outputs):
            return None
        return (), other.outputs

    return graph.rewrite(share)


def simplify_arithmetic(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Drop casts to the same type, and float products with 1 and sums with 0.

    Float powers with exponent 2 become squares.
    """
    return replace_nodes(graph, _simpler)


def _simpler(node: Node, matcher: Matcher) -> Node | Value | None:
    op = node.op
    if isinstance(op, Cast) and not matcher.is_result(node.output):
        return node.input(0) if node.input(0).type == node.output.type else None
    if not isinstance(op, Binary) or op.activation is not Activation.NONE:
        return None
    x, k = node.input(0), node.input(1)
    if not is_float(node.output) or not is_float(x):
        return None
    if op.kind == "pow":
        second = is_float(k) and k.data is not None and k.data.size and (k.data == 2).all()
        square = bool(second) and x.type == node.output.type
        return replace(node, op=Unary("square"), inputs=(x,)) if square else None
    return None if matcher.is_result(node.output) else _neutral(op.kind, node)


def _neutral(kind: str, node: Node) -> Value | None:
    """Return the operand that the operator leaves unchanged because the other one is neutral."""
    if kind not in _NEUTRAL:
        return None
    commutes = kind in ("add", "mul")
    for x, k in zip(node.inputs, reversed(node.inputs), strict=True):
        if x is None or k is None or x.type != node.output.type or k.data is None:
            continue
        if (k.data == _NEUTRAL[kind]).all() and (commutes or x is node.input(0)):
            return x
    return None


_NEUTRAL = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}

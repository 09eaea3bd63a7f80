"""Recognition of normalizations that exporters write as several operators."""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.fusion.expressions import argument_of, number, product_of
from smelt.codegen.passes.rewriting import Matcher, is_float, replace_nodes
from smelt.ir import Graph, Node, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.normalization import Normalization
from smelt.ops.core.reduce import Reduce


def recognize_normalizations(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Replace operators that subtract a mean and divide by a deviation by one `Normalization`.

    If nothing else reads its result, a constant scale and shift after it become its operands.
    """
    return replace_nodes(graph, _recognized)


def _recognized(node: Node, matcher: Matcher) -> Node | None:
    if not isinstance(node.op, Binary) or not is_float(node.output):
        return None
    return _normalization(node, matcher) or _with_operand(node, matcher)


def _normalization(node: Node, matcher: Matcher) -> Node | None:
    """Match `d / sqrt(mean(d²) + epsilon)`, where d is x or x minus its mean."""
    for centered, root in _quotients(node, matcher):
        reduced = argument_of("sqrt", root, matcher)
        found = None if reduced is None else _mean_square(reduced, centered, matcher)
        if found is None or centered.type != node.output.type:
            continue
        axes, epsilon = found
        x = _without_mean(centered, axes, matcher)
        op = Normalization(axes, epsilon, centered=x is not None)
        return replace(node, op=op, inputs=(x or centered,))
    return None


def _quotients(node: Node, matcher: Matcher) -> list[tuple[Value, Value]]:
    """Return possible (dividend, divisor) pairs of a division or a product with a reciprocal."""
    if node.op == Binary("div"):
        return [(node.input(0), node.input(1))]
    if node.op != Binary("mul"):
        return []
    found: list[tuple[Value, Value]] = []
    for x, inverse in ((node.input(0), node.input(1)), (node.input(1), node.input(0))):
        root = argument_of("reciprocal", inverse, matcher)
        producer = matcher.producer(inverse)
        if producer is not None and producer.op == Binary("div"):
            root = producer.input(1) if number(producer.input(0)) == 1 else None
        if root is not None:
            found.append((x, root))
    return found


def _mean_square(
    value: Value, centered: Value, matcher: Matcher
) -> tuple[tuple[int, ...], float] | None:
    """Return the axes and epsilon of `mean(centered²) + epsilon`, or None."""
    node = matcher.producer(value)
    if node is None or node.op != Binary("add"):
        return None
    variance, epsilon = node.input(0), number(node.input(1))
    if epsilon is None:
        variance, epsilon = node.input(1), number(node.input(0))
    axes, squares = _mean(variance, matcher)
    if epsilon is None or squares is None:
        return None
    return (axes, epsilon) if product_of(squares, matcher).over(centered, 2) == 1 else None


def _mean(value: Value, matcher: Matcher) -> tuple[tuple[int, ...], Value | None]:
    """Return the axes and the operand of a mean that keeps its dimensions."""
    node = matcher.producer(value)
    if node is None or not isinstance(node.op, Reduce):
        return (), None
    axes = tuple(sorted(node.op.axes))
    known = node.op.kind == "mean" and node.op.keep_dims and axes
    return axes, node.input(0) if known else None


def _without_mean(value: Value, axes: tuple[int, ...], matcher: Matcher) -> Value | None:
    """Return x if the value is `x - mean(x)` over these axes, else None."""
    node = matcher.producer(value)
    if node is None or node.op != Binary("sub"):
        return None
    return node.input(0) if _mean(node.input(1), matcher) == (axes, node.input(0)) else None


def _with_operand(node: Node, matcher: Matcher) -> Node | None:
    """Merge a product or sum with a constant into the normalization before it."""
    if node.op not in (Binary("mul"), Binary("add")):
        return None
    for x, constant in ((node.input(0), node.input(1)), (node.input(1), node.input(0))):
        before = matcher.single_use_producer(x)
        if before is None or not isinstance(before.op, Normalization) or before.op.statistics:
            continue
        if not constant.is_constant or x.type != node.output.type:
            continue
        data, scale, bias = before.input(0), before.optional(1), before.optional(2)
        if node.op == Binary("mul") and scale is None and bias is None:
            return replace(before, inputs=(data, constant), outputs=node.outputs)
        if node.op == Binary("add") and bias is None:
            return replace(before, inputs=(data, scale, constant), outputs=node.outputs)
    return None

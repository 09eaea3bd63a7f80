"""Folding of per-channel scales and shifts into adjacent weights and biases.

Batch normalization arrives as a product and a sum with constants. Only floats are folded: a folded
product rounds once where the original graph rounded twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.passes.cleanup.dead_nodes import drop_dead_nodes
from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.rewriting import Matcher, is_float, replace_nodes
from smelt.codegen.passes.subgraphs import Names
from smelt.ir import Activation, Array, Graph, Node, Value
from smelt.ir.weights import WeightsRule
from smelt.ops.core.binary import Binary
from smelt.ops.tensor.transpose import Transpose

LARGE = 2.0**16
"""Constants of at least this size are added to force rounding, so such sums are not merged."""


def fold_scales(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Fold per-channel products and sums with constants into the linear operator before or after.

    Where there is no linear operator, two consecutive products or sums become one. The intermediate
    values must have no other user. A transposition in between is moved behind the product or sum.
    """
    graph = _before_transpositions(graph)
    return replace_nodes(replace_nodes(graph, _into_producer), _into_consumer)


def _before_transpositions(graph: Graph) -> Graph:
    """Move products and sums with constants before transpositions of linear operators' results.

    The transpositions then move the same number of bytes as before.
    """
    matcher, names = Matcher(graph), Names(graph)
    linear: set[Value] = set()

    def apply(node: Node) -> tuple[list[Node], list[Value]] | None:
        moved = _untransposed(node, matcher, names, linear)
        for made in moved or [node]:
            matcher.note(made)
        if _linear(node) is not None and matcher.single_use_producer(node.output) is not None:
            linear.add(node.output)
        return None if moved is None else (moved, list(node.outputs))

    return drop_dead_nodes(graph.rewrite(apply))


def _untransposed(
    node: Node, matcher: Matcher, names: Names, linear: set[Value]
) -> list[Node] | None:
    """Return the scale or shift applied before the transposition, then the transposition."""
    if not isinstance(node.op, Binary) or not is_float(node.output):
        return None
    index = 1 if node.input(0).is_constant else 0
    x, constant = node.input(index), node.input(1 - index)
    before = matcher.single_use_producer(x)
    if before is None or not isinstance(before.op, Transpose) or not constant.is_constant:
        return None
    source = before.input(0)
    rank = len(x.type.shape)
    if source not in linear or x.type != node.output.type or constant.array.ndim > rank:
        return None
    k = constant.array.reshape((1,) * (rank - constant.array.ndim) + constant.array.shape)
    k = k.transpose(np.argsort(before.op.permutation))
    if k.size not in (1, k.shape[-1]):
        return None
    result = Value(names.fresh(f"{node.name}:untransposed"), source.type)
    operands = [source, Value.constant(names.fresh(f"{constant.name}:untransposed"), k)]
    linear.add(result)
    return [
        replace(node, inputs=tuple(operands if index == 0 else operands[::-1]), outputs=(result,)),
        replace(before, inputs=(result,), outputs=node.outputs),
    ]


@dataclass(frozen=True)
class _Affine:
    """`scale * x + shift` along the last axis, in float64; both are scalars or vectors."""

    scale: Array
    shift: Array


def _affine(node: Node) -> tuple[Value, _Affine] | None:
    """Return the operand that a node scales or shifts along its last axis, and the constants."""
    op = node.op
    if not isinstance(op, Binary) or not is_float(node.output):
        return None
    x, constant = node.input(0), node.input(1)
    if x.is_constant:
        x, constant = constant, x
    if x.is_constant or not constant.is_constant or x.type != node.output.type:
        return None
    k = constant.array.astype(np.float64)
    if k.size not in (1, *k.shape[-1:]) or not np.isfinite(k).all():
        return None
    k = k.ravel()
    one, zero = np.ones(1), np.zeros(1)
    reversed_ = x is node.input(1)
    match op.kind:
        case "add":
            return x, _Affine(one, k)
        case "sub":
            return x, _Affine(-one, k) if reversed_ else _Affine(one, -k)
        case "mul":
            return x, _Affine(k, zero)
        case "div" if not reversed_ and k.all():
            return x, _Affine(1 / k, zero)
        case _:
            return None


def _into_producer(node: Node, matcher: Matcher) -> Node | None:
    found = _affine(node)
    before = None if found is None else matcher.single_use_producer(found[0])
    if found is None or before is None or not isinstance(op := node.op, Binary):
        return None
    affine = found[1]
    if isinstance(before.op, Binary):
        return _merged(before, node, op, affine, matcher)
    rule = _linear(before)
    if rule is None or before.op.fused_activation is not Activation.NONE:
        return None
    channels, weights = before.output.type.shape[-1], before.input(1).type
    shape = [1] * len(weights.shape)
    shape[rule.output_axis(weights)] = channels
    scale = np.broadcast_to(affine.scale, channels).reshape(shape)
    bias = before.optional(2)
    old = np.zeros(channels) if bias is None else bias.array.ravel().astype(np.float64)
    operands = _constants(matcher, before, scale, old * affine.scale + affine.shift)
    if operands is None:
        return None
    changed = before.op.with_activation(op.activation)
    inputs = (before.input(0), *operands)
    return replace(before, op=changed, inputs=inputs, outputs=node.outputs)


def _into_consumer(node: Node, matcher: Matcher) -> Node | None:
    rule = _linear(node)
    before = None if rule is None else matcher.single_use_producer(node.input(0))
    found = None if before is None else _affine(before)
    if rule is None or before is None or found is None:
        return None
    x, affine = found
    if before.op.fused_activation is not Activation.NONE:
        return None
    if (affine.shift.any() and not rule.uses_all_weights(node)) or not rule.keeps_channels(node):
        return None
    weights, met = node.input(1), rule.input_channels(node)
    scale, shift = (np.broadcast_to(k, x.type.shape[-1])[met] for k in (affine.scale, affine.shift))
    axes = tuple(set(range(weights.array.ndim)) - {rule.output_axis(weights.type)})
    added = (weights.array.astype(np.float64) * shift).sum(axis=axes)
    bias = node.optional(2)
    old = np.zeros(1) if bias is None else bias.array.ravel().astype(np.float64)
    operands = _constants(matcher, node, scale, old + added)
    return None if operands is None else replace(node, inputs=(x, *operands))


def _linear(node: Node) -> WeightsRule | None:
    """Return the weights rule of a float node with finite constant weights and bias, else None."""
    rule = node.op.weights_rule
    if rule is None or not is_float(node.output):
        return None
    constants = [node.input(1), node.optional(2)]
    finite = all(
        v is None or (is_float(v) and v.data is not None and np.isfinite(v.data).all())
        for v in constants
    )
    return rule if finite else None


def _constants(
    matcher: Matcher, linear: Node, scale: Array, bias: Array
) -> tuple[Value, Value | None] | None:
    """Return the scaled weights and the bias, or None if they overflow float32."""
    weights = linear.input(1)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (weights.array.astype(np.float64) * scale).astype(np.float32)
        rounded = bias.astype(np.float32)
    if not np.isfinite(scaled).all() or not np.isfinite(rounded).all():
        return None
    if not (scale == 1).all():
        weights = matcher.constant(f"{weights.name}:scaled", scaled)
    if linear.optional(2) is None and not rounded.any():
        return weights, None
    name = linear.name if linear.optional(2) is None else linear.input(2).name
    return weights, matcher.constant(f"{name}:bias", rounded)


def _merged(before: Node, node: Node, op: Binary, second: _Affine, matcher: Matcher) -> Node | None:
    """Merge two consecutive products or two consecutive sums."""
    found = _affine(before)
    if found is None or before.op.fused_activation is not Activation.NONE:
        return None
    x, first = found
    scale, shift = first.scale * second.scale, first.shift + second.shift
    if not (first.shift.any() or second.shift.any()):
        kind, k = "mul", scale
        exact = (k.astype(np.float32) != 0) | (k == 0)
    elif (first.scale == 1).all() and (second.scale == 1).all():
        kind, k = "add", shift
        exact = (np.abs(first.shift) < LARGE) & (np.abs(second.shift) < LARGE)
    else:
        return None
    with np.errstate(over="ignore"):
        rounded = k.astype(np.float32)
    if not exact.all() or not np.isfinite(rounded).all():
        return None
    if rounded.size == 1:
        rounded = rounded.reshape(())
    constant = matcher.constant(f"{node.name}:{kind}", rounded)
    return replace(node, op=Binary(kind, op.activation), inputs=(x, constant))

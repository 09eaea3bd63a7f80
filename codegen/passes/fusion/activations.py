"""Clamps fused into the operators whose results they clamp."""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.quantized.quantized_values import Limits
from smelt.codegen.passes.rewriting import Matcher, replace_nodes
from smelt.ir import Activation, DType, Graph, Node, Rounding, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.unary import Unary


def fuse_activations(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Merge clamps into the operator before them, where nobody reads what is not clamped.

    Of quantized tensors only clamps that keep the quantization, which change no stored integer
    that they do not clamp.
    """
    return replace_nodes(graph, _fused)


def _fused(node: Node, matcher: Matcher) -> Node | None:
    found = _clamp(node)
    if found is None:
        return None
    x, limits = found
    before = matcher.sole(x)
    if before is None or x.type != node.output.type or x.type.dtype not in _DTYPES:
        return None
    if node.rounding is Rounding.ONNX and limits not in _EXACT:
        return None
    fused = before.op.fused_activation
    old = _clamp_of(before) if fused is None else fused
    activation = None if old is None else _ACTIVATIONS.get(_clamped(old.limits, limits))
    if activation is None:
        return None
    op = Unary(activation.value) if fused is None else before.op.with_activation(activation)
    return replace(before, op=op, outputs=node.outputs)


_EXACT = (Activation.RELU.limits,)
"""Limits that need no rounding to be stored: 0 is the zero point."""
_DTYPES = (DType.FLOAT32, DType.INT8, DType.INT16)
_ACTIVATIONS = {activation.limits: activation for activation in Activation}


def _clamp_of(node: Node) -> Activation | None:
    """What a node clamps to that does nothing else, and keeps the quantization."""
    match node.op:
        case Unary(kind) if kind in _KINDS and node.input(0).type == node.output.type:
            return _KINDS[kind]
        case _:
            return None


_KINDS = {activation.value: activation for activation in Activation}


def _clamp(node: Node) -> tuple[Value, Limits] | None:
    """The operand that a node clamps, and to what."""
    match node.op:
        case Unary(kind) if kind in _KINDS:
            return node.input(0), _KINDS[kind].limits
        case Unary("clamp", low, high):
            return node.input(0), (low, high)
        case Binary("maximum" | "minimum" as kind, Activation.NONE):
            x, bound = node.input(0), node.input(1)
            if x.is_constant:
                x, bound = bound, x
            if x.type.dtype is not DType.FLOAT32 or not bound.is_constant or bound.type.size != 1:
                return None
            limit = float(bound.array.item())
            return x, (limit, float("inf")) if kind == "maximum" else (float("-inf"), limit)
        case _:
            return None


def _clamped(first: Limits, second: Limits) -> Limits:
    """What a clamp to the first limits and then to the second is a clamp to."""
    low, high = second
    return min(max(first[0], low), high), min(max(first[1], low), high)

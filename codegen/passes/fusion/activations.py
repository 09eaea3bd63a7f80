"""Fusion of clamps into the operators that produce their operands."""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.quantized.quantized_values import Limits
from smelt.codegen.passes.rewriting import Matcher, replace_nodes
from smelt.ir import Activation, DType, Graph, Node, Rounding, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.unary import Unary


def fuse_activations(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Merge a clamp into the operator before it if nothing else reads the unclamped value.

    For quantized tensors, only clamps that keep the quantization are merged: they leave every
    stored integer within the limits unchanged.
    """
    return replace_nodes(graph, _fused)


def _fused(node: Node, matcher: Matcher) -> Node | None:
    found = _clamp(node)
    if found is None:
        return None
    x, limits = found
    before = matcher.single_use_producer(x)
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
"""Limits that are stored without rounding: 0 is stored as the zero point."""
_DTYPES = (DType.FLOAT32, DType.INT8, DType.INT16)
_ACTIVATIONS = {activation.limits: activation for activation in Activation}


def _clamp_of(node: Node) -> Activation | None:
    """Return the activation of a node that only clamps and keeps the quantization, else None."""
    match node.op:
        case Unary(kind) if kind in _KINDS and node.input(0).type == node.output.type:
            return _KINDS[kind]
        case _:
            return None


_KINDS = {activation.value: activation for activation in Activation}


def _clamp(node: Node) -> tuple[Value, Limits] | None:
    """Return the operand and the limits of a clamp, or None."""
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
    """Return the limits of a clamp to `first` followed by a clamp to `second`."""
    low, high = second
    return min(max(first[0], low), high), min(max(first[1], low), high)

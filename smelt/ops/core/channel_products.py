"""Channel rules of convolutions and fully-connected layers.

The bounds of accumulators come from interval arithmetic. The product of a constant input channel
is added to the bias, if it is the same for every output pixel. Where windows reach into padding,
which counts as zero, this holds only for channels that are always zero themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from smelt.ir import Array, DType, Node, Quant, Rounding, Value
from smelt.ir.channels import Bounds, ChannelRule, Mask, Narrowed, Narrowing, OpT_contra, channels
from smelt.ir.weights import weights_rule
from smelt.ops.arithmetic.fixed_point import (
    INT32_MAX,
    Activation,
    Requantizer,
    along_axis,
    finish,
    wrap_int32,
)


class ProductChannels(ChannelRule[OpT_contra]):
    """Sums of products with constant weights, requantized.

    Subclasses have weights as `[outputs, taps, inputs]`, without their zero points.
    """

    @override
    def serves(self, node: Node[OpT_contra]) -> bool:
        bias = node.optional(2)
        types = (node.input(0).type, node.input(1).type, node.output.type)
        return (
            all(t.is_quantized for t in types)
            and node.input(1).is_constant
            and (bias is None or bias.is_constant)
        )

    def _accumulated(
        self, node: Node[OpT_contra], weights: Array, low: Array, high: Array, axes: tuple[int, ...]
    ) -> Bounds:
        """Return bounds of the requantized sums, for inputs from `low` to `high`."""
        least = np.where(weights > 0, weights * low, weights * high).sum(axis=axes)
        greatest = np.where(weights > 0, weights * high, weights * low).sum(axis=axes)
        bias = node.optional(2)
        added = 0 if bias is None else bias.array.ravel().astype(np.int64)
        y, rounding = node.output.type, node.rounding or Rounding.TFLM
        requantize = Requantizer(weights_rule(node.op).scales(node), rounding)
        ends = np.stack([least, greatest]) + added
        left = 0 if rounding is Rounding.ONNX else max(0, *requantize.shifts)
        if np.abs(ends).max(initial=0) > INT32_MAX >> left:
            return Bounds.of_type(y)  # Sums may wrap.
        stored = finish(ends, requantize, node.op.fused_activation or Activation.NONE, y)
        stored = stored.astype(np.int64)
        return Bounds(stored[0], stored[1])

    def _pads(self, node: Node[OpT_contra]) -> bool:
        """Return whether windows reach beyond the image, or between its pixels."""
        return not weights_rule(node.op).uses_all_weights(node)

    def _around_zero(self, node: Node[OpT_contra], given: Bounds | None) -> tuple[Array, Array]:
        """Return bounds of the inputs without zero point; if there is padding, they include 0."""
        assert given is not None
        zero = node.input(0).type.zero_point
        low, high = given.low - zero, given.high - zero
        return (np.minimum(low, 0), np.maximum(high, 0)) if self._pads(node) else (low, high)


def _centered(weights: Value) -> Array:
    """Return weights without their zero points, as int64."""
    quant = weights.type.quant
    zero = 0 if quant is None else along_axis(quant, len(weights.type.shape))[1]
    return weights.array.astype(np.int64) - zero


def _picked(value: Value, data: Array, quant_axis: int, to: Narrowing) -> Value:
    """Return a constant with other data; its scales along `quant_axis` are reduced likewise."""
    quant = value.type.quant
    if quant is not None and quant.axis == quant_axis and len(quant.scale) > 1:
        quant = Quant(
            tuple(s for s, keep in zip(quant.scale, to.result, strict=True) if keep),
            tuple(z for z, keep in zip(quant.zero_point, to.result, strict=True) if keep),
            quant.axis,
        )
    return to.build(value.name, data, quant)


def _bias(node: Node, added: Array, to: Narrowing) -> tuple[Value, ...]:
    """Return the bias with the products of constant channels added; empty if there is none.

    Accumulators of 64 bits may need a 64-bit bias.
    """
    bias = node.optional(2)
    if bias is None and not added.any():
        return ()
    total = added if bias is None else bias.array.ravel().astype(np.int64) + added
    long = node.rounding is Rounding.TFLM16 or (bias is not None and bias.type.dtype is DType.INT64)
    total = (total if long else wrap_int32(total).astype(np.int32))[to.result]
    if bias is None:
        return (to.build(f"{node.name}:bias", total, None),)
    return (_picked(bias, total, 0, to),)


class MixingChannels(ProductChannels[OpT_contra]):
    """Channel rule if each output sums over all inputs: one-group convolution, fully-connected."""

    chooses = True

    @override
    def serves(self, node: Node[OpT_contra]) -> bool:
        x, grouped = node.input(0).type, weights_rule(node.op).groups(node) > 1
        if getattr(node.op, "sums", False) or grouped or not super().serves(node):
            return False
        return channels(x) > 0 and self._depth(node) % channels(x) == 0

    @override
    def bounds(self, node: Node[OpT_contra], operands: Sequence[Bounds | None]) -> Bounds:
        return self._accumulated(
            node, self._taps(node), *self._around_zero(node, operands[0]), (1, 2)
        )

    @override
    def needs(
        self, node: Node[OpT_contra], wanted: Mask, operands: Sequence[Bounds | None]
    ) -> tuple[Mask, Sequence[Mask | None]]:
        read = (self._taps(node)[wanted] != 0).any(axis=(0, 1))
        needed = read & ~self._foldable(node, operands[0])
        return wanted, [needed, *(None for _ in node.inputs[1:])]

    @override
    def result_channels(self, node: Node[OpT_contra], kept: Sequence[Mask | None]) -> Mask | bool:
        return False

    @override
    def narrow(self, node: Node[OpT_contra], to: Narrowing) -> Narrowed:
        x, weights, given, mask = node.input(0), node.input(1), to.operands[0], to.kept[0]
        assert given is not None
        assert mask is not None
        constant = np.where(mask, 0, given.low - x.type.zero_point)
        added = (self._taps(node).sum(axis=1) * constant).sum(axis=1)
        return node.op, (x, self._kept_weights(weights, mask, to), *_bias(node, added, to))

    def _depth(self, node: Node[OpT_contra]) -> int:
        """Return the number of inputs that each output uses at a tap."""
        return node.input(1).type.shape[-1]

    def _taps(self, node: Node[OpT_contra]) -> Array:
        """Return the weights as `[outputs, taps, inputs]`."""
        weights = _centered(node.input(1))
        return weights.reshape(len(weights), -1, channels(node.input(0).type))

    def _foldable(self, node: Node[OpT_contra], given: Bounds | None) -> Mask:
        """Return the input channels that add the same number to every pixel of an output.

        These are constant; if there is padding, they must also be zero.
        """
        assert given is not None
        zero = node.input(0).type.zero_point
        return given.constant & ((given.low == zero) | (not self._pads(node)))

    def _kept_weights(self, weights: Value, mask: Mask, to: Narrowing) -> Value:
        """Return the weights of the inputs and outputs that are kept."""
        stored = weights.array.reshape(len(weights.array), -1, mask.size)[to.result][..., mask]
        shape = (int(to.result.sum()), *weights.array.shape[1:-1], -1)
        return _picked(weights, stored.reshape(shape), 0, to)


class TransposedChannels(MixingChannels[OpT_contra]):
    """Channel rule of transposed convolution: weights `[*k, i, o]`, used only partly per output."""

    def _depth(self, node: Node[OpT_contra]) -> int:
        return node.input(1).type.shape[-2]

    def _taps(self, node: Node[OpT_contra]) -> Array:
        weights = np.moveaxis(_centered(node.input(1)), -1, 0)
        return weights.reshape(len(weights), -1, channels(node.input(0).type))

    def _kept_weights(self, weights: Value, mask: Mask, to: Narrowing) -> Value:
        stored = weights.array[..., mask, :][..., to.result]
        return _picked(weights, stored, stored.ndim - 1, to)


class DepthwiseChannels(ProductChannels[OpT_contra]):
    """Channel rule of depthwise convolution: each input has `m` outputs of its own."""

    @override
    def bounds(self, node: Node[OpT_contra], operands: Sequence[Bounds | None]) -> Bounds:
        low, high = self._around_zero(node, operands[0])
        weights = _centered(node.input(1))
        weights = weights.reshape(-1, weights.shape[-1])
        times = weights.shape[-1] // low.size
        low, high = np.repeat(low, times), np.repeat(high, times)
        return self._accumulated(node, weights, low, high, (0,))

    @override
    def serves(self, node: Node[OpT_contra]) -> bool:
        return not getattr(node.op, "sums", False) and super().serves(node)

    @override
    def needs(
        self, node: Node[OpT_contra], wanted: Mask, operands: Sequence[Bounds | None]
    ) -> tuple[Mask, Sequence[Mask | None]]:
        needed: Mask = np.any(wanted.reshape(channels(node.input(0).type), -1), axis=1)
        result = np.repeat(needed, wanted.size // needed.size)
        return result, [needed, *(None for _ in node.inputs[1:])]

    @override
    def result_channels(self, node: Node[OpT_contra], kept: Sequence[Mask | None]) -> Mask | bool:
        (mask, *_) = kept
        assert mask is not None
        return np.repeat(mask, channels(node.output.type) // mask.size)

    @override
    def narrow(self, node: Node[OpT_contra], to: Narrowing) -> Narrowed:
        weights = node.input(1)
        picked = _picked(weights, weights.array[..., to.result], 3, to)
        none = np.zeros(to.result.size, np.int64)
        return node.op, (node.input(0), picked, *_bias(node, none, to))

"""Channel rules of operators that compute each channel from the same channel of the operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from typing_extensions import override

from smelt.ir import Array, DType, Node, Rounding, TensorType, Value
from smelt.ir.channels import (
    Bounds,
    Build,
    ChannelRule,
    Mask,
    Narrowed,
    Narrowing,
    OpT_contra,
    all_channels,
    channels,
)
from smelt.ops.arithmetic.fixed_point import INT32_MAX


class MonotonicChannels(ChannelRule[OpT_contra]):
    """Channel rule of results that are monotonic in the same channel of each operand."""

    @override
    def bounds(self, node: Node[OpT_contra], operands: Sequence[Bounds | None]) -> Bounds:
        if self._may_wrap(node):
            return Bounds.of_type(node.output.type)
        found = [node.op.reference(node, inputs)[0] for inputs in self.corners(node, operands)]
        return Bounds.of_arrays(*found)

    def corners(
        self, node: Node[OpT_contra], operands: Sequence[Bounds | None]
    ) -> Iterator[Sequence[Array | None]]:
        """Yield operands at their bounds, where each result is smallest and largest."""
        for greatest in (False, True):
            yield [
                None if v is None or b is None else at_bound(v, b, greatest)
                for v, b in zip(node.inputs, operands, strict=True)
            ]

    @override
    def needs(
        self, node: Node[OpT_contra], wanted: Mask, operands: Sequence[Bounds | None]
    ) -> tuple[Mask, Sequence[Mask | None]]:
        return wanted, [
            None
            if v is None
            else wanted
            if channels(v.type) == wanted.size
            else all_channels(v.type)
            for v in node.inputs
        ]

    @override
    def result_channels(self, node: Node[OpT_contra], kept: Sequence[Mask | None]) -> Mask | bool:
        count = channels(node.output.type)
        found: Mask | bool = False
        for value, mask in zip(node.inputs, kept, strict=True):
            if value is not None and value.data is None and mask is not None:
                found = found | mask if mask.size == count else found
        return found

    @override
    def narrow(self, node: Node[OpT_contra], to: Narrowing) -> Narrowed:
        return node.op, tuple(
            v if v is None or v.data is None or mask is None else _sliced(v, mask, to.build)
            for v, mask in zip(node.inputs, to.kept, strict=True)
        )

    def magnitude(self, node: Node[OpT_contra]) -> float:
        """Return an upper bound of the results' magnitude, in units of their scale."""
        x, y = node.input(0).type, node.output.type
        return x.scale / y.scale * levels(x)

    def _may_wrap(self, node: Node[OpT_contra]) -> bool:
        """Return whether a left shift may overflow 32 bits, so that the result is not monotonic."""
        x, y = node.input(0).type, node.output.type
        if node.rounding is not Rounding.TFLM or not (x.is_quantized and y.is_quantized):
            return False
        # The shifted number is then multiplied by at least 1/2: it is at most twice the result.
        return 2 * self.magnitude(node) > INT32_MAX


class ChannelFunction(MonotonicChannels):
    """Channel rule of any function of one 8-bit element: it is evaluated for all 256 elements."""

    @override
    def serves(self, node: Node) -> bool:
        return node.input(0).type.dtype in (DType.INT8, DType.UINT8)

    @override
    def bounds(self, node: Node, operands: Sequence[Bounds | None]) -> Bounds:
        x, given = node.input(0), operands[0]
        assert given is not None
        least, greatest = x.type.dtype.limits
        stored = np.arange(least, greatest + 1).astype(x.type.dtype.numpy)
        types = (x.type.with_shape(stored.shape), node.output.type.with_shape(stored.shape))
        ends = [Value(v.name, t) for v, t in zip((x, node.output), types, strict=True)]
        probe = replace(node, inputs=(ends[0], *node.inputs[1:]), outputs=(ends[1],))
        others = [None if v is None else v.data for v in node.inputs[1:]]
        (results,) = node.op.reference(probe, [stored, *others])
        spans = [
            results[low - least : high - least + 1].astype(np.int64)
            for low, high in zip(given.low, given.high, strict=True)
        ]
        return Bounds(np.array([s.min() for s in spans]), np.array([s.max() for s in spans]))

    @override
    def narrow(self, node: Node, to: Narrowing) -> Narrowed:
        return node.op, node.inputs


def levels(type_: TensorType) -> int:
    """Return an upper bound of the magnitude of stored numbers without their zero point."""
    return 1 << (8 * type_.dtype.size)


def at_bound(value: Value, bounds: Bounds, greatest: bool) -> Array:
    """Return a tensor with each channel's lower or upper bound; for a constant, its data."""
    if value.data is not None:
        return value.data
    row = bounds.high if greatest else bounds.low
    return np.broadcast_to(row, value.type.shape).astype(value.type.dtype.numpy)


def _sliced(value: Value, mask: Mask, build: Build) -> Value:
    """Return a constant with only some of its channels."""
    return value if mask.all() else build(value.name, value.array[..., mask], value.type.quant)

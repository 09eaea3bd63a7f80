"""PixelSums: the sums of an image's pixels, or their average, from a few rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ops.arithmetic.fixed_point import Activation, clamp_limits
from smelt.ops.case import Case, Data, quant_of_range
from smelt.ops.constraints import arrays, operands

SUMMED = (DType.INT8, DType.UINT8, DType.INT16)
"""Element types of images."""


@dataclass(frozen=True)
class PixelSums(Op):
    """Adds the pixels of rows `[1,h,w,c]` to the sums of earlier rows, int32 `[1,1,1,c]`.

    The sums are the second operand; without it, they begin at 0. If `count` is not 0, the result is
    not the new sums but the average of `count` pixels, as `Pool2D` computes it: stored integers,
    rounded half away from zero. The compiler makes these operators; no model file has them.
    """

    count: int = 0
    activation: Activation = Activation.NONE

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, *earlier = operands(self, inputs, len(inputs))
        if not self.count and self.activation is not Activation.NONE:
            raise ModelError(f"{self.name} clamps averages only, not sums")
        if len(x.shape) != 4 or x.shape[0] != 1 or x.dtype not in SUMMED:
            raise ModelError(f"{self.name} needs int8, uint8 or int16 [1,h,w,c], got {x}")
        sums = TensorType((1, 1, 1, x.shape[3]), DType.INT32)
        if earlier not in ([], [sums]):
            raise ModelError(f"{self.name} of {x} needs earlier sums {sums}, got {earlier[0]}")
        return (TensorType(sums.shape, x.dtype) if self.count else sums,)

    @override
    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the image, for an average."""
        return operands(self, inputs, 1)[0].quant if self.count else None

    @override
    def check(self, node: Node) -> None:
        if node.output.type.quant != self.output_quant([node.input(0).type]):
            raise ModelError(f"{node.origin}: {self.name} keeps the quantization of its input")

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, *earlier = arrays(node, inputs, len(node.inputs))
        total = sum(earlier, x.astype(np.int64).sum(axis=(1, 2), keepdims=True))
        y = node.output.type
        if self.count:
            total = round_quotient(total, np.full(1, self.count))
            low, high = y.dtype.limits
            if y.quant is not None:
                low, high = clamp_limits(self.activation, y, node.rounding)
            total = np.clip(total, low, high)
        return (total.astype(y.dtype.numpy),)


def round_quotient(total: Array, count: Array) -> Array:
    """Return `total / count`, ties away from zero."""
    magnitude = (np.abs(total) + count // 2) // count
    return np.where(total > 0, magnitude, -magnitude)


_IMAGE, _SUMS = Data((1, 3, 5, 10)), Data((1, 1, 1, 10), -9_000, 9_000, DType.INT32)
_RANGE = -4.0, 8.0
_QUANTIZED = replace(_IMAGE, dtype=DType.INT8, quant=quant_of_range(*_RANGE, DType.INT8))
_POSITIVE = Data((1, 1, 1, 10), 0, 9_000, DType.INT32)

CASES = (
    Case("first", PixelSums(), (_IMAGE,), SUMMED, plain=True),
    Case("following", PixelSums(), (_IMAGE, _SUMS), SUMMED, plain=True),
    Case("average", PixelSums(100), (_IMAGE, _SUMS), (DType.INT8, DType.INT16), plain=True),
    Case("large_average", PixelSums(400), (_IMAGE, _SUMS), (DType.INT8,), plain=True),
    Case("unsigned_average", PixelSums(100), (_IMAGE, _POSITIVE), (DType.UINT8,), plain=True),
    Case("whole_average", PixelSums(15), (_IMAGE,), SUMMED, plain=True),
    Case("relu", PixelSums(15, Activation.RELU), (_QUANTIZED,), (DType.INT8,), output=_RANGE),
    Case(
        "relu6",
        PixelSums(100, Activation.RELU6),
        (_QUANTIZED, _SUMS),
        (DType.INT8,),
        output=_RANGE,
    ),
)

"""Resize: scales images by nearest-neighbor or bilinear interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ir.homogeneity import Homogeneity, in_place
from smelt.ops.arithmetic.fixed_point import round_half_away
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, quantized, same_quant
from smelt.ops.core.channel_rules import MonotonicChannels

KINDS = ("nearest", "bilinear")


class ResizeChannels(MonotonicChannels["Resize"]):
    """Channel rule of nearest-neighbor interpolation, which copies elements."""

    def serves(self, node: Node[Resize]) -> bool:
        """Return whether elements are only copied."""
        return node.op.kind == "nearest"


@dataclass(frozen=True)
class Resize(Op):
    """Images `[n,h,w,c]` resized to `size` (height, width).

    Output position `i` is at input position `i · scale`, or at `(i + ½) · scale - ½` with
    `half_pixel_centers`. `scale` is in / out, or (in - 1) / (out - 1) with `align_corners`. As in
    TensorFlow Lite, coordinates are float32 for float images and have ten fractional bits for
    integer images.
    """

    kind: str
    size: tuple[int, int]
    align_corners: bool = False
    half_pixel_centers: bool = False

    channel_rule = ResizeChannels()

    @property
    @override
    def name(self) -> str:
        return f"Resize({self.kind})"

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        if self.kind not in KINDS:
            raise ModelError(
                f"there is no interpolation '{self.kind}'; the kinds are {', '.join(KINDS)}"
            )
        (x,) = operands(self, inputs, 1)
        if len(x.shape) != 4 or min(self.size) < 1 or x.size == 0:
            raise ModelError(
                f"{self.name} cannot resize {x} to {list(self.size)}; it needs [n,h,w,c] without "
                "empty axes, and sizes of at least 1"
            )
        if self.kind == "bilinear" and self.align_corners and self.half_pixel_centers:
            raise ModelError(
                f"{self.name} has align_corners and half_pixel_centers; only one of them is allowed"
            )
        return (TensorType((x.shape[0], *self.size, x.shape[3]), x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        if self.kind == "bilinear":
            quantized(node, (DType.INT8,))
        same_quant(node)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        rows, columns = self.axes(x.shape)
        if self.kind == "nearest":
            return (x[:, self.nearest(*rows)][:, :, self.nearest(*columns)],)
        if node.output.type.dtype.is_float:
            result = _interpolate(x.astype(np.float64), self.linear(*rows), self.linear(*columns))
            return (result.astype(x.dtype),)
        y, x_ = self.linear_integer(*rows), self.linear_integer(*columns)
        total = _interpolate(x.astype(np.int64), y, x_)
        magnitude = (np.abs(total) + (1 << 19)) >> 20
        return (np.where(total > 0, magnitude, -magnitude).astype(x.dtype),)

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return that channels keep their factors, as each is interpolated separately."""
        return (Homogeneity(in_place(node)),)

    def axes(self, shape: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return input and output size of the rows, then of the columns."""
        return (shape[1], self.size[0]), (shape[2], self.size[1])

    def _scale(self, size: int, output: int) -> np.float32:
        if self.align_corners and output > 1:
            return np.float32(size - 1) / np.float32(output - 1)
        return np.float32(size) / np.float32(output)

    def nearest(self, size: int, output: int) -> Array:
        """Return the input index (int64) of each output index along an axis."""
        offset = np.float32(0.5 if self.half_pixel_centers else 0.0)
        position = (np.arange(output, dtype=np.float32) + offset) * self._scale(size, output)
        index = round_half_away(position) if self.align_corners else np.floor(position)
        return np.clip(index.astype(np.int64), 0, size - 1)

    def linear(self, size: int, output: int) -> tuple[Array, Array, Array, Array]:
        """Return indices of both neighbors along an axis, then their weights (float64)."""
        position = np.arange(output, dtype=np.float32)
        scale = self._scale(size, output)
        if self.half_pixel_centers:
            position = (position + np.float32(0.5)) * scale - np.float32(0.5)
        else:
            position = position * scale
        lower = np.maximum(np.floor(position), 0).astype(np.int64)
        upper = np.minimum(np.ceil(position), size - 1).astype(np.int64)
        weight = position.astype(np.float64) - lower
        return lower, upper, 1 - weight, weight

    def linear_integer(self, size: int, output: int) -> tuple[Array, Array, Array, Array]:
        """Return indices of both neighbors along an axis, then their weights times 2^10."""
        scale = ((size << 10) + output // 2) // output
        if self.align_corners and output > 1:
            scale = (((size - 1) << 10) + (output - 1) // 2) // (output - 1)
        position = np.arange(output, dtype=np.int64) * scale
        if self.half_pixel_centers:
            position = position + scale // 2 - (1 << 9)
        lower = np.maximum(position >> 10, 0)
        upper = np.minimum((position + 1023) >> 10, size - 1)
        weight = position - (lower << 10)
        return lower, upper, (1 << 10) - weight, weight


def _interpolate(
    x: Array, rows: tuple[Array, Array, Array, Array], columns: tuple[Array, Array, Array, Array]
) -> Array:
    """Return weighted sums of four neighbors; rows and columns are lower, upper and weights."""
    top, bottom, top_weight, bottom_weight = rows
    left, right, left_weight, right_weight = columns
    column = (slice(None), None, None)
    lines = x[:, top] * top_weight[column] + x[:, bottom] * bottom_weight[column]
    row = (slice(None), None)
    return lines[:, :, left] * left_weight[row] + lines[:, :, right] * right_weight[row]


CASES = tuple(
    Case(f"{kind}_{name}{suffix}", Resize(kind, size, *flags), (Data(shape),))
    for kind in KINDS
    for suffix, flags in (
        ("", (False, False)),
        ("_aligned", (True, False)),
        ("_half_pixel", (False, True)),
    )
    for name, shape, size in (
        ("double", (1, 3, 4, 3), (6, 8)),
        ("odd", (1, 4, 5, 2), (7, 11)),
        ("smaller", (2, 9, 7, 3), (4, 3)),
        ("to_pixel", (1, 3, 3, 5), (1, 1)),
        ("from_pixel", (1, 1, 1, 4), (3, 2)),
        ("rows_only", (1, 5, 6, 1), (13, 6)),
    )
)

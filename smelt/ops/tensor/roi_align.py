"""RoiAlign: samples regions of an image to one size (He et al., Mask R-CNN, 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ir.budget import OPERATOR
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, quantized

KINDS = ("average", "max")
MOST_SAMPLES = 4096
"""Largest number of samples along an axis of a bin."""


@dataclass(frozen=True)
class RoiAlign(Op):
    """Images `[n,h,w,c]`, boxes `f32[r,4]` (x, y of two corners), indices of images `i64[r]`.

    The result is `[r,*size,c]`. Each box is divided into `size` bins. A bin is sampled at `samples`
    points along each axis (0: one for each pixel) by bilinear interpolation. The result is their
    average or, for "max", the largest weighted neighbor of all points. Boxes are multiplied by
    `scale`. With `half_pixel` they are moved by half a pixel; else they are at least one pixel
    large. An index out of range stands for the nearest image.
    """

    kind: str
    size: tuple[int, int]
    samples: int = 0
    scale: float = 1.0
    half_pixel: bool = True

    @property
    @override
    def name(self) -> str:
        return f"RoiAlign({self.kind})"

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, boxes, numbers = operands(self, inputs, 3)
        if self.kind not in KINDS:
            raise ModelError(
                f"there is no RoiAlign '{self.kind}'; the kinds are {', '.join(KINDS)}"
            )
        if min(self.size) < 1 or not 0 <= self.samples <= MOST_SAMPLES:
            raise ModelError(
                f"{self.name} has size {list(self.size)} and {self.samples} samples; sizes must "
                f"be at least 1, and samples from 0 to {MOST_SAMPLES}"
            )
        if len(x.shape) != 4 or x.size == 0 or x.dtype is not DType.FLOAT32:
            raise ModelError(
                f"{self.name} does not support input {x}; it needs f32[n,h,w,c] without empty axes"
            )
        count = numbers.shape[0] if len(numbers.shape) == 1 else 0
        if count < 1 or boxes.shape != (count, 4) or boxes.dtype is not DType.FLOAT32:
            raise ModelError(
                f"{self.name} has boxes {boxes} and image indices {numbers}; it needs f32[r,4] and "
                "i64[r], with r at least 1"
            )
        if numbers.dtype is not DType.INT64:
            raise ModelError(f"{self.name} has image indices {numbers}; they must be i64")
        return (TensorType((count, *self.size, x.shape[3]), x.dtype),)

    @override
    def check(self, node: Node) -> None:
        quantized(node, (), 2)

    def overhead(self, node: Node) -> int:
        """Return the cost of reading each sample separately, and of a copy of its image."""
        boxes, rows, columns, channels = node.output.type.shape
        samples = boxes * rows * columns * (self.samples or MOST_SAMPLES) ** 2
        copies = prod(node.input(0).type.shape[1:]) * boxes
        return samples * (OPERATOR + 4 * channels) + copies

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, boxes, numbers = arrays(node, inputs, 3)
        y = np.zeros(node.output.type.shape, np.float64)
        chosen = np.clip(numbers, 0, len(x) - 1)
        for image, box, result in zip(x[chosen].astype(np.float64), boxes, y, strict=True):
            rows, columns = (
                self._samples(box[[axis, axis + 2]], self.size[1 - axis]) for axis in (1, 0)
            )
            for i, row in enumerate(rows):
                for j, column in enumerate(columns):
                    seen = [_neighbors(image, a, b) for a in row for b in column]
                    if not seen:
                        continue
                    every = np.stack(seen)
                    result[i, j] = (
                        every.max(axis=(0, 1))
                        if self.kind == "max"
                        else every.sum(axis=(0, 1)) / len(seen)
                    )
        return (y.astype(x.dtype),)

    def _samples(self, ends: Array, bins: int) -> list[list[np.float32]]:
        """Return the sample positions of each bin along an axis; float32, as in the kernel."""
        half = np.float32(0.5)
        offset = half if self.half_pixel else np.float32(0)
        begin, end = ends * np.float32(self.scale) - offset
        length = end - begin if self.half_pixel else max(end - begin, np.float32(1))
        step = length / np.float32(bins)
        count = self.samples or int(min(max(np.ceil(step), 0), MOST_SAMPLES))
        return [
            [
                begin + np.float32(b) * step + (np.float32(s) + half) * step / np.float32(count)
                for s in range(count)
            ]
            for b in range(bins)
        ]


def _neighbors(image: Array, y: np.float32, x: np.float32) -> Array:
    """Return the four pixels around a point, weighted: `[4,c]`; zeros outside of the image."""
    height, width, channels = image.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros((4, channels))
    rows, columns = (_pair(float(at), size) for at, size in ((y, height), (x, width)))
    return np.stack([image[r, c] * (a * b) for r, a in rows for c, b in columns])


def _pair(at: float, size: int) -> list[tuple[int, float]]:
    at = min(max(at, 0.0), size - 1.0)
    lower = int(at)
    return [(lower, lower + 1 - at), (min(lower + 1, size - 1), at - lower)]


CASES = tuple(
    Case(
        f"{name}",
        RoiAlign(kind, size, samples, scale, half_pixel),
        (
            Data((2, 6, 7, 3)),
            Data((4, 4), low, high),
            Data((4,), 0, 1, DType.INT64),
        ),
        (DType.FLOAT32,),
    )
    for kind in KINDS
    for name, size, samples, scale, half_pixel, low, high in (
        ("adaptive", (3, 2), 0, 0.5, True, -4.0, 18.0),
        ("two_samples", (2, 4), 2, 1.0, True, 0.0, 7.0),
        ("whole_pixels", (2, 2), 0, 1.0, False, -3.0, 9.0),
        ("one_sample", (1, 1), 1, 0.25, False, 0.0, 30.0),
    )
)

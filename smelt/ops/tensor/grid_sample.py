"""GridSample: an image sampled at the positions in a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ir.budget import OPERATOR
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, quantized

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
"""Number of elements along each axis that a sample is computed from, for each mode."""
PADDINGS = ("zeros", "border", "reflection")
COORDINATES = ("corners", "edges", "pixels")
CUBIC = -0.75
"""The parameter of Keys' cubic convolution kernel (1981)."""


@dataclass(frozen=True)
class GridSample(Op):
    """Input `[n,*size,c]` and grid `f32[n,*out,d]`, where d is the number of axes in `size`.

    With coordinates `corners`, -1 and 1 are the centers of the image's first and last pixel; with
    `edges`, they are the outer edges of these pixels. In both, the innermost axis comes first. With
    `pixels`, coordinates are positions of pixels, the outermost axis first.

    `padding` defines samples outside of the image: zeros, the nearest pixel (`border`), or the
    image mirrored (`reflection`). It is mirrored at the outer edges of its first and last pixel
    for `edges`, else at their centers.
    """

    mode: str
    padding: str = "zeros"
    coordinates: str = "edges"

    @property
    @override
    def name(self) -> str:
        return f"GridSample({self.mode})"

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, grid = operands(self, inputs, 2)
        known = ((self.mode, TAPS), (self.padding, PADDINGS), (self.coordinates, COORDINATES))
        for given, names in known:
            if given not in names:
                raise ModelError(
                    f"GridSample does not support '{given}'; it supports {', '.join(names)}"
                )
        rank = len(x.shape) - 2
        if rank < 1 or x.size == 0 or x.dtype is not DType.FLOAT32:
            raise ModelError(
                f"{self.name} does not support input {x}; it needs f32[n, ..., c] with 3 or more "
                "dimensions and no empty axis"
            )
        fits = grid.shape[:1] == x.shape[:1] and grid.shape[-1:] == (rank,)
        if not fits or len(grid.shape) < 3 or grid.dtype is not DType.FLOAT32:
            raise ModelError(
                f"{self.name} of {x} cannot use grid {grid}; it needs f32[{x.shape[0]}, ..., "
                f"{rank}] with at least 3 dimensions"
            )
        return (TensorType((*grid.shape[:-1], x.shape[-1]), x.dtype),)

    @override
    def check(self, node: Node) -> None:
        quantized(node, (), 2)

    def limits(self, size: int) -> tuple[float, float]:
        """Return where the image is mirrored, or bounds beyond which no tap is in the image."""
        if self.padding != "reflection":
            return -3.0, size + 2.0
        return (-0.5, size - 0.5) if self.coordinates == "edges" else (0.0, size - 1.0)

    def mirror(self, size: int) -> tuple[int, int]:
        """Return the period of the mirrored image, and the sum of a position and its mirror."""
        if self.coordinates == "edges":
            return 2 * size, 2 * size - 1
        return max(2 * size - 2, 1), 2 * size - 2

    def overhead(self, node: Node) -> int:
        """Return the cost of reading each tap of all samples, one tap after the other."""
        taps = TAPS[self.mode] ** (len(node.input(0).type.shape) - 2)
        return taps * (4 * OPERATOR + 4 * node.output.type.size)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, grid = arrays(node, inputs, 2)
        sizes = x.shape[1:-1]
        columns = range(len(sizes)) if self.coordinates == "pixels" else range(len(sizes))[::-1]
        axes = [self._axis(grid[..., c], n) for c, n in zip(columns, sizes, strict=True)]
        image = np.arange(len(x)).reshape(-1, *[1] * (grid.ndim - 2))
        y = np.zeros((*grid.shape[:-1], x.shape[-1]), np.float64)
        for taps in product(range(TAPS[self.mode]), repeat=len(sizes)):
            positions = [axis[0][..., t] for axis, t in zip(axes, taps, strict=True)]
            weight = np.prod([axis[1][..., t] for axis, t in zip(axes, taps, strict=True)], axis=0)
            inside = np.all([p >= 0 for p in positions], axis=0)
            taken = x[(image, *(np.maximum(p, 0) for p in positions))].astype(np.float64)
            y += np.where(inside[..., None], taken * weight[..., None], 0)
        return (y.astype(x.dtype),)

    def _axis(self, grid: Array, size: int) -> tuple[Array, Array]:
        """Return positions `[...,t]` of taps along an axis (-1 for zeros), and their weights.

        Coordinates are float32, as in the kernel, so that both round to the same pixel.
        """
        one, two, n = np.float32(1), np.float32(2), np.float32(size)
        with np.errstate(invalid="ignore", over="ignore"):
            at = {
                "corners": lambda: (grid + one) / two * (n - one),
                "edges": lambda: ((grid + one) * n - one) / two,
                "pixels": lambda: grid,
            }[self.coordinates]()
            if self.mode == "nearest":
                at = np.rint(at)
            low, high = self.limits(size)
            if self.padding == "reflection":
                at = _reflected(at, np.float32(low), np.float32(high - low))
        at = np.where(at > low, np.minimum(at, np.float32(high)), np.float32(low))
        taps = TAPS[self.mode]
        whole = np.floor(at)
        positions = whole.astype(np.int64)[..., None] + np.arange(taps) - (taps - 1) // 2
        rest = (at.astype(np.float64) - whole)[..., None]
        if self.padding == "zeros":
            positions = np.where((positions >= 0) & (positions < size), positions, -1)
        elif self.padding == "border":
            positions = np.clip(positions, 0, size - 1)
        else:
            period, total = self.mirror(size)
            positions %= period
            positions = np.where(positions < size, positions, total - positions)
        return positions, _weights(rest, taps)


def _reflected(at: Array, low: np.float32, span: np.float32) -> Array:
    """Mirror coordinates at `low` and `low + span` until they are between them."""
    if span == 0:
        return np.full_like(at, low)
    turn = np.fmod(np.abs(at - low), 2 * span)
    return np.where((at >= low) & (at <= low + span), at, low + np.minimum(turn, 2 * span - turn))


def _weights(rest: Array, taps: int) -> Array:
    """Return the weights of the taps; `rest` is the distance from the tap before a position."""
    if taps == 1:
        return np.ones_like(rest)
    if taps == 2:
        return np.concatenate([1 - rest, rest], axis=-1)
    t = np.abs(rest + 1 - np.arange(4))
    near = ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1
    far = ((t - 5) * t + 8) * t * CUBIC - 4 * CUBIC
    return np.where(t <= 1, near, far)


_IMAGE, _GRID = (2, 4, 5, 3), (2, 6, 7, 2)

CASES = (
    *(
        Case(
            f"{padding}_{coordinates}",
            GridSample(mode, padding, coordinates),
            (Data(_IMAGE), Data(_GRID, -2.5, 2.5)),
            (DType.FLOAT32,),
        )
        for mode in TAPS
        for padding in PADDINGS
        for coordinates in COORDINATES
    ),
    *(
        Case(
            f"volume_{padding}",
            GridSample(mode, padding, "corners"),
            (Data((1, 3, 2, 4, 2)), Data((1, 2, 3, 2, 3), -1.5, 1.5)),
            (DType.FLOAT32,),
        )
        for mode in TAPS
        for padding in PADDINGS
    ),
    *(
        Case(
            f"one_pixel_{padding}_{coordinates}",
            GridSample("linear", padding, coordinates),
            (Data((1, 1, 3, 1)), Data((1, 1, 5, 2), -2.0, 2.0)),
            (DType.FLOAT32,),
        )
        for padding in PADDINGS
        for coordinates in COORDINATES
    ),
    Case(
        "vector",
        GridSample("linear"),
        (Data((1, 5, 2)), Data((1, 7, 1))),
        (DType.FLOAT32,),
    ),
)

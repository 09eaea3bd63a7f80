"""Tables of positions and weights for interpolation along an axis, as ONNX's Resize defines it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from smelt.ir import Array

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
MODES = ("nearest", "linear", "cubic")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SIMPLE = "simple"
"""Rounding before operator set 11: up if the output is smaller than the input, else down."""


@dataclass(frozen=True)
class InterpolationTable:
    """Positions `i64[o,t]` along the input for each output index, and their weights (float64).

    If the first position of an output is -1, its coordinate is outside of the input.
    """

    positions: Array
    weights: Array


@dataclass(frozen=True)
class Interpolation:
    """Attributes of Resize; each field has the name of its attribute."""

    mode: str
    coordinates: str
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False

    def table(
        self, size: int, outputs: int, scale: np.float32, roi: tuple[float, float] = (0.0, 1.0)
    ) -> InterpolationTable:
        """Return the table of an axis.

        Args:
            size: size of the input.
            outputs: size of the output.
            scale: output size divided by input size; it need not equal `outputs / size` exactly.
            roi: begin and end of the region to resize, as fractions of the input's size.
        """
        at = self._coordinates(size, outputs, np.float32(scale), roi)
        if self.mode == "nearest":
            positions, weights = self._round(at, bool(scale < 1))[:, None], np.ones((outputs, 1))
        else:
            positions, weights = self._neighbors(at, min(float(scale), 1.0))
        inside = (positions >= 0) & (positions < size)
        if self.exclude_outside and self.mode != "nearest":
            weights = np.where(inside, weights, 0)
            weights = weights / weights.sum(axis=1, keepdims=True)
        positions = np.clip(positions, 0, size - 1)
        used = (weights != 0).any(axis=0)
        positions, weights = positions[:, used], weights[:, used]
        if self.coordinates == "tf_crop_and_resize":
            beyond = (at < 0) | (at > size - 1)
            positions = np.where(beyond[:, None], -1, positions)
        return InterpolationTable(positions, weights)

    def _coordinates(
        self, size: int, outputs: int, scale: np.float32, roi: tuple[float, float]
    ) -> Array:
        """Return the coordinate of each output along the input: float32, as in onnxruntime."""
        x, half = np.arange(outputs, dtype=np.float32), np.float32(0.5)
        span = np.float32(size - 1)
        match self.coordinates:
            case "asymmetric":
                return x / scale
            case "tf_half_pixel_for_nn":
                return (x + half) / scale
            case "align_corners" | "pytorch_half_pixel" if outputs == 1:
                return np.zeros_like(x)
            case "align_corners":
                return x * span / np.float32(outputs - 1)
            case "half_pixel_symmetric":
                # Use the length that the output would have if it were not rounded down.
                length = scale * np.float32(size)
                shift = np.float32(size) / 2 * (1 - np.float32(outputs) / length)
                # Double precision decides correctly on which side of an integer a coordinate is.
                at = float(shift) + (x.astype(np.float64) + 0.5) / float(scale) - 0.5
                return at.astype(np.float32)
            case "tf_crop_and_resize":
                begin, end = np.float32(roi[0]), np.float32(roi[1])
                if outputs == 1:
                    return np.full_like(x, half * (begin + end) * span)
                return begin * span + x * (end - begin) * span / np.float32(outputs - 1)
            case _:
                return (x + half) / scale - half

    def _round(self, at: Array, shrinks: bool) -> Array:
        mode, exact = self.nearest_mode, at.astype(np.float64)
        match ("ceil" if shrinks else "floor") if mode == SIMPLE else mode:
            case "floor":
                rounded = np.floor(exact)
            case "ceil":
                rounded = np.ceil(exact)
            case "round_prefer_ceil":
                rounded = np.floor(exact + 0.5)
            case _:
                rounded = np.ceil(exact - 0.5)
        return rounded.astype(np.int64)

    def taps(self, scale: float) -> int:
        """Return the largest number of input elements that an output element is computed from."""
        radius = {"nearest": 0, "linear": 1}.get(self.mode, 2)
        return 2 * ceil(radius / (min(scale, 1.0) if self.antialias else 1.0)) + 1

    def _neighbors(self, at: Array, scale: float) -> tuple[Array, Array]:
        """Return positions around each coordinate, and their weights.

        Positions may be outside of the input. With antialiasing, the kernel is stretched by
        1 / `scale`, and its weights are normalized to sum 1.
        """
        radius = 1 if self.mode == "linear" else 2
        if not self.antialias:
            scale = 1.0
        first = int(np.floor(-radius / scale)) + 1
        whole = np.floor(at).astype(np.int64)
        positions = whole[:, None] + np.arange(first, 2 - first)
        distances = np.abs(positions - at[:, None].astype(np.float64)) * scale
        weights = np.maximum(1 - distances, 0) if radius == 1 else self._cubic(distances)
        if self.antialias:
            weights = weights / weights.sum(axis=1, keepdims=True)
        return positions, weights

    def _cubic(self, distance: Array) -> Array:
        """Return Keys' cubic convolution kernel (1981) at a distance from its center."""
        a = self.cubic_coeff_a
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        return np.where(distance <= 1, near, np.where(distance < 2, far, 0))

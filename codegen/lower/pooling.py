"""int8 pooling: what every core's kernel has to know of it.

An average is a function of one small integer, the sum of a window's stored numbers; so are the sums
and means of `Reduce`. Nearly it is one product, and all sums are asked whether it is so exactly
(`exact_division`). How products are made is each core's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from smelt.codegen.lower.c_expressions import offset, stored
from smelt.codegen.lower.exact_division import Quotients, Stairs, fitted
from smelt.codegen.lower.kernel import Refusal
from smelt.codegen.lower.output_stage import Finish
from smelt.ir import Array, DType, Node, Rounding
from smelt.ops.arithmetic.fixed_point import (
    Activation,
    Requantizer,
    clamp_limits,
    multiply_by_quantized_multiplier,
)
from smelt.ops.core.pool import Pool2D, average_scale
from smelt.ops.core.reduce import Reduce, reduce_multiplier, reduce_scale

MOST = 256
"""Elements whose sum 16 bits hold, with a sign or from 0 to 255 each."""


@dataclass(frozen=True)
class PoolAxis:
    """Windows along one axis of an image of `size` pixels; the first begins `before` it."""

    size: int
    window: int
    stride: int = 1
    before: int = 0
    outputs: int = 1

    @cached_property
    def covered(self) -> tuple[int, ...]:
        """How many pixels of the image each window covers."""
        begins = (i * self.stride - self.before for i in range(self.outputs))
        return tuple(min(b + self.window, self.size) - max(b, 0) for b in begins)

    @property
    def clipped(self) -> bool:
        """Whether windows reach beyond the image."""
        return min(self.covered) < self.window

    @property
    def least(self) -> int:
        """The fewest pixels that a window covers."""
        return min(self.covered)

    @property
    def kinds(self) -> range:
        """From the fewest to the most pixels that a window covers."""
        return range(self.least, max(self.covered) + 1)

    @property
    def first(self) -> int:
        """The first window that lies inside; the last ones of those follow one another."""
        return self.covered.index(self.window) if self.window in self.covered else self.outputs

    @property
    def inside(self) -> int:
        """How many windows lie inside."""
        return self.covered.count(self.window)


@dataclass(frozen=True)
class Pooling:
    """A node that takes the largest element of windows, or a function of their sums.

    Images whose windows are as wide as they are have one row; images that are one window stand side
    by side as one image.

    Attributes:
        node: what is computed.
        images: one after the other.
        channels: of a pixel.
        rows: of windows.
        columns: of windows.
        limits: of the outputs.
    """

    node: Node[Pool2D | Reduce]
    images: int
    channels: int
    rows: PoolAxis
    columns: PoolAxis
    limits: tuple[int, int]

    @property
    def largest(self) -> bool:
        """Whether the largest elements are taken."""
        return self.node.op.kind == "max"

    @property
    def stem(self) -> str:
        """Of a function's name."""
        op, stem = self.node.op, "max_pool" if self.largest else "average_pool"
        return f"{stem}_{op.window[0]}x{op.window[1]}" if isinstance(op, Pool2D) else stem

    @property
    def clamps(self) -> bool:
        """Whether outputs have narrower limits than int8."""
        return self.limits != (-128, 127)

    @property
    def limit_bytes(self) -> tuple[int, int]:
        """The limits as bytes of a word."""
        return self.limits[0] % 256, self.limits[1] % 256

    @property
    def varies(self) -> bool:
        """Whether results are scaled by what depends on the window."""
        return not self.largest and (self.rows.clipped or self.columns.clipped)

    @property
    def row(self) -> int:
        """Elements of a row of the image."""
        return self.columns.size * self.channels

    @property
    def pixels(self) -> int:
        """Of the output."""
        return self.images * self.rows.outputs * self.columns.outputs

    @property
    def taps(self) -> int:
        """Pixels under all windows."""
        return self.images * sum(self.rows.covered) * sum(self.columns.covered)

    @property
    def kinds(self) -> tuple[int, ...]:
        """Pixels under a window by rows, then columns, both from the least on."""
        return tuple(r * c for r in self.rows.kinds for c in self.columns.kinds)

    @property
    def text(self) -> str:
        """What is computed, in words, for a comment."""
        op = self.node.op
        what = f"{op.name}: {self.node.input(0).type} -> {self.node.output.type}"
        if not isinstance(op, Pool2D):
            return what
        padding = ", ".join(f"{before}+{after}" for before, after in op.padding)
        window, stride = ("x".join(map(str, pair)) for pair in (op.window, op.stride))
        return f"{what}, window {window}, stride {stride}, padding {padding}"

    def outputs(self, sums: Array, taps: int) -> Array:
        """int64 `[n]`: what is stored for sums of `taps` stored numbers."""
        op, x, y = self.node.op, self.node.input(0).type, self.node.output.type
        single = self.node.rounding is Rounding.ONNX
        if isinstance(op, Reduce):
            centred, count = sums - x.zero_point * taps, op.count(x)
            if single:
                scale = reduce_scale(op.kind, x, y, count)
                found = Requantizer((scale,), Rounding.ONNX)(centred)
            else:
                multiplier = reduce_multiplier(op.kind, x, y, count)
                found = multiply_by_quantized_multiplier(centred, *multiplier)
            found = found + y.zero_point
        else:
            count = self._divisor(taps)
            if single:
                centred = (sums - x.zero_point * taps).astype(np.float32)
                found = (
                    np.rint(centred * np.float32(self.slope(taps))).astype(np.int64) + y.zero_point
                )
            else:
                found = np.sign(sums) * ((np.abs(sums) + count // 2) // count)
        return np.clip(found, *self.limits).astype(np.int64)

    def slope(self, taps: int) -> float:
        """How much the output rises with the sum; nearly, where the model rounds as gemmlowp."""
        op, x, y = self.node.op, self.node.input(0).type, self.node.output.type
        if isinstance(op, Reduce):
            return reduce_scale(op.kind, x, y, op.count(x))
        count = self._divisor(taps)
        if self.node.rounding is Rounding.ONNX:
            return float(average_scale(x, y) / np.float32(count))
        return 1.0 / count

    def finish(self, start: int) -> str | None:
        """C of an output from `sum`, by the model's own steps; None where they are not one.

        Args:
            start: what all sums were increased by.
        """
        op, x, y = self.node.op, self.node.input(0).type, self.node.output.type
        if self.varies:
            return None
        taps = self.rows.window * self.columns.window
        centred = offset("sum", -x.zero_point * taps - start)
        if self.node.rounding is Rounding.ONNX:
            ends = [np.asarray([(n - x.zero_point) * taps], np.int64) for n in x.dtype.limits]
            activation = op.activation if isinstance(op, Pool2D) else Activation.NONE
            finish = Finish.of(self.node, activation, None, (self.slope(taps),), (ends[0], ends[1]))
            return finish.output(f"({centred})")
        if not isinstance(op, Reduce):
            return None
        multiplier, shift = reduce_multiplier(op.kind, x, y, taps)
        steps = f"requantize({centred}, {multiplier}, {shift})"
        if -32 < shift < 0:
            steps = f"scale_twice({centred}, {multiplier}, {-shift})"
        return stored(Activation.NONE, y, saturate=True)(offset(steps, y.zero_point))

    def _divisor(self, taps: int) -> int:
        op = self.node.op
        counts = isinstance(op, Pool2D) and op.counts_padding
        return self.rows.window * self.columns.window if counts else taps

    def quotients(
        self, shifts: Iterable[int], *, unit: int = 1, start: int = 0, wraps: bool = False
    ) -> Quotients | None:
        """Exact products for windows of all `kinds`; None if none were found.

        Args:
            shifts: see `fitted`.
            unit: see `fitted`.
            start: what was added to each element.
            wraps: see `fitted`.
        """
        stairs = [self._stairs(taps, start) for taps in self.kinds]
        return fitted(stairs, self.limits, shifts, unit=unit, wraps=wraps)

    def _stairs(self, taps: int, start: int) -> Stairs:
        sums = np.arange(-128 * taps, 127 * taps + 1, dtype=np.int64)
        outputs, sums = self.outputs(sums, taps), sums + start * taps
        rises = np.flatnonzero(np.diff(outputs))
        first, last = np.append(0, rises + 1), np.append(rises, len(sums) - 1)
        return Stairs(sums[first], sums[last], outputs[first], self.slope(taps))


@lru_cache(maxsize=64)
def pooling(node: Node[Pool2D | Reduce]) -> Pooling | Refusal:
    """What a node pools, or why no kernel in assembly serves it."""
    op, x = node.op, node.input(0).type
    if x.dtype is not DType.INT8 or x.quant is None or node.output.type.quant is None:
        return Refusal(f"{op.name} is served in assembly for quantized i8 only.")
    found = _reduction(node, op) if isinstance(op, Reduce) else _windows(node, op)
    if isinstance(found, Pooling) and not found.largest and max(found.kinds) > MOST:
        return Refusal(f"{op.name} is served in assembly for windows of {MOST} elements at most.")
    return found


def _windows(node: Node[Pool2D | Reduce], op: Pool2D) -> Pooling | Refusal:
    x, y = node.input(0).type, node.output.type
    if op.kind == "sum":
        return Refusal(f"{op.name} is served in assembly for maxima and averages only.")
    if op.dilation != (1, 1):
        return Refusal(f"{op.name} is not served in assembly for windows with gaps.")
    rows, columns = (
        PoolAxis(x.shape[1 + i], op.window[i], op.stride[i], op.padding[i][0], y.shape[1 + i])
        for i in (0, 1)
    )
    limits = clamp_limits(op.activation, y, node.rounding)
    return _merged(Pooling(node, x.shape[0], x.shape[3], rows, columns, limits))


def _reduction(node: Node[Pool2D | Reduce], op: Reduce) -> Pooling | Refusal:
    x, axes = node.input(0).type, sorted(op.axes)
    if op.kind not in ("mean", "sum", "max"):
        return Refusal(f"{op.name} is served in assembly for means, sums and maxima only.")
    if not axes or axes != list(range(axes[0], axes[-1] + 1)) or axes[-1] == len(x.shape) - 1:
        return Refusal(
            f"{op.name} is served in assembly for neighbouring axes before the last one only."
        )
    images, channels = prod(x.shape[: axes[0]]), prod(x.shape[axes[-1] + 1 :])
    if x.size == 0:
        return Refusal(f"{op.name} is not served in assembly for no elements at all.")
    columns = PoolAxis(op.count(x), op.count(x))
    limits = node.output.type.dtype.limits
    return _merged(Pooling(node, images, channels, PoolAxis(1, 1), columns, limits))


def _merged(p: Pooling) -> Pooling:
    """The same with as few rows and images as there can be."""
    rows, columns, images = p.rows, p.columns, p.images
    if _is_one_window(columns) and not rows.clipped:
        width = columns.size
        columns = PoolAxis(
            rows.size * width, rows.window * width, rows.stride * width, 0, rows.outputs
        )
        rows = PoolAxis(1, 1)
    if _is_one_window(columns) and _is_one_window(rows):
        columns = PoolAxis(images * columns.size, columns.size, columns.size, 0, images)
        images = 1
    return Pooling(p.node, images, p.channels, rows, columns, p.limits)


def _is_one_window(axis: PoolAxis) -> bool:
    return axis.outputs == 1 and axis.window == axis.size and not axis.clipped

"""int8 pooling, for the assembly kernels of all cores.

An average is a function of one small integer, the sum of a window's stored numbers. The same holds
for sums and means of `Reduce`. The function is nearly one product of the sum; `exact_division`
checks for all sums whether a product is exact. How a core multiplies is up to its kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from smelt.codegen.lower.c_expressions import stored
from smelt.codegen.lower.exact_division import Quotients, StepFunction, fitted
from smelt.codegen.lower.kernel import Refusal
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.text.expressions import offset
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
"""Largest number of elements whose sum fits 16 bits, for int8 or for numbers from 0 to 255."""


@dataclass(frozen=True)
class PoolAxis:
    """Windows along one axis of an image of `size` pixels.

    Attributes:
        size: Pixels of the image.
        window: Pixels of a window.
        stride: Pixels from one window to the next.
        before: Pixels of the first window that are before the image.
        outputs: Number of windows.
    """

    size: int
    window: int
    stride: int = 1
    before: int = 0
    outputs: int = 1

    @cached_property
    def covered(self) -> tuple[int, ...]:
        """The number of pixels of the image that each window covers."""
        begins = (i * self.stride - self.before for i in range(self.outputs))
        return tuple(min(b + self.window, self.size) - max(b, 0) for b in begins)

    @property
    def clipped(self) -> bool:
        """Whether some window extends beyond the image."""
        return min(self.covered) < self.window

    @property
    def least(self) -> int:
        """The smallest number of pixels that a window covers."""
        return min(self.covered)

    @property
    def kinds(self) -> range:
        """The range from the smallest to the largest number of pixels that a window covers."""
        return range(self.least, max(self.covered) + 1)

    @property
    def first(self) -> int:
        """The index of the first window inside the image; all windows inside are consecutive."""
        return self.covered.index(self.window) if self.window in self.covered else self.outputs

    @property
    def inside(self) -> int:
        """The number of windows inside the image."""
        return self.covered.count(self.window)


@dataclass(frozen=True)
class Pooling:
    """A node that computes the maximum of windows or a function of their sums.

    Images that are only one window high are merged to one row of windows where possible, and images
    that consist of one window are merged to one image, side by side.

    Attributes:
        node: The node.
        images: The number of images, contiguous in memory.
        channels: Channels of a pixel.
        rows: Rows of windows.
        columns: Columns of windows.
        limits: Smallest and largest output.
    """

    node: Node[Pool2D | Reduce]
    images: int
    channels: int
    rows: PoolAxis
    columns: PoolAxis
    limits: tuple[int, int]

    @property
    def is_max(self) -> bool:
        """Whether maxima are computed."""
        return self.node.op.kind == "max"

    @property
    def stem(self) -> str:
        """The stem of the function's name."""
        op, stem = self.node.op, "max_pool" if self.is_max else "average_pool"
        return f"{stem}_{op.window[0]}x{op.window[1]}" if isinstance(op, Pool2D) else stem

    @property
    def clamps(self) -> bool:
        """Whether the limits of outputs are narrower than int8."""
        return self.limits != (-128, 127)

    @property
    def limit_bytes(self) -> tuple[int, int]:
        """The limits as bytes of a word."""
        return self.limits[0] % 256, self.limits[1] % 256

    @property
    def varies(self) -> bool:
        """Whether the factor of a sum depends on how much of its window is inside the image."""
        return not self.is_max and (self.rows.clipped or self.columns.clipped)

    @property
    def row(self) -> int:
        """Elements of a row of the image."""
        return self.columns.size * self.channels

    @property
    def pixels(self) -> int:
        """Pixels of the output, over all images."""
        return self.images * self.rows.outputs * self.columns.outputs

    @property
    def taps(self) -> int:
        """The sum of the pixels under all windows."""
        return self.images * sum(self.rows.covered) * sum(self.columns.covered)

    @property
    def kinds(self) -> tuple[int, ...]:
        """The possible numbers of pixels under a window, ascending by rows, then columns."""
        return tuple(r * c for r in self.rows.kinds for c in self.columns.kinds)

    @property
    def text(self) -> str:
        """The operator, types and window, for a comment."""
        op = self.node.op
        what = f"{op.name}: {self.node.input(0).type} -> {self.node.output.type}"
        if not isinstance(op, Pool2D):
            return what
        padding = ", ".join(f"{before}+{after}" for before, after in op.padding)
        window, stride = ("x".join(map(str, pair)) for pair in (op.window, op.stride))
        return f"{what}, window {window}, stride {stride}, padding {padding}"

    def outputs(self, sums: Array, taps: int) -> Array:
        """Return the stored outputs for sums of `taps` stored numbers, int64 `[n]`."""
        op, x, y = self.node.op, self.node.input(0).type, self.node.output.type
        single = self.node.rounding is Rounding.ONNX
        if isinstance(op, Reduce):
            centered, count = sums - x.zero_point * taps, op.count(x)
            if single:
                scale = reduce_scale(op.kind, x, y, count)
                found = Requantizer((scale,), Rounding.ONNX)(centered)
            else:
                multiplier = reduce_multiplier(op.kind, x, y, count)
                found = multiply_by_quantized_multiplier(centered, *multiplier)
            found = found + y.zero_point
        else:
            count = self._divisor(taps)
            if single:
                centered = (sums - x.zero_point * taps).astype(np.float32)
                found = (
                    np.rint(centered * np.float32(self.slope(taps))).astype(np.int64) + y.zero_point
                )
            else:
                found = np.sign(sums) * ((np.abs(sums) + count // 2) // count)
        return np.clip(found, *self.limits).astype(np.int64)

    def slope(self, taps: int) -> float:
        """Return the slope of the output as a function of the sum; approximate for gemmlowp."""
        op, x, y = self.node.op, self.node.input(0).type, self.node.output.type
        if isinstance(op, Reduce):
            return reduce_scale(op.kind, x, y, op.count(x))
        count = self._divisor(taps)
        if self.node.rounding is Rounding.ONNX:
            return float(average_scale(x, y) / np.float32(count))
        return 1.0 / count

    def finish(self, start: int) -> str | None:
        """Return C of an output from `sum` by the model's own steps, or None if that is impossible.

        Args:
            start: The number by which all sums were increased.
        """
        op, x, y = self.node.op, self.node.input(0).type, self.node.output.type
        if self.varies:
            return None
        taps = self.rows.window * self.columns.window
        centered = offset("sum", -x.zero_point * taps - start)
        if self.node.rounding is Rounding.ONNX:
            ends = [np.asarray([(n - x.zero_point) * taps], np.int64) for n in x.dtype.limits]
            activation = op.activation if isinstance(op, Pool2D) else Activation.NONE
            finish = OutputStage.of(
                self.node, activation, None, (self.slope(taps),), (ends[0], ends[1])
            )
            return finish.output(f"({centered})")
        if not isinstance(op, Reduce):
            return None
        multiplier, shift = reduce_multiplier(op.kind, x, y, taps)
        steps = f"requantize({centered}, {multiplier}, {shift})"
        if -32 < shift < 0:
            steps = f"scale_twice({centered}, {multiplier}, {-shift})"
        return stored(Activation.NONE, y, saturate=True)(offset(steps, y.zero_point))

    def _divisor(self, taps: int) -> int:
        op = self.node.op
        counts = isinstance(op, Pool2D) and op.counts_padding
        return self.rows.window * self.columns.window if counts else taps

    def quotients(
        self, shifts: Iterable[int], *, unit: int = 1, start: int = 0, wraps: bool = False
    ) -> Quotients | None:
        """Return exact products for windows of all `kinds`; None if none were found.

        Args:
            shifts: See `fitted`.
            unit: See `fitted`.
            start: The number that was added to each element.
            wraps: See `fitted`.
        """
        functions = [self._step_function(taps, start) for taps in self.kinds]
        return fitted(functions, self.limits, shifts, unit=unit, wraps=wraps)

    def _step_function(self, taps: int, start: int) -> StepFunction:
        sums = np.arange(-128 * taps, 127 * taps + 1, dtype=np.int64)
        outputs, sums = self.outputs(sums, taps), sums + start * taps
        rises = np.flatnonzero(np.diff(outputs))
        first, last = np.append(0, rises + 1), np.append(rises, len(sums) - 1)
        return StepFunction(sums[first], sums[last], outputs[first], self.slope(taps))


@lru_cache(maxsize=64)
def pooling(node: Node[Pool2D | Reduce]) -> Pooling | Refusal:
    """Return the pooling of a node, or why no assembly kernel serves it."""
    op, x = node.op, node.input(0).type
    if x.dtype is not DType.INT8 or x.quant is None or node.output.type.quant is None:
        return Refusal(f"{op.name} in assembly supports only quantized i8.")
    found = _reduction(node, op) if isinstance(op, Reduce) else _windows(node, op)
    if isinstance(found, Pooling) and not found.is_max and max(found.kinds) > MOST:
        return Refusal(f"{op.name} in assembly supports windows of at most {MOST} elements.")
    return found


def _windows(node: Node[Pool2D | Reduce], op: Pool2D) -> Pooling | Refusal:
    x, y = node.input(0).type, node.output.type
    if op.kind == "sum":
        return Refusal(f"{op.name} in assembly supports only maxima and averages.")
    if op.dilation != (1, 1):
        return Refusal(f"{op.name} in assembly does not support dilation.")
    rows, columns = (
        PoolAxis(x.shape[1 + i], op.window[i], op.stride[i], op.padding[i][0], y.shape[1 + i])
        for i in (0, 1)
    )
    limits = clamp_limits(op.activation, y, node.rounding)
    return _merged(Pooling(node, x.shape[0], x.shape[3], rows, columns, limits))


def _reduction(node: Node[Pool2D | Reduce], op: Reduce) -> Pooling | Refusal:
    x, axes = node.input(0).type, sorted(op.axes)
    if op.kind not in ("mean", "sum", "max"):
        return Refusal(f"{op.name} in assembly supports only means, sums and maxima.")
    if not axes or axes != list(range(axes[0], axes[-1] + 1)) or axes[-1] == len(x.shape) - 1:
        return Refusal(f"{op.name} in assembly supports only adjacent axes before the last axis.")
    images, channels = prod(x.shape[: axes[0]]), prod(x.shape[axes[-1] + 1 :])
    if x.size == 0:
        return Refusal(f"{op.name} in assembly does not support empty tensors.")
    columns = PoolAxis(op.count(x), op.count(x))
    limits = node.output.type.dtype.limits
    return _merged(Pooling(node, images, channels, PoolAxis(1, 1), columns, limits))


def _merged(p: Pooling) -> Pooling:
    """Merge rows into columns, and images into one, where windows allow it."""
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

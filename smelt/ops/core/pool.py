"""Pool2D: the maximum, average or sum of a window that slides over an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, Rounding, TensorType
from smelt.ir.homogeneity import Homogeneity, in_place
from smelt.ir.row_window import RowWindow
from smelt.ops.arithmetic.fixed_point import Activation, clamp_limits
from smelt.ops.case import FLOAT_AND_INT8, Case, Data, onnx_cases
from smelt.ops.constraints import arrays, operands, quantized
from smelt.ops.core.channel_rules import MonotonicChannels
from smelt.ops.core.convolution import (
    NO_PADDING,
    Padding2D,
    Pair,
    is_pointwise,
    padded_rows,
    padded_size,
    patches,
    row_window,
    window_output,
)
from smelt.ops.core.pixel_sums import SUMMED, PixelSums, round_quotient

KINDS = ("max", "average", "sum")


class PoolChannels(MonotonicChannels["Pool2D"]):
    """Channel rule of maxima and averages, which are monotonic in every element."""

    def serves(self, node: Node[Pool2D]) -> bool:
        """Return whether the node has a maximum or average; sums cannot be quantized."""
        return node.op.kind in ("max", "average")


@dataclass(frozen=True)
class Pool2D(Op):
    """Pooling of `[n,h,w,c]`. Padding counts neither for the maximum nor for the average.

    With `counts_padding`, padding counts as zeros, so that an average is over the whole window.
    Quantized averages round the stored integers half away from zero, and keep the quantization of
    the input. With ONNX's rounding, they are rescaled to the output's quantization.
    """

    kind: str
    window: Pair
    stride: Pair = (1, 1)
    padding: Padding2D = NO_PADDING
    activation: Activation = Activation.NONE
    dilation: Pair = (1, 1)
    counts_padding: bool = False

    sixteen_bits = True
    channel_rule = PoolChannels()

    @property
    @override
    def fused_activation(self) -> Activation:
        return self.activation

    @override
    def with_activation(self, activation: Activation) -> Op:
        return replace(self, activation=activation)

    @property
    @override
    def name(self) -> str:
        return f"Pool2D({self.kind})"

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        if self.kind not in KINDS:
            raise ModelError(f"there is no pooling '{self.kind}'; the kinds are {', '.join(KINDS)}")
        (x,) = operands(self, inputs, 1)
        if len(x.shape) != 4:
            raise ModelError(f"{self.name} needs [n,h,w,c], got {x}")
        if min(*self.window, *self.stride, *self.dilation) < 1:
            raise ModelError(
                f"{self.name} has window {self.window}, stride {self.stride} and dilation "
                f"{self.dilation}; all must be at least 1"
            )
        n, h, w, c = x.shape
        spatial = window_output((h, w), self.window, self.stride, self.padding, self.dilation)
        if min(map(min, self.padding)) < 0 or any(0 in self.covered(axis, x) for axis in (0, 1)):
            raise ModelError(
                f"{self.name} of {x} has padding {self.padding} with window {self.window}; it must "
                "be at least 0, and no window may lie in it completely"
            )
        return (TensorType((n, *spatial, c), x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        served = () if self.kind == "sum" else (DType.INT8, DType.UINT8, DType.INT16)
        if not quantized(node, served):
            return
        x, y = node.input(0).type, node.output.type
        if self.scales(node):
            return
        if abs(x.scale - y.scale) > 1e-6 or x.zero_point != y.zero_point:
            raise ModelError(
                f"{node.origin}: {self.name} keeps the quantization of its input, but the input "
                f"has {x.quant} and the output {y.quant}"
            )

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        y = node.output.type
        low, high = self.activation.limits
        if y.quant is not None:
            low, high = clamp_limits(self.activation, y, node.rounding)
        if self.kind == "max":
            lowest = -np.inf if y.dtype.is_float else y.dtype.limits[0]
            windows = self._patches(x, lowest)
            return (np.clip(windows.max(axis=(3, 4)), low, high).astype(y.dtype.numpy),)
        if self.scales(node):
            centered = x.astype(np.int64) - node.input(0).type.zero_point
            total = self._patches(centered, 0).sum(axis=(3, 4)).astype(np.float32)
            count = self.counts(node.input(0).type).astype(np.float32)
            scaled = np.rint(total * (average_scale(node.input(0).type, y) / count))
            return (np.clip(scaled + y.zero_point, low, high).astype(y.dtype.numpy),)
        wide = np.float64 if y.dtype.is_float else np.int64
        total = self._patches(x.astype(wide), 0).sum(axis=(3, 4))
        if self.kind == "average":
            count = self.counts(node.input(0).type)
            total = total / count if y.dtype.is_float else round_quotient(total, count)
        return (np.clip(total, low, high).astype(y.dtype.numpy),)

    def overhead(self, node: Node) -> int:
        """Return the elements of all windows and of the padded input."""
        windows = node.output.type.size * prod(self.window)
        return windows + padded_size(node.input(0).type, self.padding)

    def scales(self, node: Node) -> bool:
        """Return whether the node averages stored integers and rescales the averages."""
        average = self.kind == "average" and node.output.type.is_quantized
        return average and node.rounding is Rounding.ONNX

    def _patches(self, x: Array, fill: int | float) -> Array:
        return patches(x, self.window, self.stride, self.padding, self.dilation, fill)

    def counts(self, x: TensorType) -> Array:
        """Return the divisor of each window's sum for its average: int64 `[1,oh,ow,1]`."""
        if self.counts_padding:
            return np.full((1, 1, 1, 1), self.window[0] * self.window[1], np.int64)
        return np.outer(self.covered(0, x), self.covered(1, x))[None, :, :, None]

    def covered(self, axis: int, x: TensorType) -> Array:
        """Return how many rows (`axis` 0) or columns (1) of the image are in each window: int64."""
        (before, after), size = self.padding[axis], x.shape[1 + axis]
        window, dilation = self.window[axis], self.dilation[axis]
        starts = np.arange(-before, size + after - (window - 1) * dilation, self.stride[axis])
        return taps_within(starts, window, dilation, (0, size))

    @override
    def selects(self, node: Node) -> int:
        """Return 1 for a maximum, which is an element of the operand."""
        return int(self.kind == "max" and self.activation is Activation.NONE)

    @override
    def grows(self, node: Node) -> bool:
        """Return whether this is a sum."""
        return self.kind == "sum"

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return the rule: a channel's factor moves through, as channels are pooled separately."""
        return (Homogeneity(in_place(node)),) if self.activation.is_homogeneous else ()

    @override
    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether each output row depends on the input row of the same index alone."""
        return is_pointwise(axes[0], self.window, self.stride, self.padding)

    @override
    def row_window(self, node: Node, axis: int) -> RowWindow | None:
        return row_window(axis, self.window, self.stride, self.padding, self.dilation)

    @override
    def with_row_padding(self, axis: int, before: int, after: int) -> Op:
        return replace(self, padding=padded_rows(self.padding, axis, before, after))

    @override
    def row_sums(self, node: Node, *, last: bool) -> Op | None:
        x = node.input(0).type
        _, height, width, _ = x.shape
        whole = Pool2D("average", (height, width), self.stride, activation=self.activation)
        if self != whole or x.dtype not in SUMMED or self.scales(node) or x.shape[0] != 1:
            return None
        count = prod(self.window)
        if count * max(map(abs, x.dtype.limits)) >= 1 << 31:
            return None
        return PixelSums(count, self.activation) if last else PixelSums()

    def is_identity(self, node: Node) -> bool:
        """Return whether windows are single elements and nothing is clamped or requantized."""
        single = (self.window, self.stride, self.padding) == ((1, 1), (1, 1), NO_PADDING)
        return (
            single and self.activation is Activation.NONE and node.input(0).type == node.output.type
        )


def average_scale(x: TensorType, y: TensorType) -> np.float32:
    """Return the factor of an average of stored integers, with ONNX's rounding."""
    return np.float32(x.scale) / np.float32(y.scale)


def taps_within(starts: Array, window: int, dilation: int, limits: Pair) -> Array:
    """Return how many taps of windows that begin at `starts` are in [low, high): int64 `[o]`."""
    first, end = (np.clip(-((starts - bound) // dilation), 0, window) for bound in limits)
    return end - first


def _case(
    name: str,
    x: Data,
    window: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding2D = NO_PADDING,
    activation: Activation = Activation.NONE,
    dilation: Pair = (1, 1),
    counts_padding: bool = False,
) -> tuple[Case, ...]:
    fields = (window, stride or window, padding, activation, dilation, counts_padding)
    return tuple(
        Case(
            f"{kind}_{name}",
            Pool2D(kind, *fields),
            (x,),
            (DType.FLOAT32,) if kind == "sum" else FLOAT_AND_INT8,
        )
        for kind in KINDS
    )


_CASES = (
    *_case("2x2", Data((1, 6, 4, 8)), (2, 2)),
    *_case("odd_channels", Data((1, 5, 5, 3)), (2, 2)),
    *_case("whole_image", Data((1, 5, 3, 7)), (5, 3)),
    *_case("overlapping", Data((1, 7, 6, 5)), (3, 3), stride=(1, 2)),
    *_case("same_3x3", Data((1, 5, 6, 4)), (3, 3), stride=(1, 1), padding=((1, 1), (1, 1))),
    *_case("same_odd", Data((1, 5, 7, 2)), (2, 2), padding=((0, 1), (0, 1))),
    *_case("asymmetric", Data((1, 6, 5, 2)), (3, 2), stride=(2, 1), padding=((0, 2), (1, 0))),
    *_case("row", Data((1, 1, 9, 4)), (1, 4), stride=(1, 2)),
    *_case("batch", Data((2, 4, 4, 3)), (2, 2)),
    *_case("pixel", Data((1, 4, 4, 3)), (1, 1), stride=(2, 2)),
    *_case("relu", Data((1, 4, 4, 3), -2.0, 1.0), (2, 2), activation=Activation.RELU),
    *_case("relu6", Data((1, 4, 4, 3), -4.0, 12.0), (2, 2), activation=Activation.RELU6),
    *_case(
        "dilated",
        Data((1, 7, 8, 5)),
        (3, 2),
        stride=(2, 1),
        padding=((2, 1), (1, 1)),
        dilation=(2, 3),
    ),
    *_case("dilated_columns", Data((1, 4, 9, 3)), (1, 3), stride=(1, 2), dilation=(1, 2)),
    *_case(
        "padding_counts",
        Data((1, 5, 6, 3)),
        (3, 3),
        stride=(2, 2),
        padding=((1, 1), (1, 2)),
        counts_padding=True,
    ),
    *_case("large_window", Data((1, 16, 16, 2), -0.01, 5.0), (13, 11), stride=(3, 5)),
)
CASES = _CASES + onnx_cases(
    _CASES, "average_2x2", "average_same_3x3", "average_relu6", "average_whole_image", "max_2x2"
)

"""Pool2D: largest or average value in a window that slides over an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, quantized
from smelt.ops.convolution import NO_PADDING, Padding2D, Pair, patches, window_output
from smelt.ops.fixed_point import Activation, clamp_limits

KINDS = ("max", "average")


@dataclass(frozen=True)
class Pool2D(Op):
    """Pooling of `[n,h,w,c]`; padded positions count neither for the maximum nor the average.

    Quantized averages round half away from zero on the stored integers; the output keeps the
    input's quantization.
    """

    kind: str
    window: Pair
    stride: Pair = (1, 1)
    padding: Padding2D = NO_PADDING
    activation: Activation = Activation.NONE

    @property
    def name(self) -> str:
        """See `Op.name`."""
        return f"Pool2D({self.kind})"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """See `Op.infer`."""
        if self.kind not in KINDS:
            raise ModelError(f"there is no pooling '{self.kind}'; see {KINDS}")
        (x,) = operands(self, inputs, 1)
        if len(x.shape) != 4:
            raise ModelError(f"{self.name} needs [n,h,w,c], got {x}")
        if min(*self.window, *self.stride) < 1:
            raise ModelError(f"{self.name} has window {self.window} and stride {self.stride}")
        for pads, size in zip(self.padding, self.window, strict=True):
            if min(pads) < 0 or max(pads) >= size:
                raise ModelError(
                    f"{self.name} has padding {self.padding} that holds a whole window of "
                    f"{self.window}"
                )
        n, h, w, c = x.shape
        spatial = window_output((h, w), self.window, self.stride, self.padding)
        return (TensorType((n, *spatial, c), x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """The input's."""
        return operands(self, inputs, 1)[0].quant

    def check(self, node: Node) -> None:
        """See `Op.check`."""
        if not quantized(node, (DType.INT8, DType.INT16)):
            return
        x, y = node.input(0).type, node.output.type
        if abs(x.scale - y.scale) > 1e-6 or x.zero_point != y.zero_point:
            raise ModelError(
                f"{node.origin}: {self.name} keeps the quantization, but its input has {x.quant} "
                f"and its output {y.quant}"
            )

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """See `Op.reference`."""
        (x,) = arrays(node, inputs, 1)
        y = node.output.type
        low, high = self.activation.limits if y.quant is None else clamp_limits(self.activation, y)
        if self.kind == "max":
            lowest = -np.inf if y.dtype.is_float else y.dtype.limits[0]
            windows = patches(x, self.window, self.stride, self.padding, (1, 1), lowest)
            return (np.clip(windows.max(axis=(3, 4)), low, high).astype(y.dtype.numpy),)
        wide = np.float64 if y.dtype.is_float else np.int64
        windows = patches(x.astype(wide), self.window, self.stride, self.padding, (1, 1), 0)
        total, count = windows.sum(axis=(3, 4)), self.counts(x.shape)
        mean = total / count if y.dtype.is_float else _round_quotient(total, count)
        return (np.clip(mean, low, high).astype(y.dtype.numpy),)

    def counts(self, shape: Sequence[int]) -> Array:
        """How many input pixels each window covers: int64 `[1,oh,ow,1]`."""
        ones = np.ones((1, shape[1], shape[2], 1), np.int64)
        windows = patches(ones, self.window, self.stride, self.padding, (1, 1), 0)
        return windows.sum(axis=(3, 4))


def _round_quotient(total: Array, count: Array) -> Array:
    """`total / count`, ties away from zero."""
    magnitude = (np.abs(total) + count // 2) // count
    return np.where(total > 0, magnitude, -magnitude)


def _case(
    name: str,
    x: Data,
    window: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding2D = NO_PADDING,
    activation: Activation = Activation.NONE,
) -> tuple[Case, ...]:
    fields = (window, stride or window, padding, activation)
    return tuple(Case(f"{kind}_{name}", Pool2D(kind, *fields), (x,)) for kind in KINDS)


CASES = (
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
    *_case("large_window", Data((1, 16, 16, 2), -0.01, 5.0), (13, 11), stride=(3, 5)),
)

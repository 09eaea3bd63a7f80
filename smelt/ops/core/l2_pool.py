"""L2Pool2D: the root mean square of a window that slides over an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, quantized
from smelt.ops.core.convolution import (
    NO_PADDING,
    Padding2D,
    Pair,
    is_pointwise,
    padded_size,
    patches,
    window_output,
)


@dataclass(frozen=True)
class L2Pool2D(Op):
    """Pooling of images `[n,h,w,c]`. Padding does not count in the mean."""

    window: Pair
    stride: Pair = (1, 1)
    padding: Padding2D = NO_PADDING
    activation: Activation = Activation.NONE

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of an image with a pixel for each window of the operand."""
        (x,) = operands(self, inputs, 1)
        if len(x.shape) != 4 or x.dtype is not DType.FLOAT32:
            raise ModelError(f"{self.name} needs float32 [n,h,w,c], got {x}")
        if min(*self.window, *self.stride) < 1:
            raise ModelError(
                f"{self.name} has window {self.window} and stride {self.stride}; both must be at "
                "least 1"
            )
        for size, pair in zip(self.window, self.padding, strict=True):
            if min(pair) < 0 or max(pair) >= size:
                raise ModelError(
                    f"{self.name} has padding {self.padding}; it must be at least 0 and smaller "
                    f"than the window {self.window}"
                )
        n, height, width, channels = x.shape
        spatial = window_output((height, width), self.window, self.stride, self.padding)
        return (TensorType((n, *spatial, channels), x.dtype),)

    def check(self, node: Node) -> None:
        """Check that nothing is quantized."""
        quantized(node, ())

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """Compute in double precision."""
        (x,) = arrays(node, inputs, 1)
        wide = x.astype(np.float64)
        with np.errstate(over="ignore"):
            root = np.sqrt(self._sums(wide * wide) / self._sums(np.ones_like(wide)))
            return (np.clip(root, *self.activation.limits).astype(np.float32),)

    def _sums(self, x: Array) -> Array:
        windows = patches(x, self.window, self.stride, self.padding, (1, 1), 0)
        return np.asarray(windows.sum(axis=(3, 4)))

    def overhead(self, node: Node) -> int:
        """Return the elements of all windows and of the padded input, each used twice."""
        windows = node.output.type.size * prod(self.window)
        return 2 * (windows + padded_size(node.input(0).type, self.padding))

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether windows are one element high, or wide, along the axis of rows."""
        return is_pointwise(axes[0], self.window, self.stride, self.padding)


_FLOAT = (DType.FLOAT32,)
_AROUND = ((1, 1), (0, 1))

CASES = (
    Case("valid", L2Pool2D((2, 3)), (Data((1, 5, 6, 3)),), _FLOAT),
    Case("padded", L2Pool2D((3, 2), (2, 1), _AROUND), (Data((2, 6, 5, 5)),), _FLOAT),
    Case(
        "relu6",
        L2Pool2D((2, 2), (2, 2), activation=Activation.RELU6),
        (Data((1, 4, 4, 2), -9, 9),),
        _FLOAT,
    ),
    Case("pointwise", L2Pool2D((1, 1)), (Data((2, 3, 3, 2)),), _FLOAT),
    Case("whole", L2Pool2D((4, 5)), (Data((1, 4, 5, 7)),), _FLOAT),
)

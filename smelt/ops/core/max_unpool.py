"""MaxPoolIndices (maxima of windows and their indices) and MaxUnpool, its inverse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ir.budget import OPERATOR
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, quantized
from smelt.ops.core.convolution_nd import Pairs

_MOST_TAPS = 1 << 24
"""Largest total number of taps of the windows along an axis."""


@dataclass(frozen=True)
class MaxPoolIndices(Op):
    """Largest elements of windows over all axes after the first two, and their indices.

    The input `[n,c,*size]` has two results `[n,c,*out]`: the maxima, and the index (int64) of the
    first such element in the flattened input. Padding is never a maximum. With `column_major`,
    elements of a plane `[*size]` are numbered with its first axis innermost.
    """

    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    column_major: bool = False

    index_outputs = (0,)

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        fields = (self.window, self.stride, self.padding, self.dilation)
        rank = len(x.shape) - 2
        if rank < 1 or any(len(f) != rank for f in fields) or x.size == 0:
            raise ModelError(
                f"MaxPoolIndices of {x} needs an input with elements and an axis to pool along, "
                f"and an entry for each such axis in window, stride, padding and dilation; has "
                f"{fields}"
            )
        if min(*self.window, *self.stride, *self.dilation) < 1 or min(map(min, self.padding)) < 0:
            raise ModelError(
                f"MaxPoolIndices of {x} has window {self.window}, stride {self.stride} and "
                f"dilation {self.dilation}, which must be at least 1, and padding {self.padding}, "
                "which must be at least 0"
            )
        if not (x.dtype.is_float or x.dtype.is_integer):
            raise ModelError(f"MaxPoolIndices does not support element type {x.dtype.value} ({x})")
        windows = [
            (n + sum(p)) // s + 1
            for n, p, s in zip(x.shape[2:], self.padding, self.stride, strict=True)
        ]
        if max(n * k for n, k in zip(windows, self.window, strict=True)) > _MOST_TAPS:
            raise ModelError(
                f"MaxPoolIndices of {x}: window {self.window} with stride {self.stride} and "
                f"padding {self.padding} has more than {_MOST_TAPS:,} taps along an axis"
            )
        size = tuple(len(self.taps(axis, n)) for axis, n in enumerate(x.shape[2:]))
        covered = (
            ((taps >= 0) & (taps < n)).any(axis=1).all()
            for n, taps in ((n, self.taps(axis, n)) for axis, n in enumerate(x.shape[2:]))
        )
        if min(size) < 1 or not all(covered):
            raise ModelError(
                f"MaxPoolIndices of {x}: a window {self.window} with padding {self.padding} and "
                f"dilation {self.dilation} contains no element of the input"
            )
        shape = (*x.shape[:2], *size)
        return TensorType(shape, x.dtype), TensorType(shape, DType.INT64)

    def taps(self, axis: int, size: int) -> Array:
        """Return the positions that each window reads along an axis: int64 `[o, k]`."""
        (before, after), step = self.padding[axis], self.dilation[axis]
        last = size + after - (self.window[axis] - 1) * step
        starts = np.arange(-before, last, self.stride[axis])
        return starts[:, None] + np.arange(self.window[axis]) * step

    @override
    def check(self, node: Node) -> None:
        quantized(node, ())

    def overhead(self, node: Node) -> int:
        """Return the elements of all windows, plus a fixed cost for each window."""
        _, _, *size = node.outputs[0].type.shape
        windows = node.outputs[0].type.size * prod(self.window)
        return prod(size) * OPERATOR + windows

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        values, indices = (np.zeros(v.type.shape, v.type.dtype.numpy) for v in node.outputs)
        size = x.shape[2:]
        flat = np.arange(x.size).reshape(x.shape)
        if self.column_major:
            order = (0, 1, *range(x.ndim - 1, 1, -1))
            flat = flat.reshape([x.shape[axis] for axis in order]).transpose(order)
        taps = [self.taps(axis, n) for axis, n in enumerate(size)]
        for place in product(*(range(len(t)) for t in taps)):
            own = [
                t[p][(t[p] >= 0) & (t[p] < n)] for t, p, n in zip(taps, place, size, strict=True)
            ]
            window = (slice(None), slice(None), *np.ix_(*own))
            seen = x[window].reshape(*x.shape[:2], -1)
            best = seen.argmax(axis=2)[..., None]
            at = (..., *place)
            values[at] = np.take_along_axis(seen, best, 2)[..., 0]
            indices[at] = np.take_along_axis(flat[window].reshape(seen.shape), best, 2)[..., 0]
        return values, indices


@dataclass(frozen=True)
class MaxUnpool(Op):
    """Elements written to their indices (int64) in a flattened tensor of `shape`; zeros elsewhere.

    If an index occurs twice, the later element is stored. Indices outside of the tensor are
    ignored.
    """

    shape: tuple[int, ...]

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, indices = operands(self, inputs, 2)
        if indices.shape != x.shape or indices.dtype is not DType.INT64:
            raise ModelError(
                f"MaxUnpool of {x} has indices {indices}; they must be i64 with the input's shape"
            )
        if min(self.shape, default=1) < 1:
            raise ModelError(
                f"MaxUnpool has output shape {list(self.shape)}; every size must be at least 1"
            )
        return (TensorType(self.shape, x.dtype),)

    @override
    def check(self, node: Node) -> None:
        quantized(node, ())

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, indices = arrays(node, inputs, 2)
        y = np.zeros(node.output.type.size, x.dtype)
        inside = (indices >= 0) & (indices < y.size)
        y[indices[inside]] = x[inside]
        return (y.reshape(self.shape),)


_PLAIN = (DType.FLOAT32, DType.UINT8, DType.INT8)

CASES = (
    *(
        Case(name, op, (Data(shape, -50.0, 50.0),), _PLAIN, plain=True)
        for name, op, shape in (
            ("2x2", MaxPoolIndices((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1)), (2, 3, 4, 6)),
            ("padded", MaxPoolIndices((3, 3), (2, 1), ((1, 1), (1, 0)), (1, 1)), (1, 2, 5, 6)),
            ("dilated", MaxPoolIndices((2, 3), (1, 1), ((0, 0), (1, 2)), (2, 2)), (1, 1, 4, 6)),
            ("vector", MaxPoolIndices((3,), (2,), ((1, 0),), (1,)), (2, 2, 7)),
            (
                "volume",
                MaxPoolIndices((2, 1, 2), (1, 1, 2), ((0, 0), (0, 0), (0, 1)), (1, 1, 1)),
                (1, 2, 3, 2, 3),
            ),
            (
                "column_major",
                MaxPoolIndices((2, 2), (1, 1), ((0, 1), (0, 0)), (1, 1), True),
                (2, 2, 3, 4),
            ),
        )
    ),
    Case(
        "double",
        MaxUnpool((1, 2, 4, 4)),
        (Data((1, 2, 2, 2)), Data((1, 2, 2, 2), -3, 40, DType.INT64)),
        _PLAIN,
        plain=True,
    ),
)

"""Resample: changes the size of one axis, using a table of positions and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ir.axes import Axes, of_first
from smelt.ops.case import FLOAT_AND_INT8, Case, Constant, Data
from smelt.ops.constraints import arrays, axis_in_range, operands, same_quant


@dataclass(frozen=True)
class Resample(Op):
    """Weighted sums of elements along `axis`; every interpolation can be expressed by them.

    Operands: the data, of any shape; positions `i32[o,t]` along the axis; weights `f32[o,t]`. There
    are no weights if each output is a copy (t = 1). An output with -1 as its first position has the
    stored value `fill`.
    """

    axis: int
    fill: float = 0.0

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, positions = operands(self, inputs, 2)
        weights = inputs[2] if len(inputs) > 2 else None
        axis_in_range(self, self.axis, len(x.shape))
        if x.size == 0 or len(positions.shape) != 2 or positions.size == 0:
            raise ModelError(
                f"Resample needs data with elements and positions [outputs, taps], got {x} and "
                f"{positions}"
            )
        if positions.dtype is not DType.INT32:
            raise ModelError(f"Resample has positions {positions}; they must be i32")
        if weights is None and positions.shape[1] != 1:
            raise ModelError(
                f"Resample has {positions.shape[1]} positions for each output, but no weights"
            )
        if weights is not None:
            if weights.shape != positions.shape or weights.dtype is not DType.FLOAT32:
                raise ModelError(
                    f"Resample has weights {weights} for positions {positions}; they must be f32 "
                    "of the same shape"
                )
            if x.dtype is not DType.FLOAT32:
                raise ModelError(f"Resample with weights does not support {x}; it needs f32")
        shape = (*x.shape[: self.axis], positions.shape[0], *x.shape[self.axis + 1 :])
        return (TensorType(shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        same_quant(node)
        positions = node.input(1).data
        size = node.input(0).type.shape[self.axis]
        if positions is not None and (positions.min() < -1 or positions.max() >= size):
            raise ModelError(
                f"{node.origin}: Resample has positions from {positions.min()} to "
                f"{positions.max()}, but its axis has {size} elements"
            )

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, positions = arrays(node, inputs, 2)
        weights = inputs[2] if len(inputs) > 2 else None
        outside = positions[:, 0] < 0
        taken = np.moveaxis(x, self.axis, -1)[..., np.where(positions < 0, 0, positions)]
        if weights is None:
            result = taken[..., 0]
        else:
            result = (taken.astype(np.float64) * weights).sum(axis=-1)
        if outside.any():
            result = np.where(outside, self.fill, result)
        return (np.ascontiguousarray(np.moveaxis(result, -1, self.axis).astype(x.dtype)),)

    def selects(self, node: Node) -> int:
        """Return 1 if all outputs are copies of elements."""
        positions = node.input(1).data
        copies = node.optional(2) is None
        return int(copies and positions is not None and bool((positions >= 0).all()))

    def objection(self, node: Node) -> str | None:
        """Return why Resample cannot be quantized: if it may use `fill`."""
        filled = node.input(1).data is None or node.input(1).array.min() < 0
        return "Resample fills with the stored value 0, which is not real 0" if filled else None

    def axes_rule(self, node: Node) -> Axes:
        """Return that data and result have the same axes, and the tables have none."""
        return of_first(node, lambda order: replace(self, axis=order.index(self.axis)))


def _table(values: Sequence[Sequence[float]], dtype: DType) -> Constant:
    flat = tuple(v for row in values for v in row)
    return Constant(flat, (len(values), len(values[0])), dtype)


_PAIRS = ((0, 0), (0, 1), (1, 2), (2, 2), (3, 1))
_HALVES = ((1.0, 0.0), (0.25, 0.75), (0.5, 0.5), (-0.5, 1.5), (0.125, 0.875))
_CUBES = ((0, 1, 2, 3), (-1, -1, -1, -1), (2, 2, 3, 3))
_CUBIC = ((-0.1, 0.6, 0.6, -0.1), (0.0, 0.0, 0.0, 0.0), (-0.03, 0.2, 0.9, -0.07))
_FLOAT = (DType.FLOAT32,)

CASES = (
    *(
        Case(
            f"pairs_{name}",
            Resample(axis),
            (Data(shape), _table(_PAIRS, DType.INT32), _table(_HALVES, DType.FLOAT32)),
            _FLOAT,
        )
        for name, shape, axis in (
            ("rows", (2, 4, 3, 5), 1),
            ("columns", (1, 3, 4, 6), 2),
            ("last", (3, 4), 1),
            ("vector", (4,), 0),
        )
    ),
    Case(
        "filled",
        Resample(1, 2.5),
        (Data((2, 4, 7)), _table(_CUBES, DType.INT32), _table(_CUBIC, DType.FLOAT32)),
        _FLOAT,
    ),
    *(
        Case(
            f"copies_{name}",
            Resample(axis, fill),
            (Data(shape), Constant(positions, (len(positions), 1), DType.INT32)),
            FLOAT_AND_INT8 if fill == 0 else (DType.FLOAT32,),
        )
        for name, shape, axis, positions, fill in (
            ("rows", (1, 3, 2, 5), 1, (0, 0, 1, 1, 2, 2), 0.0),
            ("last", (2, 5), 1, (4, 2, 0), 0.0),
            ("filled", (2, 3, 4), 1, (-1, 2, 0, -1), 1.0),
        )
    ),
    Case(
        "wide",
        Resample(0),
        (Data((3, 2), -99.0, 99.0), Constant((2, 0, 1, 1), (4, 1), DType.INT32)),
        (DType.INT64, DType.UINT8, DType.BOOL),
        plain=True,
    ),
)

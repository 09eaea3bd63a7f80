"""Reduce: mean, sum, extremum or product over some axes; one table row a kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ops.case import FLOAT_AND_INT8, Case, Data
from smelt.ops.constraints import (
    arrays,
    axis_in_range,
    operands,
    quantized,
    same_quant,
    symmetric_int16,
    tflm_rounding,
)
from smelt.ops.fixed_point import multiply_by_quantized_multiplier, quantize_multiplier, wrap_int32

_INT8, _INT8_INT16 = (DType.INT8,), (DType.INT8, DType.INT16)


@dataclass(frozen=True)
class ReduceKind:
    """A row of the table: `dtypes` are served quantized (none: float only).

    `rescales` is False where a stored integer is merely selected.
    """

    real: Callable[..., Array]
    dtypes: tuple[DType, ...] = _INT8_INT16
    rescales: bool = True


REDUCE: dict[str, ReduceKind] = {
    "mean": ReduceKind(np.mean),
    "sum": ReduceKind(np.sum),
    "max": ReduceKind(np.max, _INT8, rescales=False),
    "min": ReduceKind(np.min, _INT8, rescales=False),
    "prod": ReduceKind(np.prod, ()),
}


def reduce_multiplier(kind: str, x: TensorType, y: TensorType, count: int) -> tuple[int, int]:
    """Multiplier and left shift that bring a sum of `count` elements to the output.

    A mean's multiplier is first shifted left by floor(log2 count), then divided by `count` and
    truncated, so that few bits are lost.
    """
    multiplier, shift = quantize_multiplier(x.scale / y.scale)
    if kind != "mean":
        return multiplier, shift
    bits = min(count.bit_length() - 1, 32, 31 + shift)
    return (multiplier << bits) // count, shift - bits


@dataclass(frozen=True)
class Reduce(Op):
    """Reduction over `axes` (not negative, each once); `kind` is in `REDUCE`.

    Reduced axes stay with size 1 where `keep_dims`.
    """

    kind: str
    axes: tuple[int, ...]
    keep_dims: bool = False

    @property
    def name(self) -> str:
        """See `Op.name`."""
        return f"Reduce({self.kind})"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """See `Op.infer`."""
        if self.kind not in REDUCE:
            raise ModelError(f"there is no reduction '{self.kind}'; see {sorted(REDUCE)}")
        (x,) = operands(self, inputs, 1)
        for axis in self.axes:
            axis_in_range(self, axis, len(x.shape))
        if len(set(self.axes)) != len(self.axes):
            raise ModelError(f"{self.name} names an axis twice: {self.axes}")
        if x.dtype is DType.BOOL or x.size == 0:
            raise ModelError(f"{self.name} cannot be computed on {x}")
        if self.keep_dims:
            shape = tuple(1 if i in self.axes else n for i, n in enumerate(x.shape))
        else:
            shape = tuple(n for i, n in enumerate(x.shape) if i not in self.axes)
        return (TensorType(shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """The input's, where stored integers are merely selected."""
        (x,) = operands(self, inputs, 1)
        return None if REDUCE[self.kind].rescales else x.quant

    def check(self, node: Node) -> None:
        """See `Op.check`."""
        row = REDUCE[self.kind]
        if not quantized(node, row.dtypes):
            return
        symmetric_int16(node)
        if row.rescales:
            tflm_rounding(node)
        else:
            same_quant(node)

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """See `Op.reference`."""
        (x,) = arrays(node, inputs, 1)
        y, row = node.output.type, REDUCE[self.kind]
        if y.quant is None or not row.rescales:
            wide = np.float64 if y.dtype.is_float else np.int64
            result = np.asarray(row.real(x.astype(wide), axis=self.axes, keepdims=self.keep_dims))
            if not y.dtype.is_float:
                result = np.trunc(result)
            return (np.asarray(result, y.dtype.numpy),)
        source = node.input(0).type
        count = self.count(source)
        total = np.asarray(x.astype(np.int64).sum(axis=self.axes, keepdims=self.keep_dims))
        centred = wrap_int32(total - source.zero_point * count)
        multiplier = reduce_multiplier(self.kind, source, y, count)
        result = multiply_by_quantized_multiplier(centred, *multiplier) + y.zero_point
        return (np.asarray(np.clip(result, *y.dtype.limits), y.dtype.numpy),)

    def count(self, x: TensorType) -> int:
        """How many elements of `x` make one of the output."""
        return prod(x.shape[axis] for axis in self.axes)


def _case(kind: str, name: str, x: Data, axes: tuple[int, ...], *, keep: bool = False) -> Case:
    dtypes = FLOAT_AND_INT8 if REDUCE[kind].dtypes else (DType.FLOAT32,)
    return Case(f"{kind}_{name}", Reduce(kind, axes, keep), (x,), dtypes)


CASES = (
    *(
        _case(kind, name, x, axes, keep=keep)
        for kind in REDUCE
        for name, x, axes, keep in (
            ("image", Data((1, 5, 4, 7)), (1, 2), False),
            ("image_kept", Data((1, 3, 5, 4)), (1, 2), True),
            ("channels", Data((1, 3, 4, 5), -0.5, 3.0), (3,), False),
            ("rows", Data((2, 6, 3)), (1,), True),
            ("outer", Data((3, 2, 5)), (0,), False),
            ("apart", Data((3, 2, 5, 2)), (0, 2), False),
            ("everything", Data((2, 3, 3), -6.0, 0.0), (0, 1, 2), False),
            ("vector", Data((13,), 0.0, 4.0), (0,), True),
            ("one_element", Data((1, 1, 1, 6)), (1, 2), False),
        )
    ),
    _case("mean", "many", Data((1, 17, 19, 3), -100.0, 0.1), (1, 2)),
    _case("sum", "many", Data((1, 17, 19, 3), -0.01, 0.001), (1, 2)),
)

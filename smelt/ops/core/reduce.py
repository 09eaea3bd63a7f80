"""Reduce: mean, sum, extremum, product or norm over some axes, from a table of kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, Rounding, TensorType
from smelt.ir.axes import Axes, positions_after, reduced
from smelt.ir.homogeneity import Homogeneity, in_place, together
from smelt.ops.arithmetic.fixed_point import (
    WORD,
    Requantizer,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    rescale_multiplier,
    wrap_int32,
)
from smelt.ops.case import FLOAT_AND_INT8, Case, Data
from smelt.ops.constraints import (
    arrays,
    axis_in_range,
    operands,
    quantized,
    requantizing_rounding,
    same_quant,
    symmetric_int16,
)
from smelt.ops.core.channel_rules import MonotonicChannels

_INT8, _INT8_INT16 = (DType.INT8,), (DType.INT8, DType.INT16)


RealReduction = Callable[[Array, tuple[int, ...], bool], Array]
"""Reduces an array over axes; if the last argument is True, these axes stay with size 1."""


def _sum(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return np.asarray(np.sum(x, axis=axes, keepdims=keep))


def _mean(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    """Return the mean; a mean of integers is truncated."""
    mean = _sum(x, axes, keep) / np.float64(prod(x.shape[axis] for axis in axes))
    return mean if x.dtype.kind == "f" else np.trunc(mean)


def _extremum(function: Callable[..., Array], bound: int) -> RealReduction:
    """Return a reduction to an extremum.

    For no elements, its result is the type's smallest (`bound` 0) or largest (1) number.
    """

    def compute(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
        if x.dtype.kind == "f":
            first = (-np.inf, np.inf)[bound]
        else:
            first = bound if x.dtype.kind == "b" else DType.of(x).limits[bound]
        return function(x, axis=axes, keepdims=keep, initial=first)

    return compute


def _log_sum_exp(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    greatest = _extremum(np.max, 0)(x, axes, True)
    pivot = np.where(np.isfinite(greatest), greatest, 0)
    sums = np.log(_sum(np.exp(x - pivot), axes, True)) + pivot
    return sums if keep else sums.squeeze(axes)


@dataclass(frozen=True)
class ReduceKind:
    """A row of the table.

    Attributes:
        real: computes floats (as float64) and unquantized integers (as 64-bit integers).
        dtypes: the supported element types of quantized tensors.
        rescales: False if the result is one of the stored elements, so that nothing is rescaled.
        integers: whether unquantized integers are supported.
        neutral: name of the neutral element, in `smelt.ops.control.run_time_length.FILLS`.
    """

    real: RealReduction
    dtypes: tuple[DType, ...] = ()
    rescales: bool = True
    integers: bool = True
    neutral: str = "zero"


REDUCE: dict[str, ReduceKind] = {
    "mean": ReduceKind(_mean, _INT8_INT16),
    "sum": ReduceKind(_sum, _INT8_INT16),
    "max": ReduceKind(_extremum(np.max, 0), _INT8, rescales=False, neutral="lowest"),
    "min": ReduceKind(_extremum(np.min, 1), _INT8, rescales=False, neutral="highest"),
    "prod": ReduceKind(lambda x, axes, keep: np.prod(x, axis=axes, keepdims=keep), neutral="one"),
    "l1": ReduceKind(lambda x, axes, keep: _sum(np.abs(x), axes, keep)),
    "l2": ReduceKind(lambda x, axes, keep: np.sqrt(_sum(x * x, axes, keep)), integers=False),
    "log_sum": ReduceKind(lambda x, axes, keep: np.log(_sum(x, axes, keep)), integers=False),
    "log_sum_exp": ReduceKind(_log_sum_exp, integers=False, neutral="lowest"),
    "sum_square": ReduceKind(lambda x, axes, keep: _sum(x * x, axes, keep)),
}


def reduce_multiplier(kind: str, x: TensorType, y: TensorType, count: int) -> tuple[int, int]:
    """Return multiplier and left shift that rescale a sum of `count` elements to the output.

    For a mean, the multiplier is shifted left by floor(log2 count) before it is divided by `count`
    and truncated, so that few bits are lost.
    """
    if kind != "mean":
        return rescale_multiplier(x.scale / y.scale)
    multiplier, shift = quantize_multiplier(x.scale / y.scale)
    bits = min(count.bit_length() - 1, 32, 31 + shift)
    shift -= bits
    return ((multiplier << bits) // count, shift) if shift < WORD else (0, 0)


def reduce_scale(kind: str, x: TensorType, y: TensorType, count: int) -> float:
    """Return the float32 factor of a sum of `count` elements, with ONNX's rounding."""
    scale = np.float32(y.scale) * np.float32(count if kind == "mean" else 1)
    return float(np.float32(x.scale) / scale)


class ReduceChannels(MonotonicChannels["Reduce"]):
    """Channel rule if the result is monotonic in every element of a channel."""

    def serves(self, node: Node[Reduce]) -> bool:
        """Return whether channels are not reduced, and the kind is monotonic."""
        last = len(node.input(0).type.shape) - 1
        return last not in node.op.axes and node.op.kind in ("mean", "sum", "max", "min")

    def magnitude(self, node: Node[Reduce]) -> float:
        """Return a bound of the results' magnitude; that of a sum includes all its terms."""
        x, y = node.input(0).type, node.output.type
        return super().magnitude(node) * (x.size // y.size)


@dataclass(frozen=True)
class Reduce(Op):
    """Reduction over `axes` (not negative, each once); `kind` is a key of `REDUCE`.

    With `keep_dims`, reduced axes stay with size 1.
    """

    kind: str
    axes: tuple[int, ...]
    keep_dims: bool = False

    sixteen_bits = True
    channel_rule = ReduceChannels()

    @property
    @override
    def name(self) -> str:
        return f"Reduce({self.kind})"

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        if self.kind not in REDUCE:
            raise ModelError(
                f"there is no reduction '{self.kind}'; the kinds are {', '.join(sorted(REDUCE))}"
            )
        (x,) = operands(self, inputs, 1)
        for axis in self.axes:
            axis_in_range(self, axis, len(x.shape))
        if len(set(self.axes)) != len(self.axes):
            raise ModelError(f"{self.name} has an axis twice: {self.axes}")
        row = REDUCE[self.kind]
        selects = not row.rescales
        served = row.integers if x.dtype.is_integer and x.quant is None else True
        empty = self.count(x) == 0 and not x.dtype.is_float
        undefined = empty and (x.quant is not None or self.kind == "mean")
        if (x.dtype is DType.BOOL and not selects) or not served or undefined:
            reason = (
                "it has no elements to reduce"
                if undefined
                else f"element type {x.dtype.value} is not supported"
            )
            raise ModelError(f"{self.name} of {x} over axes {list(self.axes)}: {reason}")
        if self.keep_dims:
            shape = tuple(1 if i in self.axes else n for i, n in enumerate(x.shape))
        else:
            shape = tuple(n for i, n in enumerate(x.shape) if i not in self.axes)
        return (TensorType(shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input if the result is one of its elements."""
        (x,) = operands(self, inputs, 1)
        return None if REDUCE[self.kind].rescales else x.quant

    @override
    def check(self, node: Node) -> None:
        row = REDUCE[self.kind]
        if not quantized(node, row.dtypes):
            return
        symmetric_int16(node)
        if row.rescales:
            requantizing_rounding(node)
        else:
            same_quant(node)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        y, row = node.output.type, REDUCE[self.kind]
        if y.quant is None or not row.rescales:
            if row.rescales:
                wide = np.uint64 if y.dtype is DType.UINT64 else np.int64
                x = x.astype(np.float64 if y.dtype.is_float else wide)
            with np.errstate(all="ignore"):
                result = row.real(x, self.axes, self.keep_dims)
                return (np.asarray(result).astype(y.dtype.numpy),)
        source = node.input(0).type
        count = self.count(source)
        total = np.asarray(x.astype(np.int64).sum(axis=self.axes, keepdims=self.keep_dims))
        centered = wrap_int32(total - source.zero_point * count)
        if node.rounding is Rounding.ONNX:
            scale = reduce_scale(self.kind, source, y, count)
            result = Requantizer((scale,), Rounding.ONNX)(centered) + y.zero_point
            result = result.reshape(centered.shape)
            return (np.asarray(np.clip(result, *y.dtype.limits), y.dtype.numpy),)
        multiplier = reduce_multiplier(self.kind, source, y, count)
        result = multiply_by_quantized_multiplier(centered, *multiplier) + y.zero_point
        return (np.asarray(np.clip(result, *y.dtype.limits), y.dtype.numpy),)

    def count(self, x: TensorType) -> int:
        """Return the number of elements of `x` that are reduced to one."""
        return prod(x.shape[axis] for axis in self.axes)

    def selects(self, node: Node) -> int:
        """Return 1 for maximum and minimum, which are elements of the operand."""
        return int(self.kind in ("max", "min"))

    def grows(self, node: Node) -> bool:
        """Return whether this is a sum or a product of some kind."""
        return self.kind not in ("mean", "max", "min")

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return how factors propagate; channels that are reduced together share one factor."""
        if self.kind not in ("mean", "sum", "max", "min"):
            return ()
        mixed = len(node.input(0).type.shape) - 1 in self.axes
        return (Homogeneity(together(node) if mixed else in_place(node)),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows lie along an axis that is not reduced."""
        return axes[0] not in self.axes

    def axes_rule(self, node: Node) -> Axes:
        """Return the correspondence of axes; without `keep_dims`, reduced axes are missing."""
        gone = () if self.keep_dims else self.axes
        return reduced(
            node, gone, lambda order: replace(self, axes=positions_after(self.axes, order))
        )


def _case(kind: str, name: str, x: Data, axes: tuple[int, ...], *, keep: bool = False) -> Case:
    dtypes = FLOAT_AND_INT8 if REDUCE[kind].dtypes else (DType.FLOAT32,)
    return Case(f"{kind}_{name}", Reduce(kind, axes, keep), (x,), dtypes)


CASES = (
    *(
        _case(kind, name, x, axes, keep=keep)
        for kind in REDUCE
        if kind != "log_sum"
        for name, x, axes, keep in (
            ("image", Data((1, 5, 4, 7)), (1, 2), False),
            ("image_kept", Data((1, 3, 5, 4)), (1, 2), True),
            ("channels", Data((1, 3, 4, 5), -0.5, 3.0), (3,), False),
            ("rows", Data((2, 6, 3)), (1,), True),
            ("outer", Data((3, 2, 5)), (0,), False),
            ("apart", Data((3, 2, 5, 2)), (0, 2), False),
            ("everything", Data((2, 3, 3), -6.0, 0.0), (0, 1, 2), False),
            ("vector", Data((13,), 0.0, 4.0), (0,), True),
            ("rows_apart", Data((3, 2, 5), 0.0, 4.0), (0, 2), False),
            ("one_element", Data((1, 1, 1, 6)), (1, 2), False),
        )
    ),
    *(
        Case(f"{kind}_onnx_{name}", Reduce(kind, (1, 2)), (x,), (DType.INT8,), Rounding.ONNX)
        for kind in ("mean", "sum")
        for name, x in (("image", Data((1, 5, 4, 7))), ("wide", Data((2, 17, 19, 3), -9.0, 0.1)))
    ),
    *(
        Case(
            f"{kind}_onnx_everything",
            Reduce(kind, (0, 1)),
            (Data((3, 5), -6.0, 0.0),),
            (DType.INT8,),
            Rounding.ONNX,
        )
        for kind in ("mean", "sum")
    ),
    *(
        Case(
            f"{kind}_{name}",
            Reduce(kind, axes),
            (Data(shape, -(2.0**63), 2.0**64),),
            tuple(d for d in DType if d.is_integer or (d is DType.BOOL and not row.rescales)),
            plain=True,
        )
        for kind, row in REDUCE.items()
        if row.integers and kind != "mean"
        for name, shape, axes in (("plain", (2, 5, 3), (1,)), ("of_none", (2, 0, 3), (1,)))
    ),
    *(
        Case(f"{kind}_float", Reduce(kind, (1,)), (Data(shape),), (DType.FLOAT64,), plain=True)
        for kind in REDUCE
        if kind != "log_sum"
        for shape in ((2, 5, 3),)
    ),
    _case("log_sum", "of_positives", Data((2, 9, 3), 0.5, 4.0), (1,)),
    _case("log_sum", "of_none", Data((2, 0, 3)), (1,)),
    _case("log_sum_exp", "far", Data((2, 9, 3), -900.0, 300.0), (1,)),
    _case("mean", "many", Data((1, 17, 19, 3), -100.0, 0.1), (1, 2)),
    _case("sum", "many", Data((1, 17, 19, 3), -0.01, 0.001), (1, 2)),
)

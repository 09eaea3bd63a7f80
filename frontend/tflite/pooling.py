"""Converters of pooling and reductions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import tflite

from smelt.errors import ModelError
from smelt.frontend.tflite.operation import ARITHMETIC, Converter, TfliteOperation
from smelt.ir import DType, Op
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.convolution import NO_PADDING, Padding2D, Pair, same_padding
from smelt.ops.core.cumulative import Cumulative
from smelt.ops.core.l2_pool import L2Pool2D
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.segment_reduce import SegmentReduce
from smelt.ops.tensor.reshape import Reshape


def _pool(
    make: Callable[[Pair, Pair, Padding2D, Activation], Op], dtypes: frozenset[DType] = ARITHMETIC
) -> Converter:
    def convert(operation: TfliteOperation) -> None:
        options = operation.options(tflite.Pool2DOptions)
        x = operation.input(0)
        if len(x.type.shape) != 4:
            raise ModelError(f"{operation}: input {x.type} must be 4-D")
        window = options.pair("FilterHeight", "FilterWidth")
        stride = options.pair("StrideH", "StrideW")
        size = (x.type.shape[1], x.type.shape[2])
        same = options.same_padding()
        padding = same_padding(size, window, stride) if same else NO_PADDING
        operation.emit(make(window, stride, padding, options.activation()), x)

    return Converter(convert, dtypes)


def reduction(kind: str, dtypes: frozenset[DType] = ARITHMETIC) -> Converter:
    """Return the converter of a reduction of data with these element types."""

    def convert(operation: TfliteOperation) -> None:
        options = operation.options(tflite.ReducerOptions, optional=True)
        x = operation.input(0)
        axes = operation.axes(operation.integers(1, "axes"), len(x.type.shape))
        operation.emit(Reduce(kind, axes, options.flag("KeepDims")), x)

    return Converter(convert, dtypes)


def _cumulative(operation: TfliteOperation) -> None:
    options = operation.options(tflite.CumsumOptions, optional=True)
    x = operation.input(0)
    axis = operation.axis(operation.integers(1, "axis"), len(x.type.shape))
    op = Cumulative("sum", axis, options.flag("Exclusive"), options.flag("Reverse"))
    operation.emit(op, x)


def _segments(kind: str) -> Converter:
    """Return a converter; an index after the last segment is ignored, where LiteRT stops."""

    def convert(operation: TfliteOperation) -> None:
        x, indices = operation.input(0), operation.input(1)
        counts = operation.integers(2, "counts of segments")
        if len(counts) != 1:
            raise ModelError(
                f"{operation}: the number of segments must be a single number, is {list(counts)}"
            )
        rank = len(indices.type.shape)
        if not rank or x.type.shape[:rank] != indices.type.shape:
            raise ModelError(
                f"{operation}: the shape of indices {indices.type} must be the start of that of "
                f"its data {x.type}"
            )
        if rank > 1:
            count = indices.type.size
            x = operation.step(Reshape((count, *x.type.shape[rank:])), x, name="places")
            indices = operation.step(Reshape((count,)), indices, name="indices")
        operation.emit(SegmentReduce(kind, *counts), x, indices)

    return Converter(convert, _SEGMENTED)


_SEGMENTED = frozenset({DType.FLOAT32, DType.INT32})
CONVERTERS = {
    "AVERAGE_POOL_2D": _pool(partial(Pool2D, "average")),
    "CUMSUM": Converter(_cumulative, frozenset({DType.FLOAT32, DType.INT32, DType.INT64})),
    "L2_POOL_2D": _pool(L2Pool2D, frozenset({DType.FLOAT32})),
    "MAX_POOL_2D": _pool(partial(Pool2D, "max")),
    "MEAN": reduction("mean"),
    "SUM": reduction("sum"),
    "REDUCE_MAX": reduction("max"),
    "REDUCE_MIN": reduction("min"),
    "REDUCE_PROD": reduction("prod"),
    "UNSORTED_SEGMENT_MAX": _segments("max"),
    "UNSORTED_SEGMENT_MIN": _segments("min"),
    "UNSORTED_SEGMENT_PROD": _segments("prod"),
    "UNSORTED_SEGMENT_SUM": _segments("sum"),
}

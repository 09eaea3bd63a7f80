"""Converters of operators that summarize: pooling and reductions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import tflite

from smelt.errors import ModelError
from smelt.frontend.tflite.operation import ARITHMETIC, Converter, TfliteOperation
from smelt.ir import DType, Op
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.convolution import NO_PADDING, Padding2D, Pair, same_padding
from smelt.ops.core.l2_pool import L2Pool2D
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.reduce import Reduce


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


def _reduce(kind: str) -> Converter:
    def convert(operation: TfliteOperation) -> None:
        options = operation.options(tflite.ReducerOptions, optional=True)
        x = operation.input(0)
        axes = operation.axes(operation.integers(1, "axes"), len(x.type.shape))
        operation.emit(Reduce(kind, axes, options.flag("KeepDims")), x)

    return Converter(convert)


CONVERTERS = {
    "AVERAGE_POOL_2D": _pool(partial(Pool2D, "average")),
    "L2_POOL_2D": _pool(L2Pool2D, frozenset({DType.FLOAT32})),
    "MAX_POOL_2D": _pool(partial(Pool2D, "max")),
    "MEAN": _reduce("mean"),
    "SUM": _reduce("sum"),
    "REDUCE_MAX": _reduce("max"),
    "REDUCE_MIN": _reduce("min"),
    "REDUCE_PROD": _reduce("prod"),
}

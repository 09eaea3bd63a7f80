"""Converters of operators that summarize: pooling and reductions."""

from __future__ import annotations

import tflite

from smelt.errors import ModelError
from smelt.frontend.tflite.operation import Converter, Operation
from smelt.ops.convolution import NO_PADDING, same_padding
from smelt.ops.pool import Pool2D
from smelt.ops.reduce import Reduce


def _pool(kind: str) -> Converter:
    def convert(operation: Operation) -> None:
        options = operation.options(tflite.Pool2DOptions)
        x = operation.input(0)
        if len(x.type.shape) != 4:
            raise ModelError(f"{operation}: input {x.type} must be 4-D")
        window = options.pair("FilterHeight", "FilterWidth")
        stride = options.pair("StrideH", "StrideW")
        size = (x.type.shape[1], x.type.shape[2])
        same = options.same_padding()
        padding = same_padding(size, window, stride) if same else NO_PADDING
        operation.emit(Pool2D(kind, window, stride, padding, options.activation()), x)

    return Converter(convert)


def _reduce(kind: str) -> Converter:
    def convert(operation: Operation) -> None:
        options = operation.options(tflite.ReducerOptions, optional=True)
        x = operation.input(0)
        axes = operation.axes(operation.integers(1, "axes"), len(x.type.shape))
        operation.emit(Reduce(kind, axes, options.flag("KeepDims")), x)

    return Converter(convert)


CONVERTERS = {
    "AVERAGE_POOL_2D": _pool("average"),
    "MAX_POOL_2D": _pool("max"),
    "MEAN": _reduce("mean"),
    "SUM": _reduce("sum"),
    "REDUCE_MAX": _reduce("max"),
    "REDUCE_MIN": _reduce("min"),
    "REDUCE_PROD": _reduce("prod"),
}

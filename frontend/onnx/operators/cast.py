"""Conversions of element types."""

from __future__ import annotations

from smelt.frontend.onnx.operation import Converter, Operation
from smelt.frontend.onnx.tensors import dtype_of
from smelt.ir import DType, Value
from smelt.ops.cast import Cast


def _to(operation: Operation, dtype: DType) -> Value:
    x = operation.value(0)
    return x if x.type.dtype is dtype else operation.emit(Cast(dtype), x)


def _cast(operation: Operation) -> Value:
    """To float16 and bfloat16 nothing is rounded: the graph has float32 in their place."""
    return _to(operation, dtype_of(operation.integer("to"), f"the result of {operation}"))


def _cast_like(operation: Operation) -> Value:
    return _to(operation, operation.value(1).type.dtype)


CONVERTERS: dict[str, Converter] = {"Cast": _cast, "CastLike": _cast_like}

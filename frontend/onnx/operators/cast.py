"""Conversions of element types."""

from __future__ import annotations

from smelt.frontend.onnx.operation import Converter, Operation
from smelt.frontend.onnx.tensors import NARROWED, dtype_of
from smelt.ir import DType, Value
from smelt.ops.bit_cast import BitCast
from smelt.ops.cast import Cast


def _to(operation: Operation, dtype: DType) -> Value:
    x = operation.value(0)
    return x if x.type.dtype is dtype else operation.emit(Cast(dtype), x)


def _cast(operation: Operation) -> Value:
    """To float16 and bfloat16 nothing is rounded: the graph has float32 in their place."""
    return _to(operation, dtype_of(operation.integer("to"), f"the result of {operation}"))


def _cast_like(operation: Operation) -> Value:
    return _to(operation, operation.value(1).type.dtype)


def _bit_cast(operation: Operation) -> Value:
    code = operation.integer("to")
    dtype = dtype_of(code, f"the result of {operation}")
    if code in NARROWED:
        raise operation.refuse(f"{NARROWED[code]} is imported as float32, which has other bits")
    return operation.emit(BitCast(dtype), operation.value(0))


CONVERTERS: dict[str, Converter] = {"Cast": _cast, "CastLike": _cast_like, "BitCast": _bit_cast}

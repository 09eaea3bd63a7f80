"""Converters of casts."""

from __future__ import annotations

from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.frontend.onnx.tensors import NARROWED, dtype_of
from smelt.ir import DType, Value
from smelt.ops.core.bit_cast import BitCast
from smelt.ops.core.cast import Cast
from smelt.ops.core.unary import Unary

_EXACT = (DType.BOOL, DType.INT8, DType.UINT8)
"""Element types with only numbers that float16 and bfloat16 can represent."""


def _to(operation: Operation, dtype: DType, code: int) -> Value:
    """Return the operand as `dtype`, rounded if the file has a narrower type (`code`)."""
    x = operation.value(0)
    y = x if x.type.dtype is dtype else operation.emit(Cast(dtype), x)
    if code not in NARROWED or code == operation.element_type(0) or x.type.dtype in _EXACT:
        return y
    return operation.emit(Unary(f"to_{NARROWED[code]}"), y)


def _cast(operation: Operation) -> Value:
    code = operation.integer("to")
    return _to(operation, dtype_of(code, f"the result of {operation}"), code)


def _cast_like(operation: Operation) -> Value:
    return _to(operation, operation.value(1).type.dtype, operation.element_type(1))


def _bit_cast(operation: Operation) -> Value:
    code = operation.integer("to")
    dtype = dtype_of(code, f"the result of {operation}")
    if code in NARROWED:
        raise operation.refuse(
            f"{NARROWED[code]} is not supported: it is imported as float32, which has other bits"
        )
    return operation.emit(BitCast(dtype), operation.value(0))


CONVERTERS: dict[str, OnnxConverter] = {"Cast": _cast, "CastLike": _cast_like, "BitCast": _bit_cast}

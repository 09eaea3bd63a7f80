"""Tensors of an ONNX file: element types, arrays, shapes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.onnx.external import is_external
from smelt.ir import Array, DType

_PROTO = onnx.TensorProto

DTYPES: dict[int, DType] = {
    _PROTO.FLOAT: DType.FLOAT32,
    _PROTO.DOUBLE: DType.FLOAT64,
    _PROTO.FLOAT16: DType.FLOAT32,
    _PROTO.BFLOAT16: DType.FLOAT32,
    _PROTO.INT8: DType.INT8,
    _PROTO.UINT8: DType.UINT8,
    _PROTO.INT16: DType.INT16,
    _PROTO.UINT16: DType.UINT16,
    _PROTO.INT32: DType.INT32,
    _PROTO.UINT32: DType.UINT32,
    _PROTO.INT64: DType.INT64,
    _PROTO.UINT64: DType.UINT64,
    _PROTO.BOOL: DType.BOOL,
}
"""ONNX element type to that of the graph; floats below 32 bits become float32."""

NARROWED: dict[int, str] = {
    _PROTO.FLOAT16: "float16",
    _PROTO.BFLOAT16: "bfloat16",
}
"""Element types that are imported as float32."""

PROTO_TYPES: dict[DType, int] = {
    dtype: code for code, dtype in DTYPES.items() if code not in NARROWED
}
"""The inverse of `DTYPES`."""


def type_name(code: int) -> str:
    """ONNX's name of an element type, in lower case."""
    try:
        return _PROTO.DataType.Name(code).lower()
    except ValueError:
        return f"type {code}"


def dtype_of(code: int, what: str) -> DType:
    """The graph's element type for ONNX's.

    Raises:
        ModelError: the file leaves it open.
        UnsupportedError: the graph has none (strings, complex numbers, floats below 16 bits).
    """
    if code == _PROTO.UNDEFINED:
        raise ModelError(f"{what} has no element type: the file is damaged")
    if code not in DTYPES:
        raise UnsupportedError(
            f"{what} has element type {type_name(code)}, which Smelt does not support; it imports "
            "float32, float64, float16 and bfloat16 (as float32), integers of 8 to 64 bits and bool"
        )
    return DTYPES[code]


def array_of(tensor: onnx.TensorProto, what: str) -> Array:
    """A constant of the file, in the graph's element type.

    Raises:
        ModelError: its data do not fit its shape, or it holds a NaN.
        UnsupportedError: see `dtype_of`.
    """
    dtype = dtype_of(tensor.data_type, what)
    array = stored_array(tensor, what).astype(dtype.numpy)
    if dtype.is_float and np.isnan(array).any():
        where = tuple(int(i) for i in np.argwhere(np.isnan(array))[0])
        raise ModelError(
            f"{what} holds NaN at {list(where)}: the network has not been trained or saved right"
        )
    return array


def stored_array(tensor: onnx.TensorProto, what: str) -> Array:
    """A constant of the file in its own element type; `ModelError` if it is damaged."""
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"{what} has shape {list(tensor.dims)}: the file is damaged")
    if is_external(tensor):
        # The package onnx would look for the file in the current folder.
        raise ValueError(f"{what} is still in a file of its own: load_external reads all of them")
    try:
        array = np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError, MemoryError, OverflowError) as error:
        raise ModelError(f"{what} cannot be read: {error}") from error
    if array.shape != tuple(tensor.dims):
        raise ModelError(
            f"{what} has {array.size} elements, which do not fill shape {list(tensor.dims)}"
        )
    return array

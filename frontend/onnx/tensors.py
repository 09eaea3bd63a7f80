"""Tensors of an ONNX file: element types and arrays."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from smelt.errors import ModelError, UnsupportedError
from smelt.formatting import number
from smelt.ir import Array, DType, TensorType
from smelt.ir.budget import spend

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
"""Element types of the graph by ONNX's code; floats below 32 bits become float32."""

NARROWED: dict[int, str] = {
    _PROTO.FLOAT16: "float16",
    _PROTO.BFLOAT16: "bfloat16",
}
"""Element types that are imported as float32."""

PROTO_TYPES: dict[DType, int] = {
    dtype: code for code, dtype in DTYPES.items() if code not in NARROWED
}
"""ONNX's codes by element type of the graph."""


def type_name(code: int) -> str:
    """Return ONNX's name of an element type, in lower case."""
    try:
        return _PROTO.DataType.Name(code).lower()
    except ValueError:
        return f"type {code}"


def dtype_of(code: int, what: str) -> DType:
    """Return the graph's element type for ONNX's code.

    Raises:
        ModelError: the file declares no element type.
        UnsupportedError: the graph has no such type (strings, complex numbers, narrow floats).
    """
    if code == _PROTO.UNDEFINED:
        raise ModelError(f"{what} has no element type: the file is damaged")
    if code not in DTYPES:
        raise UnsupportedError(
            f"{what} has element type {type_name(code)}, which Smelt does not support; it supports "
            "float32, float64, float16 and bfloat16 (as float32), integers of 8 to 64 bits and bool"
        )
    return DTYPES[code]


def is_external(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor's data is in another file."""
    return tensor.data_location == _PROTO.EXTERNAL


def needed_bytes(tensor: onnx.TensorProto) -> int:
    """Return the number of bytes of a tensor's shape and element type.

    Raises:
        ModelError: the element type is missing or not a type of numbers.
    """
    name = type_name(tensor.data_type)
    try:
        each = 8 * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, ValueError, TypeError) as error:
        raise ModelError(
            f"constant '{tensor.name}' has element type {name}, but must have numbers"
        ) from error
    packed = _PACKED.get(name, each)
    return -(-prod(tensor.dims) * packed // 8)


_PACKED = {"int4": 4, "uint4": 4, "float4e2m1": 4, "int2": 2, "uint2": 2}
"""Bits of an element, for types with several elements in a byte."""


def array_of(tensor: onnx.TensorProto, what: str) -> Array:
    """Return a constant of the file, in the graph's element type.

    Raises:
        ModelError: its data does not fit its shape, or contains NaN.
        UnsupportedError: see `dtype_of`.
    """
    dtype = dtype_of(tensor.data_type, what)
    array = stored_array(tensor, what).astype(dtype.numpy)
    if dtype.is_float and np.isnan(array).any():
        where = tuple(int(i) for i in np.argwhere(np.isnan(array))[0])
        raise ModelError(
            f"{what} contains NaN at {list(where)}: training failed, or the file was saved wrongly"
        )
    return array


def stored_array(tensor: onnx.TensorProto, what: str) -> Array:
    """Return a constant of the file in its own element type. Raises `ModelError` if damaged."""
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"{what} has shape {list(tensor.dims)}: the file is damaged")
    if is_external(tensor):
        # The package onnx would search for the file in the current folder.
        raise ValueError(f"{what} is still in another file: load_external must run first")
    _require_filled(tensor, what)
    try:
        array = np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError, MemoryError, OverflowError) as error:
        raise ModelError(f"{what} cannot be read: {error}") from error
    return array


def _require_filled(tensor: onnx.TensorProto, what: str) -> None:
    """Check that a constant has as much data as its shape needs.

    Raises:
        ModelError: it does not.
    """
    if tensor.HasField("raw_data"):
        unit, needed, found = "bytes", needed_bytes(tensor), len(tensor.raw_data)
    else:
        data: Any = getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type))
        unit, needed, found = "elements", prod(tensor.dims), len(data)
    if found != needed:
        raise ModelError(
            f"{what} has {found:,} {unit} of data, but its shape {list(tensor.dims)} of "
            f"{type_name(tensor.data_type)} needs {number(needed)}: the file is damaged"
        )


def dense_array_of(sparse: onnx.SparseTensorProto, what: str) -> Array:
    """Return a sparse constant (indices and values) as a dense array.

    Raises:
        ModelError: indices, values and shape do not fit each other.
        UnsupportedError: see `array_of`; or the array is larger than the budget allows.
    """
    shape = tuple(sparse.dims)
    values, places = array_of(sparse.values, what), stored_array(sparse.indices, what)
    if values.ndim != 1 or places.shape not in ((values.size,), (values.size, len(shape))):
        raise ModelError(
            f"{what} is sparse, with values of shape {list(values.shape)} and indices of shape "
            f"{list(places.shape)}, which do not fit shape {list(shape)}: the file is damaged"
        )
    if min(shape, default=0) < 0 or places.dtype != np.int64:
        raise ModelError(
            f"{what} is sparse, with shape {list(shape)} and indices of {places.dtype}: the file "
            "is damaged"
        )
    spend(what, prod(shape))
    dense = np.zeros(TensorType(shape, DType.of(values)).shape, values.dtype)
    bounds = np.asarray(shape if places.ndim > 1 else dense.size, np.int64)
    if ((places < 0) | (places >= bounds)).any():
        raise ModelError(
            f"{what} is sparse, and has values outside of its shape {list(shape)}: the file is "
            "damaged"
        )
    if places.ndim > 1:
        steps = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        places = places @ np.asarray(steps, np.int64)
    dense.reshape(-1)[places] = values
    return dense

"""Conversion of stored tensors to types and constant arrays of the IR."""

from __future__ import annotations

import math

import numpy as np
import tflite

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.tflite.file import StoredTensor, names_of
from smelt.ir import Array, DType, Quant, TensorType

_MAX_TENSOR_BYTES = 2**31 - 1
_MAX_RANK = 8
_MAX_SCALE = 2.0**40
"""Largest scale. With larger scales, or scales of data below the inverse, quotients of scales are
outside of float32's range."""

_NEWER_TYPES = {19: "INT2", 20: "UINT4", 21: "FLOAT8_E4M3FN", 22: "FLOAT8_E5M2"}
"""Element types of LiteRT's schema that the package `tflite` does not have."""
_TYPE_NAMES = _NEWER_TYPES | names_of(tflite.TensorType)
_NARROW = ("INT2", "INT4", "UINT4")
_DTYPES = {
    tflite.TensorType.FLOAT32: DType.FLOAT32,
    tflite.TensorType.FLOAT16: DType.FLOAT16,
    tflite.TensorType.INT8: DType.INT8,
    tflite.TensorType.UINT8: DType.UINT8,
    tflite.TensorType.INT16: DType.INT16,
    tflite.TensorType.INT32: DType.INT32,
    tflite.TensorType.INT64: DType.INT64,
    tflite.TensorType.BOOL: DType.BOOL,
}
_ACCUMULATORS = (DType.INT32, DType.INT64)


def tensor_type(tensor: StoredTensor) -> TensorType:
    """Return the IR's type of a stored tensor.

    Raises:
        ModelError: shape and quantization are contradictory.
        UnsupportedError: the element type, the shape or the storage is not supported.
    """
    where = f"tensor {tensor.index} '{tensor.name}'"
    dtype = _dtype(tensor, where)
    _check_storage(tensor, where)
    _check_shape(tensor, dtype, where)
    return TensorType(tensor.shape, dtype, _quant(tensor, dtype, where))


def constant_array(tensor: StoredTensor, type_: TensorType) -> Array:
    """Return a constant tensor's elements. Raises `ModelError` if its buffer's size differs."""
    if tensor.data is None:
        raise ValueError(f"tensor {tensor.index} is not constant")
    if tensor.data.nbytes != type_.bytes:
        raise ModelError(
            f"tensor {tensor.index} '{tensor.name}' is {type_}, {type_.bytes} bytes, but its "
            f"buffer has {tensor.data.nbytes}: the file is truncated or corrupted"
        )
    if type_.dtype is DType.BOOL:
        return (tensor.data != 0).reshape(type_.shape)
    # Copy the elements: a copy is aligned and does not keep the file's bytes in memory.
    return (
        tensor.data.view(type_.dtype.numpy.newbyteorder("<"))
        .astype(type_.dtype.numpy)
        .reshape(type_.shape)
    )


def dequantized(array: Array, quant: Quant | None) -> Array:
    """Return stored weights as float32: `scale * (stored - zero point)`, or converted."""
    if quant is None:
        return array.astype(np.float32)
    shape = [1] * array.ndim
    if quant.axis is not None:
        shape[quant.axis] = -1
    scale = np.asarray(quant.scale, np.float32).reshape(shape)
    zero_point = np.asarray(quant.zero_point, np.int32).reshape(shape)
    with np.errstate(over="ignore"):  # an overflow is refused where the weights are used
        return (array.astype(np.int32) - zero_point).astype(np.float32) * scale


def _dtype(tensor: StoredTensor, where: str) -> DType:
    dtype = _DTYPES.get(tensor.type_code)
    if dtype is not None:
        return dtype
    name = _TYPE_NAMES.get(tensor.type_code)
    if name is None:
        raise ModelError(f"{where} has unknown element type {tensor.type_code}")
    remedy = (
        "quantize the weights to int8 instead"
        if name in _NARROW
        else "move the operators that need it out of the network"
    )
    raise UnsupportedError(f"{where} has element type {name.lower()}: {remedy}")


def _check_storage(tensor: StoredTensor, where: str) -> None:
    if tensor.is_sparse:
        raise UnsupportedError(
            f"{where} is stored sparsely: convert the network with dense weights"
        )
    if tensor.custom_quantization:
        raise UnsupportedError(
            f"{where} has a custom quantization: convert the network with affine quantization"
        )


def _check_shape(tensor: StoredTensor, dtype: DType, where: str) -> None:
    shape, signature = tensor.shape, tensor.signature
    if len(shape) > _MAX_RANK:
        raise ModelError(f"{where} has {len(shape)} dimensions; TFLite allows at most {_MAX_RANK}")
    if len(signature) != len(shape):
        raise ModelError(f"{where} has shape {list(shape)} but signature {list(signature)}")
    if any(n < 0 for n in shape):
        raise UnsupportedError(
            f"{where} has an unknown dimension: shape {list(shape)}; convert the network with a "
            "fixed input shape"
        )
    if tensor.data is None and 0 in shape:
        raise UnsupportedError(f"{where} of shape {list(shape)} is empty: remove it")
    if math.prod(shape) * dtype.size > _MAX_TENSOR_BYTES:
        raise ModelError(f"{where} of shape {list(shape)} is larger than 2 GiB")


def check_fixed_shape(tensor: StoredTensor) -> None:
    """Check that all dimensions of a network input are known; the batch may be unknown.

    An unknown batch has the size that the file's shape gives.
    """
    if any(n < 0 for n in tensor.signature[1:]):
        raise UnsupportedError(
            f"input '{tensor.name}' has unknown dimensions: {list(tensor.signature)}; only the "
            "first, the batch, may be unknown: convert the network with a fixed input shape"
        )


def _quant(tensor: StoredTensor, dtype: DType, where: str) -> Quant | None:
    scales, zero_points = tensor.scales, tensor.zero_points or (0,) * len(tensor.scales)
    if not scales or not dtype.is_integer:
        return None
    if len(zero_points) != len(scales):
        raise ModelError(f"{where} has {len(scales)} scales and {len(zero_points)} zero points")
    if not all(0.0 < scale < math.inf for scale in scales):
        # The scale of a bias is that of input times weights, which may underflow to 0.
        if dtype in _ACCUMULATORS:
            return None
        raise ModelError(f"{where} has a scale that is not positive and finite")
    # Weights may have tiny scales: in channels that are all zero.
    smallest = 1 / _MAX_SCALE if tensor.data is None else 0.0
    if not smallest <= min(scales) <= max(scales) <= _MAX_SCALE:
        raise ModelError(
            f"{where} has scales from {min(scales):g} to {max(scales):g}; supported are scales up "
            f"to {_MAX_SCALE:g}, and for data from {1 / _MAX_SCALE:g}"
        )
    low, high = dtype.limits
    if not all(low <= zero_point <= high for zero_point in zero_points):
        raise ModelError(
            f"{where} has a zero point outside of its element type's range, {low} to {high}"
        )
    if len(scales) == 1:
        return Quant(scales, zero_points)
    # Old converters write the axis of the weights to a bias.
    axis = 0 if len(tensor.shape) == 1 else tensor.axis
    if not 0 <= axis < len(tensor.shape) or tensor.shape[axis] != len(scales):
        raise ModelError(
            f"{where} has {len(scales)} scales along dimension {axis}, which does not fit its "
            f"shape {list(tensor.shape)}"
        )
    return Quant(scales, zero_points, axis)

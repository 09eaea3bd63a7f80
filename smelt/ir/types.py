"""Tensor types: shape, element type and, for quantized tensors, scale and zero point."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smelt.errors import ModelError, UnsupportedError

Array = NDArray[Any]
"""A numpy array of any of the element types below."""


LARGEST_TENSOR = 2**31 - 1
"""Bytes of the largest tensor: offsets are of type int32_t."""

HIGHEST_RANK = 32
"""Dimensions of a tensor; every version of numpy has as many."""


class DType(Enum):
    """Element type. The value is the name used in the text form."""

    FLOAT32 = "f32"
    FLOAT64 = "f64"
    FLOAT16 = "f16"
    INT8 = "i8"
    UINT8 = "u8"
    INT16 = "i16"
    UINT16 = "u16"
    INT32 = "i32"
    UINT32 = "u32"
    INT64 = "i64"
    UINT64 = "u64"
    BOOL = "bool"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy element type."""
        return _NUMPY[self]

    @property
    def size(self) -> int:
        """Bytes per element."""
        return _NUMPY[self].itemsize

    @property
    def c_name(self) -> str:
        """The C99 type that holds one element."""
        return _C_NAME[self]

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point type."""
        return self in (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16)

    @property
    def is_integer(self) -> bool:
        """Whether this is a signed or unsigned integer type (bool is not)."""
        return not self.is_float and self is not DType.BOOL

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest value of an integer type."""
        info = np.iinfo(self.numpy)
        return int(info.min), int(info.max)

    @staticmethod
    def of(array: Array) -> DType:
        """The `DType` of a numpy array; `KeyError` if the IR has none."""
        return _FROM_NUMPY[array.dtype]


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT64: np.dtype(np.float64),
    DType.FLOAT16: np.dtype(np.float16),
    DType.INT8: np.dtype(np.int8),
    DType.UINT8: np.dtype(np.uint8),
    DType.INT16: np.dtype(np.int16),
    DType.UINT16: np.dtype(np.uint16),
    DType.INT32: np.dtype(np.int32),
    DType.UINT32: np.dtype(np.uint32),
    DType.INT64: np.dtype(np.int64),
    DType.UINT64: np.dtype(np.uint64),
    DType.BOOL: np.dtype(np.bool_),
}
_FROM_NUMPY = {numpy: dtype for dtype, numpy in _NUMPY.items()}
_C_NAME: dict[DType, str] = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.FLOAT16: "uint16_t",
    DType.INT8: "int8_t",
    DType.UINT8: "uint8_t",
    DType.INT16: "int16_t",
    DType.UINT16: "uint16_t",
    DType.INT32: "int32_t",
    DType.UINT32: "uint32_t",
    DType.INT64: "int64_t",
    DType.UINT64: "uint64_t",
    DType.BOOL: "uint8_t",
}


@dataclass(frozen=True)
class Quant:
    """Affine quantization: `real = scale * (stored - zero_point)`.

    `scale` and `zero_point` have one element (per tensor; `axis` is None) or one per index of
    dimension `axis` (per channel). Scales are float32 values held exactly in Python floats.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None

    def __post_init__(self) -> None:
        """Refuse zero points that no integer type holds, which only a damaged file has."""
        if self.zero_point and max(map(abs, self.zero_point)) >= 1 << 63:
            raise ModelError("a zero point is beyond 64 bits: the file is damaged")

    @staticmethod
    def per_tensor(scale: float, zero_point: int = 0) -> Quant:
        """One scale (rounded to float32) and zero point for the whole tensor."""
        return Quant((float(np.float32(scale)),), (int(zero_point),))

    @property
    def is_per_tensor(self) -> bool:
        """Whether one scale and zero point hold for the whole tensor."""
        return self.axis is None

    @property
    def scalar(self) -> tuple[float, int]:
        """`(scale, zero_point)` of a per-tensor quantization.

        Raises:
            ModelError: there are several, along an axis.
        """
        if not self.is_per_tensor:
            raise ModelError(
                f"a tensor has {len(self.scale)} scales, along dimension {self.axis}, where an "
                "operator needs one: only weights and biases may be quantized per channel; "
                "quantize it per tensor"
            )
        (scale,), (zero_point,) = self.scale, self.zero_point
        return scale, zero_point


Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorType:
    """Shape, element type and quantization. Spatial tensors are `n, h, w, c`.

    Raises:
        UnsupportedError: it has more than `HIGHEST_RANK` dimensions or `LARGEST_TENSOR` bytes. For
            a tensor without elements, the dimensions other than 0 are what counts.
    """

    shape: Shape
    dtype: DType
    quant: Quant | None = None

    def __post_init__(self) -> None:
        if len(self.shape) > HIGHEST_RANK:
            raise UnsupportedError(
                f"a tensor of {len(self.shape)} dimensions is too large: {HIGHEST_RANK} are the "
                "most that Smelt computes with"
            )
        if prod(size or 1 for size in self.shape) * self.dtype.size > LARGEST_TENSOR:
            raise UnsupportedError(
                f"a tensor {self} is too large: {LARGEST_TENSOR:,} bytes are the most that Smelt "
                "addresses"
            )

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the dense tensor."""
        return self.size * self.dtype.size

    @property
    def is_quantized(self) -> bool:
        """Whether the stored integers stand for real numbers."""
        return self.quant is not None

    @property
    def scale(self) -> float:
        """Scale of a per-tensor quantized type."""
        if self.quant is None:
            raise ValueError(f"{self} is not quantized")
        return self.quant.scalar[0]

    @property
    def zero_point(self) -> int:
        """Zero point of a per-tensor quantized type."""
        if self.quant is None:
            raise ValueError(f"{self} is not quantized")
        return self.quant.scalar[1]

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        """The same element type and quantization with another shape."""
        return TensorType(shape, self.dtype, self.quant)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"

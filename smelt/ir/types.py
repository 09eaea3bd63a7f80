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
"""A numpy array of any element type in `DType`."""


LARGEST_TENSOR = 2**31 - 1
"""Largest size of a tensor in bytes: generated code has offsets of type int32_t."""

HIGHEST_RANK = 32
"""Largest number of dimensions of a tensor; every version of numpy supports this many."""


class DType(Enum):
    """Element type. The value is the name used in the text format."""

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
        """The C99 type of one element."""
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
        """Smallest and largest value of this integer type."""
        info = np.iinfo(self.numpy)
        return int(info.min), int(info.max)

    @staticmethod
    def of(array: Array) -> DType:
        """Return the `DType` of a numpy array. Raises `KeyError` if the IR has none."""
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

    `scale` and `zero_point` have one element if `axis` is None (per tensor), else one for each
    index of dimension `axis` (per channel). Scales are float32 values stored in Python floats.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None

    def __post_init__(self) -> None:
        """Refuse zero points that do not fit in 64 bits; only a damaged file has them."""
        if self.zero_point and max(map(abs, self.zero_point)) >= 1 << 63:
            raise ModelError("a zero point does not fit in 64 bits: the file is damaged")

    @staticmethod
    def per_tensor(scale: float, zero_point: int = 0) -> Quant:
        """Return a quantization with one scale (rounded to float32) and one zero point."""
        return Quant((float(np.float32(scale)),), (int(zero_point),))

    @property
    def is_per_tensor(self) -> bool:
        """Whether the whole tensor has one scale and one zero point."""
        return self.axis is None

    @property
    def scalar(self) -> tuple[float, int]:
        """`(scale, zero_point)` of a per-tensor quantization.

        Raises:
            ModelError: the quantization is per channel.
        """
        if not self.is_per_tensor:
            raise ModelError(
                f"a tensor has {len(self.scale)} scales, along dimension {self.axis}, but its "
                "operator needs a single scale: only weights and biases may be quantized per "
                "channel. Quantize this tensor per tensor"
            )
        (scale,), (zero_point,) = self.scale, self.zero_point
        return scale, zero_point


Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorType:
    """Shape, element type and quantization. Spatial tensors are `n, h, w, c`.

    Raises:
        UnsupportedError: it has more than `HIGHEST_RANK` dimensions or `LARGEST_TENSOR` bytes. A
            dimension of 0 counts as 1 here.
    """

    shape: Shape
    dtype: DType
    quant: Quant | None = None

    def __post_init__(self) -> None:
        if len(self.shape) > HIGHEST_RANK:
            raise UnsupportedError(
                f"a tensor has {len(self.shape)} dimensions; Smelt supports at most {HIGHEST_RANK}"
            )
        if prod(size or 1 for size in self.shape) * self.dtype.size > LARGEST_TENSOR:
            raise UnsupportedError(
                f"tensor {self} is too large; Smelt supports tensors of at most "
                f"{LARGEST_TENSOR:,} bytes"
            )

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size of the dense tensor in bytes."""
        return self.size * self.dtype.size

    @property
    def is_quantized(self) -> bool:
        """Whether the stored integers represent real numbers."""
        return self.quant is not None

    @property
    def scale(self) -> float:
        """Scale of a per-tensor quantized type. Raises `ValueError` if it is not quantized."""
        if self.quant is None:
            raise ValueError(f"{self} is not quantized")
        return self.quant.scalar[0]

    @property
    def zero_point(self) -> int:
        """Zero point of a per-tensor quantized type. Raises `ValueError` if not quantized."""
        if self.quant is None:
            raise ValueError(f"{self} is not quantized")
        return self.quant.scalar[1]

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        """Return the same element type and quantization with another shape."""
        return TensorType(shape, self.dtype, self.quant)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"

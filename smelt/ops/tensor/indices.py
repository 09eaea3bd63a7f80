"""Indices that are read at run time: their element types, and what is made of any number.

An index below zero counts from the end of its axis. One that lies outside after that stands for
the nearest element, the first or the last, so that no index reads or writes out of bounds.
"""

from __future__ import annotations

import numpy as np

from smelt.errors import ModelError
from smelt.ir import Array, DType, Op, TensorType

INDEX_TYPES = (DType.INT32, DType.INT64)
"""Element types of indices, as TensorFlow Lite and ONNX have them."""


def require_indices(op: Op, indices: TensorType) -> None:
    """`ModelError` unless the tensor may hold indices."""
    if indices.dtype not in INDEX_TYPES:
        raise ModelError(f"{op.name} needs int32 or int64 indices, got {indices}")


def require_elements(op: Op, indices: TensorType, size: int) -> None:
    """`ModelError` where there are indices into an axis without elements."""
    if indices.size and size == 0:
        raise ModelError(f"{op.name}: indices {indices} into an axis of size 0")


def positions(indices: Array, size: int) -> Array:
    """The elements (int64) that indices into an axis of `size` stand for."""
    wide = indices.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + size, wide), 0, max(size - 1, 0))

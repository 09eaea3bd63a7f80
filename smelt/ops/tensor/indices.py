"""Indices that are computed at run time: their element types, and the positions they stand for.

A negative index counts from the end of its axis. An index that is out of range after that stands
for the nearest element, the first or the last. So no index reads or writes out of bounds.
"""

from __future__ import annotations

import numpy as np

from smelt.errors import ModelError
from smelt.ir import Array, DType, Op, TensorType

INDEX_TYPES = (DType.INT32, DType.INT64)
"""Element types of indices in TensorFlow Lite and ONNX."""


def require_indices(op: Op, indices: TensorType) -> None:
    """Raise `ModelError` unless the tensor has an element type of indices."""
    if indices.dtype not in INDEX_TYPES:
        raise ModelError(f"{op.name} needs int32 or int64 indices, got {indices}")


def require_elements(op: Op, indices: TensorType, size: int) -> None:
    """Raise `ModelError` if there are indices into an axis without elements."""
    if indices.size and size == 0:
        raise ModelError(f"{op.name} has indices {indices} into an axis without elements")


def positions(indices: Array, size: int) -> Array:
    """Return the positions (int64) that indices into an axis of `size` elements stand for."""
    wide = indices.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + size, wide), 0, max(size - 1, 0))

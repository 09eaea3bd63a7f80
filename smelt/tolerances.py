"""How far the device may be from the reference: nothing for integers, rounding errors for floats.

Where computed real numbers are quantized on the way, one that is almost halfway between two
integers may become either. What depends on it may differ by two steps of that quantization, as a
part of the range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array, DType, Graph, Node, Value
from smelt.ops.arg_reduce import ArgReduce
from smelt.ops.cast import Cast
from smelt.ops.concat import Concat
from smelt.ops.copy import Copy
from smelt.ops.max_unpool import MaxPoolIndices
from smelt.ops.pad import Pad
from smelt.ops.quantize import Dequantize, Quantize
from smelt.ops.reshape import Reshape
from smelt.ops.slice import Slice
from smelt.ops.top_k import TopK
from smelt.ops.transpose import Transpose

FLOAT_TOLERANCE = 1e-5
"""Largest accepted difference of floats, relative to the range of the expected tensor."""

FLOAT16_TOLERANCE = 1e-2
"""The same where numbers are stored as float16 on the way."""

_STEPS = 2
_WIDE = 4
"""Bytes of integers that are no quantized numbers."""
_INDEXING = (ArgReduce, MaxPoolIndices, TopK)
"""Operators whose wide integers are indices, not numbers of which some may be about right."""
_EXACT = (Concat, Copy, Dequantize, Pad, Quantize, Reshape, Slice, Transpose)
"""Operators whose real numbers are the same on every machine if their operands are."""


@dataclass(frozen=True)
class Difference:
    """How two tensors differ: in how many elements, and at most by how much."""

    elements: int
    total: int
    largest: float

    def __str__(self) -> str:
        return f"{self.elements} of {self.total} elements differ, at most by {self.largest:g}"


def inexact(graph: Graph) -> Mapping[Value, float]:
    """The part of its range that each value may differ by that rounding errors reach.

    Through a quantization or through float16, that is: others are not in it. Nor are truths and
    indices, though what follows from them is: they are right or wrong.
    """
    found: dict[Value, float] = {}
    rounded: set[Value] = set()
    indices: set[Value] = set()
    for node in graph.nodes:
        operands = [v for v in node.inputs if v is not None]
        part = max((found.get(v, 0.0) for v in operands), default=0.0)
        if any(v in rounded for v in operands) and isinstance(node.op, Quantize | Cast):
            bytes_ = node.output.type.dtype.size
            part = max(part, _STEPS / (2 ** (8 * bytes_) - 1) if bytes_ < _WIDE else 0.0)
        if any(v.type.dtype is DType.FLOAT16 for v in (*operands, *node.outputs)):
            part = max(part, FLOAT16_TOLERANCE)
        for value in node.outputs:
            if part:
                found[value] = part
            if value.type.dtype.is_float and _rounds(node, rounded):
                rounded.add(value)
            counts = isinstance(node.op, _INDEXING) or any(v in indices for v in operands)
            if counts and _is_wide(value.type.dtype):
                indices.add(value)
    exact = {v for v in found if v.type.dtype is DType.BOOL} | indices
    return {v: part for v, part in found.items() if v not in exact}


def _is_wide(dtype: DType) -> bool:
    return not dtype.is_float and dtype.size >= _WIDE


def _rounds(node: Node, rounded: set[Value]) -> bool:
    return not isinstance(node.op, _EXACT) or any(v in rounded for v in node.inputs)


def compare(expected: Array, found: Array, part: float = 0.0) -> Difference | None:
    """How `found` differs, or None.

    Args:
        expected: the right result.
        found: of the same shape.
        part: of the range, that the difference may be: of the whole range of quantized numbers'
            type; of the expected tensor's own range for wider integers, and for floats, for which
            it is `FLOAT_TOLERANCE` at least.
    """
    if expected.shape != found.shape:
        return Difference(expected.size, expected.size, float("nan"))
    if expected.dtype.kind != "f":
        distance = np.abs(expected.astype(np.int64) - found.astype(np.int64))
        narrow = expected.dtype.itemsize < _WIDE
        levels = 2.0 ** (8 * expected.dtype.itemsize) - 1 if narrow else _range(expected)
        wrong = distance > part * levels
    else:
        wide, other = expected.astype(np.float64), found.astype(np.float64)
        equal = (wide == other) | (np.isnan(wide) & np.isnan(other))
        with np.errstate(invalid="ignore"):
            distance = np.where(equal, 0.0, np.abs(wide - other))
        range_ = max(_range(wide[np.isfinite(wide)]), 1e-30)
        wrong = ~(distance <= max(part, FLOAT_TOLERANCE) * range_)
    if not wrong.any():
        return None
    return Difference(int(wrong.sum()), expected.size, float(distance[wrong].max()))


def _range(numbers: Array) -> float:
    """Of finite numbers, zero's distance from the farthest at least; 0 of none."""
    if not numbers.size:
        return 0.0
    low, high = float(numbers.min()), float(numbers.max())
    return max(high - low, high, -low)

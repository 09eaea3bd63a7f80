"""How far the device may be from the reference: nothing for integers, rounding errors for floats.

Where computed real numbers are quantized on the way, one that is almost halfway between two
integers may become either. What depends on it may differ by two steps of that quantization, as a
part of the range. Truths and indices are right or wrong, and so is what is made of them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from smelt.ir import Array, DType, Graph, Node, Value
from smelt.ops.core.cast import Cast
from smelt.ops.core.table import Table

FLOAT_TOLERANCE = 1e-5
"""Largest accepted difference of floats, relative to the range of the expected tensor."""

FLOAT16_TOLERANCE = 1e-2
"""The same where numbers are stored as float16 on the way."""

_STEPS = 2
_TRUTHS = 2
_COUNTS = 16
"""The least range of integers that are taken for rounded numbers, not for classes."""
_ALL_WHOLE = 1024
"""From here on float16 has no other numbers than whole ones."""
_WIDE = 4
"""Bytes of integers that are no quantized numbers."""


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
    indices, whatever they are cast to, nor what they choose and count.
    """
    spread = _ErrorSpread()
    spread.numbers.update(v for v in graph.inputs if v.type.dtype is not DType.BOOL)
    spread.until_it_ends([(s.after, s.before) for s in graph.states], [graph])
    return spread.parts


@dataclass
class _ErrorSpread:
    """What rounding errors have reached, graph after graph. All of it only grows.

    Attributes:
        parts: of their range that values may differ by.
        rounded: floats that have rounding errors of some size.
        numbers: all but truths, indices, and what is chosen or cast of these alone.
    """

    parts: dict[Value, float] = field(default_factory=dict[Value, float])
    rounded: set[Value] = field(default_factory=set[Value])
    numbers: set[Value] = field(default_factory=set[Value])

    def until_it_ends(self, pairs: Sequence[tuple[Value, Value]], graphs: Sequence[Graph]) -> None:
        """Through graphs, and from the first to the second of pairs, until nothing changes."""
        while True:
            before = self._state()
            for source, target in pairs:
                self._hand_over(source, target)
            for node in chain.from_iterable(graph.nodes for graph in graphs):
                if node.op.subgraphs:
                    self.until_it_ends(node.op.handed_over(node), node.op.subgraphs)
                else:
                    self._over(node)
            if self._state() == before:
                return

    def _state(self) -> tuple[object, ...]:
        return dict(self.parts), len(self.rounded), len(self.numbers)

    def _over(self, node: Node) -> None:
        operands = [v for v in node.inputs if v is not None]
        rounded = any(v in self.rounded for v in operands)
        part = max((self.parts.get(v, 0.0) for v in operands), default=0.0)
        if rounded and node.op.converts:
            bytes_ = node.output.type.dtype.size
            part = max(part, _STEPS / (2 ** (8 * bytes_) - 1) if bytes_ < _WIDE else 0.0)
        if any(v.type.dtype is DType.FLOAT16 for v in (*operands, *node.outputs)):
            part = max(part, FLOAT16_TOLERANCE)
        keeps = node.op.moves_data or isinstance(node.op, Cast)
        chosen = keeps and not any(map(self._is_number, operands))
        exact = node.op.exact or node.op.moves_data
        for number, value in enumerate(node.outputs):
            if chosen or _is_exact(node, number):
                continue
            self.numbers.add(value)
            if part:
                self.parts[value] = part
            if value.type.dtype.is_float and (rounded or not exact):
                self.rounded.add(value)

    def _is_number(self, value: Value) -> bool:
        """Whether a value is more than truths and classes: a constant if float16 lacks some.

        One that is stored as float16 already may have been rounded, but for small whole numbers.
        """
        if value.data is None or not value.type.dtype.is_float:
            return value in self.numbers
        if value.type.dtype is DType.FLOAT16:
            whole = np.array_equal(np.trunc(value.data), value.data, equal_nan=True)
            return not whole or bool((np.abs(value.data) >= _ALL_WHOLE).any())
        with np.errstate(over="ignore"):
            halves = value.data.astype(np.float16)
        return not np.array_equal(halves, value.data, equal_nan=True)

    def _hand_over(self, source: Value, target: Value) -> None:
        part = max(self.parts.get(source, 0.0), self.parts.get(target, 0.0))
        if part:
            self.parts[target] = part
        if source in self.rounded:
            self.rounded.add(target)
        if self._is_number(source):
            self.numbers.add(target)


def _is_exact(node: Node, output: int) -> bool:
    """Whether an output is truths or indices; a table of two numbers stands for truths."""
    truths = node.outputs[output].type.dtype is DType.BOOL
    if isinstance(node.op, Table) and node.input(1).data is not None:
        truths = np.unique(node.input(1).array).size <= _TRUTHS
    return truths or output in node.op.index_outputs


def compare(expected: Array, found: Array, part: float = 0.0) -> Difference | None:
    """How `found` differs, or None.

    Args:
        expected: the right result.
        found: of the same shape.
        part: of the range, that the difference may be: of the whole range of the type for integers
            of one or two bytes; of the expected tensor's own range for wider ones, and for floats,
            for which it is `FLOAT_TOLERANCE` at least.
    """
    if expected.shape != found.shape:
        return Difference(expected.size, expected.size, float("nan"))
    if expected.dtype.kind != "f" and found.dtype.kind != "f":
        distance = _distance(expected, found)
        narrow = expected.dtype.itemsize < _WIDE
        levels = 2.0 ** (8 * expected.dtype.itemsize) - 1 if narrow else _range(expected)
        # A real number that is cast to an integer may become the one beside it, but no class may.
        wrong = distance > max(part * levels, part > 0 and levels >= _COUNTS)
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


def _distance(a: Array, b: Array) -> Array:
    """Of integers, without overflow: uint64."""
    if a.dtype.kind == "b":
        return (a != b).astype(np.uint64)
    return np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)


def _range(numbers: Array) -> float:
    """Of finite numbers, zero's distance from the farthest at least; 0 of none."""
    if not numbers.size:
        return 0.0
    low, high = float(numbers.min()), float(numbers.max())
    return max(high - low, high, -low)

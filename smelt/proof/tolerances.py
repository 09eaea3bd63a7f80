"""Tolerances for comparing a device with the reference: zero for integers, small for floats.

If rounding errors move a float across the midpoint between two integers, the float is quantized to
the other integer. Values that depend on it may differ by two quantization steps, expressed as a
fraction of the range. Booleans, indices and anything derived only from them must match exactly.
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
"""`FLOAT_TOLERANCE` for values that depend on a tensor stored as float16."""

_STEPS = 2
"""Accepted difference, in quantization steps, of values computed from a quantized float."""
_BOOLEAN_VALUES = 2
"""A table of at most this many different results counts as boolean."""
_CLASSES = 16
"""Integers with a smaller range than this may be class numbers, which must match exactly."""
_WHOLE_FROM = 1024
"""From this magnitude on, float16 can represent whole numbers only."""
_WIDE = 4
"""Integers of at least this size in bytes are not quantized numbers."""


@dataclass(frozen=True)
class Difference:
    """Number of elements that differ between two tensors, and the largest difference."""

    elements: int
    total: int
    largest: float

    def __str__(self) -> str:
        return f"{self.elements} of {self.total} elements differ, at most by {self.largest:g}"


def tolerances_of(graph: Graph) -> Mapping[Value, float]:
    """Return the tolerance of each value that rounding errors affect, as a fraction of its range.

    The mapping contains only values with errors that passed through a quantization or through
    float16. It contains no booleans and indices, and no values that are derived from them only by
    casts, selections or counts.
    """
    propagation = _ErrorPropagation()
    propagation.numbers.update(v for v in graph.inputs if v.type.dtype is not DType.BOOL)
    propagation.until_stable([(s.after, s.before) for s in graph.states], [graph])
    return propagation.tolerances


@dataclass
class _ErrorPropagation:
    """Propagation of rounding errors through graphs. All sets only grow.

    Attributes:
        tolerances: tolerance of each value as a fraction of its range.
        rounded: floats with rounding errors of any size.
        numbers: values other than booleans, indices, and values derived only from these.
    """

    tolerances: dict[Value, float] = field(default_factory=dict[Value, float])
    rounded: set[Value] = field(default_factory=set[Value])
    numbers: set[Value] = field(default_factory=set[Value])

    def until_stable(self, pairs: Sequence[tuple[Value, Value]], graphs: Sequence[Graph]) -> None:
        """Propagate through the graphs, and from first to second of each pair, until stable."""
        while True:
            before = self._state()
            for source, target in pairs:
                self._propagate(source, target)
            for node in chain.from_iterable(graph.nodes for graph in graphs):
                if node.op.subgraphs:
                    self.until_stable(node.op.forwarded_values(node), node.op.subgraphs)
                else:
                    self._propagate_through(node)
            if self._state() == before:
                return

    def _state(self) -> tuple[object, ...]:
        return dict(self.tolerances), len(self.rounded), len(self.numbers)

    def _propagate_through(self, node: Node) -> None:
        operands = [v for v in node.inputs if v is not None]
        rounded = any(v in self.rounded for v in operands)
        tolerance = max((self.tolerances.get(v, 0.0) for v in operands), default=0.0)
        if rounded and node.op.converts:
            bytes_ = node.output.type.dtype.size
            tolerance = max(tolerance, _STEPS / (2 ** (8 * bytes_) - 1) if bytes_ < _WIDE else 0.0)
        if any(v.type.dtype is DType.FLOAT16 for v in (*operands, *node.outputs)):
            tolerance = max(tolerance, FLOAT16_TOLERANCE)
        copies = node.op.moves_data or isinstance(node.op, Cast)
        only_selects = copies and not any(map(self._is_number, operands))
        exact = node.op.exact or node.op.moves_data
        for number, value in enumerate(node.outputs):
            if only_selects or _is_exact(node, number):
                continue
            self.numbers.add(value)
            if tolerance:
                self.tolerances[value] = tolerance
            if value.type.dtype.is_float and (rounded or not exact):
                self.rounded.add(value)

    def _is_number(self, value: Value) -> bool:
        """Return whether a value may have rounding errors, rather than being boolean or an index.

        A constant may if float16 cannot represent it exactly. A constant that is already float16
        may have been rounded before, unless all its elements are small whole numbers.
        """
        if value.data is None or not value.type.dtype.is_float:
            return value in self.numbers
        if value.type.dtype is DType.FLOAT16:
            whole = np.array_equal(np.trunc(value.data), value.data, equal_nan=True)
            return not whole or bool((np.abs(value.data) >= _WHOLE_FROM).any())
        with np.errstate(over="ignore"):
            halves = value.data.astype(np.float16)
        return not np.array_equal(halves, value.data, equal_nan=True)

    def _propagate(self, source: Value, target: Value) -> None:
        tolerance = max(self.tolerances.get(source, 0.0), self.tolerances.get(target, 0.0))
        if tolerance:
            self.tolerances[target] = tolerance
        if source in self.rounded:
            self.rounded.add(target)
        if self._is_number(source):
            self.numbers.add(target)


def _is_exact(node: Node, output: int) -> bool:
    """Return whether an output is boolean or an index; a table of two values counts as boolean."""
    boolean = node.outputs[output].type.dtype is DType.BOOL
    if isinstance(node.op, Table) and node.input(1).data is not None:
        boolean = np.unique(node.input(1).array).size <= _BOOLEAN_VALUES
    return boolean or output in node.op.index_outputs


def compare(expected: Array, found: Array, tolerance: float = 0.0) -> Difference | None:
    """Return how `found` differs from `expected`, or None if it is within the tolerance.

    Args:
        expected: the correct tensor.
        found: the tensor to check, of the same shape.
        tolerance: accepted difference as a fraction of the range. For integers of 1 or 2 bytes, the
            range is that of their type. For wider integers and floats, it is the range of
            `expected`. For floats, the tolerance is at least `FLOAT_TOLERANCE`.
    """
    if expected.shape != found.shape:
        return Difference(expected.size, expected.size, float("nan"))
    if expected.dtype.kind != "f" and found.dtype.kind != "f":
        distance = _distance(expected, found)
        narrow = expected.dtype.itemsize < _WIDE
        levels = 2.0 ** (8 * expected.dtype.itemsize) - 1 if narrow else _range(expected)
        # A float cast to an integer may become its neighbor, but class numbers must match.
        wrong = distance > max(tolerance * levels, tolerance > 0 and levels >= _CLASSES)
    else:
        wide, other = expected.astype(np.float64), found.astype(np.float64)
        equal = (wide == other) | (np.isnan(wide) & np.isnan(other))
        with np.errstate(invalid="ignore"):
            distance = np.where(equal, 0.0, np.abs(wide - other))
        range_ = max(_range(wide[np.isfinite(wide)]), 1e-30)
        wrong = ~(distance <= max(tolerance, FLOAT_TOLERANCE) * range_)
    if not wrong.any():
        return None
    return Difference(int(wrong.sum()), expected.size, float(distance[wrong].max()))


def _distance(a: Array, b: Array) -> Array:
    """Return the absolute difference of integers as uint64, without overflow."""
    if a.dtype.kind == "b":
        return (a != b).astype(np.uint64)
    return np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)


def _range(numbers: Array) -> float:
    """Return the range of finite numbers including zero, or 0 if there are no numbers."""
    if not numbers.size:
        return 0.0
    low, high = float(numbers.min()), float(numbers.max())
    return max(high - low, high, -low)

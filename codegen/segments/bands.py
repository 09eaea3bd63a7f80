"""Which rows each turn of a segment makes and reads, and which rows its bands keep.

In turn `t`, a node makes the rows from `t * made - lag` to `(t + 1) * made - lag - 1` of its
result, as far as they exist. `made` follows from the strides: a node with stride 2 needs twice as
many rows of its operand as it makes. `lag` is how many rows a node stays behind, so that the rows
that it reads are made before; it is as small as possible. Nothing is computed twice.

Row `y` of a band is stored at position `y - (t * made - lag - kept)`: first the rows `kept` from
turns before, then the new ones. So a turn uses the same addresses as the turn before it, after the
kept rows have been moved to the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import prod

from smelt.ir import Graph, Node, Value
from smelt.ir.row_window import RowsRead, RowWindow


@dataclass(frozen=True)
class RowSegment:
    """Nodes that can be computed together, a few rows at a time.

    Attributes:
        nodes: The nodes in execution order; each has one result.
        axis: The axis of the rows; all axes before it have size 1.
        windows: How each node reads the rows of its operands.
        banded: The values that only nodes of the segment read: bands of them are stored.
        reverse: Whether the last rows are computed first. Then `windows` and everything in
            `RowBands` number rows from the last one.
    """

    nodes: tuple[Node, ...]
    axis: int
    windows: Mapping[Node, RowWindow]
    banded: frozenset[Value]
    reverse: bool = False

    def mirrored(self) -> RowSegment:
        """Return the segment in the opposite order of rows."""
        windows = {
            node: window.mirrored(self.height(self.operands(node)[0]), self.height(node.output))
            for node, window in self.windows.items()
        }
        return replace(self, windows=windows, reverse=not self.reverse)

    def height(self, value: Value) -> int:
        """Return the number of rows of a value."""
        return value.type.shape[self.axis]

    def row_bytes(self, value: Value) -> int:
        """Return the bytes of a row of a value."""
        return value.type.bytes // self.height(value)

    def operands(self, node: Node) -> tuple[Value, ...]:
        """Return the operands that a node reads row by row."""
        return operands_with_rows(node, self.axis)

    @cached_property
    def producers(self) -> Mapping[Value, Node]:
        """The nodes by their results."""
        return {node.output: node for node in self.nodes}

    @cached_property
    def readers(self) -> Mapping[Value, tuple[Node, ...]]:
        """The nodes that read each value row by row."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(self.operands(node)):
                found.setdefault(value, []).append(node)
        return {value: tuple(nodes) for value, nodes in found.items()}


def operands_with_rows(node: Node, axis: int) -> tuple[Value, ...]:
    """Return the operands of a node that have rows along an axis.

    A window slides along the first operand only. Other operands have the rows of the result, or
    are broadcast to all rows.
    """
    y = node.output.type.shape
    first = node.inputs[0]
    return tuple(
        value
        for value in node.inputs
        if value is not None
        and value.data is None
        and len(value.type.shape) == len(y)
        and (value is first or value.type.shape[axis] == y[axis])
    )


def segment_of(graph: Graph, nodes: Sequence[Node]) -> RowSegment | None:
    """Return the segment of consecutive nodes of a graph, or None if they cannot be one."""
    if any(node.op.is_view or node.op.subgraphs or len(node.outputs) != 1 for node in nodes):
        return None
    axis = rows_axis(nodes[0])
    windows = {node: window for node in nodes if (window := row_window(node, axis)) is not None}
    if len(windows) < len(nodes):
        return None
    made = {node.output for node in nodes}
    readers: dict[Value, set[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value in made:
                readers.setdefault(value, set()).add(node)
    inside = set(nodes)
    banded = frozenset(
        value
        for value in made
        if value not in graph.results and value in readers and readers[value] <= inside
    )
    whole = [v for node in nodes for v in node.inputs if v in made]
    by_row = [v for node in nodes for v in operands_with_rows(node, axis)]
    if len(whole) != len([v for v in by_row if v in made]):
        return None  # a node reads all rows of a value that the segment makes
    return RowSegment(tuple(nodes), axis, windows, banded)


def rows_axis(node: Node) -> int:
    """Return the axis of the rows of images: the height, or the width if the height is 1."""
    shapes = [value.type.shape for value in (node.inputs[0], node.output) if value is not None]
    return 2 if all(len(shape) > 2 and shape[1] == 1 for shape in shapes) else 1


def row_window(node: Node, axis: int) -> RowWindow | None:
    """Return how a node reads rows, or None if it cannot be computed row by row."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None or x.data is not None or len(x.type.shape) != len(y.type.shape):
        return None
    if len(y.type.shape) <= axis + 1 or prod(y.type.shape[:axis]) != 1 or not y.type.size:
        return None
    window = node.op.row_window(node, axis)
    if window is None or any(
        prod(v.type.shape[:axis]) != 1 or not v.type.size for v in operands_with_rows(node, axis)
    ):
        return None
    # Weights are the same for all rows, whatever their shape is.
    if node.op.weights_rule is None and any(
        _varies(v, axis, len(y.type.shape)) for v in node.inputs
    ):
        return None
    height = x.type.shape[axis]
    made = y.type.shape[axis]
    return window if window.read(range(made), height).rows else None


def _varies(value: Value | None, axis: int, rank: int) -> bool:
    """Return whether a constant operand differs from row to row of a result with `rank` axes."""
    if value is None or value.data is None:
        return False
    shape = (1,) * (rank - len(value.type.shape)) + value.type.shape
    return shape[axis] > 1


@dataclass(frozen=True, eq=False)
class RowBands:
    """The rows that each turn of a segment makes, reads and keeps.

    Attributes:
        segment: The nodes.
        made: Rows of its result that a node makes in a turn.
        lags: Rows by which a node is late.
        kept: Rows of a band that the next turn still needs.
        turns: The number of turns.
    """

    segment: RowSegment
    made: Mapping[Node, int]
    lags: Mapping[Node, int]
    kept: Mapping[Value, int]
    turns: int

    def rows(self, node: Node, turn: int) -> range:
        """Return the rows that a node makes in a turn."""
        height = self.segment.height(node.output)
        first = turn * self.made[node] - self.lags[node]
        return range(min(max(first, 0), height), min(max(first + self.made[node], 0), height))

    def read(self, node: Node, made: range) -> RowsRead:
        """Return the rows of its operands that some rows of a node's result depend on."""
        height = self.segment.height(self.segment.operands(node)[0])
        return self.segment.windows[node].read(made, height)

    def first(self, value: Value, turn: int) -> int:
        """Return the row at the start of a band in a turn, which may be below 0."""
        node = self.segment.producers[value]
        return turn * self.made[node] - self.lags[node] - self.kept[value]

    def band_rows(self, value: Value) -> int:
        """Return the number of rows that a band stores."""
        return self.kept[value] + self.made[self.segment.producers[value]]

    def last_read(self, value: Value) -> int:
        """Return the last turn in which a node reads a band."""
        return max(
            turn
            for node in self.segment.readers[value]
            for turn in range(self.turns)
            if self.rows(node, turn)
        )


def bands_of(segment: RowSegment, rows: int) -> RowBands | None:
    """Return the bands of a segment whose last node makes `rows` rows in a turn.

    Returns None if the strides do not allow that number.
    """
    made = _rates(segment, rows)
    if made is None:
        return None
    lags: dict[Node, int] = {}
    for node in segment.nodes:
        window = segment.windows[node]
        late = [0]
        for value in segment.operands(node):
            producer = segment.producers.get(value)
            if producer is not None:
                missing = lags[producer] + window.size - window.stride - window.before
                late.append(-(-missing // window.stride))
        lags[node] = max(late)
    kept: dict[Value, int] = {}
    for value in segment.banded:
        oldest = max(
            lags[reader] * segment.windows[reader].stride + segment.windows[reader].before
            for reader in segment.readers[value]
        )
        kept[value] = max(0, oldest - lags[segment.producers[value]])
    turns = max(-(-(segment.height(n.output) + lags[n]) // made[n]) for n in segment.nodes)
    bands = RowBands(segment, made, lags, kept, turns)
    return bands if _reads_something(bands) else None


def _reads_something(bands: RowBands) -> bool:
    """Return whether no turn makes rows from padding alone."""
    return all(
        bands.read(node, made).rows
        for node in bands.segment.nodes
        for turn in range(bands.turns)
        if (made := bands.rows(node, turn))
    )


def _rates(segment: RowSegment, rows: int) -> dict[Node, int] | None:
    """Return the rows that each node makes in a turn, or None if they are not whole numbers."""
    found: dict[Node, Fraction] = {segment.nodes[-1]: Fraction(rows)}
    pending = [segment.nodes[-1]]
    while pending:
        node = pending.pop()
        near = [
            (segment.producers[value], found[node] * segment.windows[node].stride)
            for value in segment.operands(node)
            if value in segment.producers
        ]
        near += [
            (reader, found[node] / segment.windows[reader].stride)
            for reader in segment.readers.get(node.output, ())
        ]
        for other, rate in near:
            if other not in found:
                found[other] = rate
                pending.append(other)
            elif found[other] != rate:
                return None
    if len(found) < len(segment.nodes) or any(rate.denominator != 1 for rate in found.values()):
        return None
    return {node: int(rate) for node, rate in found.items()}


class BandNodes:
    """The nodes that compute a few rows of other nodes' results; equal ones are made once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Node, int, int, int, int], Node | None] = {}

    def of(self, segment: RowSegment, node: Node, made: range, read: RowsRead) -> Node | None:
        """Return the node for these rows, or None if its operator cannot compute them alone."""
        key = node, segment.axis, len(made), read.before, read.after
        if key not in self._known:
            self._known[key] = _band_node(segment, node, len(made), read)
        return self._known[key]


def _band_node(segment: RowSegment, node: Node, made: int, read: RowsRead) -> Node | None:
    """Return the node that makes `made` rows of the result."""
    axis, window = segment.axis, segment.windows[node]
    resized: dict[Value, Value] = {}
    for value, rows in (
        *((value, len(read.rows)) for value in segment.operands(node)),
        (node.output, made),
    ):
        shape = list(value.type.shape)
        shape[axis] = rows
        resized[value] = Value(value.name, replace(value.type, shape=tuple(shape)))
    op = node.op
    if window != RowWindow():
        op = op.with_row_padding(axis, read.before, read.after)
    inputs = tuple(None if v is None else resized.get(v, v) for v in node.inputs)
    output = resized[node.output]
    inferred = op.infer([None if v is None else v.type for v in inputs])
    if [t.shape for t in inferred] != [output.type.shape]:
        return None
    return replace(node, op=op, inputs=inputs, outputs=(output,))

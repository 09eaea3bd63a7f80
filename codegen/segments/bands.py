"""Which rows each turn of a segment makes and reads, and which rows its bands keep.

By the end of turn `t`, a node has made `floor((t + 1) * rate - lag)` rows of its result, as far as
they exist. The rates follow from the strides: a node with stride 2 needs twice as many rows of its
operand as it makes. A rate is a whole number of rows, or `1 / n`: the node then makes one row in
every `n`th turn. `lag` is the number of rows by which a node is delayed, so that the rows that it
reads have been made before. It is as small as possible. No row is computed twice.

A band stores the rows that are kept from earlier turns, and behind them the new ones. Before new
rows are made, the kept rows are moved towards the start of the band, so that all turns use the same
addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, lcm, prod

import numpy as np

from smelt.codegen.segments.delivery import delivery_of, is_delivery
from smelt.errors import ModelError
from smelt.ir import Array, DType, Graph, Node, TensorType, Value
from smelt.ir.row_window import RowsRead, RowWindow


@dataclass(frozen=True)
class RowSegment:
    """Nodes that can be computed together, a few rows at a time.

    Attributes:
        nodes: The nodes in execution order; each has one result. The first one may be the delivery
            of a streamed input.
        axis: The axis of the rows; all axes before it have size 1.
        windows: How each node reads the rows of its operands.
        banded: The values that only nodes of the segment read: bands of them are stored.
        reverse: Whether the last rows are computed first. Then `windows` and everything in
            `RowBands` number rows from the last one.
        summed: The last node, if its result is a function of the sums of all rows of its operand.
            It makes no rows: each turn adds some rows of the operand to the sums.
    """

    nodes: tuple[Node, ...]
    axis: int
    windows: Mapping[Node, RowWindow]
    banded: frozenset[Value]
    reverse: bool = False
    summed: Node | None = None

    @property
    def layers(self) -> tuple[Node, ...]:
        """The nodes that are computed: all but a delivery."""
        return self.nodes if self.streamed is None else self.nodes[1:]

    @property
    def streamed(self) -> Value | None:
        """The streamed input of the graph, if the segment begins with its delivery."""
        return self.nodes[0].output if is_delivery(self.nodes[0]) else None

    def mirrored(self) -> RowSegment:
        """Return the segment in the opposite order of rows; it must not have a streamed input."""
        windows = {
            node: window.mirrored(self.height(self.operands(node)[0]), self.rows(node))
            for node, window in self.windows.items()
        }
        return replace(self, windows=windows, reverse=not self.reverse)

    def height(self, value: Value) -> int:
        """Return the number of rows of a value."""
        return value.type.shape[self.axis]

    def rows(self, node: Node) -> int:
        """Return the number of rows that a node makes or, if it is `summed`, that it adds up."""
        return self.height(self.operands(node)[0] if node is self.summed else node.output)

    @cached_property
    def sums(self) -> TensorType | None:
        """The type of the sums, if a node is `summed`."""
        if self.summed is None:
            return None
        return TensorType(self.summed.output.type.shape, DType.INT32)

    def row_bytes(self, value: Value) -> int:
        """Return the bytes of a row of a value."""
        return value.type.bytes // self.height(value)

    def operands(self, node: Node) -> tuple[Value, ...]:
        """Return the operands that a node reads row by row."""
        return self._operands[node]

    @cached_property
    def _operands(self) -> Mapping[Node, tuple[Value, ...]]:
        return {node: operands_with_rows(node, self.axis) for node in self.nodes}

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
    return tuple(
        value
        for i, value in enumerate(node.inputs)
        if value is not None
        and value.data is None
        and len(value.type.shape) == len(y)
        and (i == 0 or value is node.inputs[0] or value.type.shape[axis] == y[axis])
    )


def segment_of(
    graph: Graph, nodes: Sequence[Node], streamed: Value | None = None
) -> RowSegment | None:
    """Return the segment of consecutive nodes of a graph, or None if they cannot be one.

    Args:
        graph: The graph.
        nodes: The nodes.
        streamed: The input of the graph whose rows the caller delivers to this segment, if any.
    """
    if any(node.op.is_view or node.op.subgraphs or len(node.outputs) != 1 for node in nodes):
        return None
    axis = rows_axis(nodes[0])
    windows = {node: window for node in nodes if (window := row_window(node, axis)) is not None}
    summed = nodes[-1] if adds_rows(nodes[-1], axis) else None
    if summed is not None:
        windows[summed] = RowWindow()
    if len(windows) < len(nodes):
        return None
    if streamed is not None:
        delivery = delivery_of(streamed)
        nodes, windows = (delivery, *nodes), {delivery: RowWindow(), **windows}
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
    if streamed is not None and streamed not in banded:
        return None  # a node after the segment reads the streamed input
    return RowSegment(tuple(nodes), axis, windows, banded, summed=summed)


def adds_rows(node: Node, axis: int) -> bool:
    """Return whether a node's only result is a function of the sums of its operand's rows."""
    if len(node.inputs) != 1 or len(node.outputs) != 1:
        return False
    x, y = node.input(0).type.shape, node.output.type.shape
    rows = len(x) == len(y) > axis + 1 and prod(x[:axis]) == 1 and x[axis] > 1 == y[axis]
    return rows and node.op.row_sums(node, last=True) is not None


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
        rates: For each node, the number of rows of its result that it makes in a turn: a whole
            number or, if it makes one row in every `n`th turn only, `1 / n`.
        lags: For each node, the number of rows by which it is delayed.
    """

    segment: RowSegment
    rates: Mapping[Node, Fraction]
    lags: Mapping[Node, Fraction]

    @property
    def rate(self) -> Fraction:
        """The rate of the last node."""
        return self.rates[self.segment.nodes[-1]]

    @cached_property
    def turns(self) -> int:
        """The number of turns."""
        return max(self.active[node].stop for node in self.segment.nodes)

    @cached_property
    def period(self) -> int:
        """The number of turns after which each node makes a row again."""
        return lcm(*(rate.denominator for rate in self.rates.values()))

    def made(self, node: Node) -> int:
        """Return the number of rows that a node makes in a turn in which it makes some."""
        return self.rates[node].numerator

    def rows(self, node: Node, turn: int) -> range:
        """Return the rows that a node makes in a turn."""
        done = self.done[node]
        return range(done[turn], done[turn + 1])

    @cached_property
    def done(self) -> Mapping[Node, Sequence[int]]:
        """For each node, how many rows it has made before each turn, and after the last one."""
        heights = {node: self.segment.rows(node) for node in self.segment.nodes}
        return {
            node: [min(max(self._unbounded(node, t), 0), rows) for t in range(-1, self.turns)]
            for node, rows in heights.items()
        }

    def _unbounded(self, node: Node, turn: int) -> int:
        """Return how many rows a node has made by the end of a turn if rows never end.

        The number is below 0 while the node is delayed, and above the height after the last row.
        """
        rate, lag, unit = self._progress[node]
        return ((turn + 1) * rate - lag) // unit

    @cached_property
    def _progress(self) -> Mapping[Node, tuple[int, int, int]]:
        """For each node, its rate and its lag in fractions of a row, and the fractions in a row."""
        found: dict[Node, tuple[int, int, int]] = {}
        for node, rate in self.rates.items():
            unit = lcm(rate.denominator, self.lags[node].denominator)
            found[node] = int(rate * unit), int(self.lags[node] * unit), unit
        return found

    def read(self, node: Node, made: range) -> RowsRead:
        """Return the rows of its operands that some rows of a node's result depend on.

        The rows that a delivery reads are those of the caller's tensor.
        """
        if is_delivery(node):
            return RowsRead(made)
        height = self.segment.height(self.segment.operands(node)[0])
        return self.segment.windows[node].read(made, height)

    def begins(self) -> Iterator[int]:
        """Yield the offsets in bytes at which calls read and write whole tensors."""
        segment = self.segment
        for node in segment.layers:
            whole = [v for v in segment.operands(node) if v not in segment.banded]
            output = node.output
            for made in (self.rows(node, turn) for turn in self.active[node]):
                for value in whole:
                    yield self.read(node, made).rows.start * segment.row_bytes(value)
                if output not in segment.banded and node is not segment.summed:
                    yield made.start * segment.row_bytes(output)

    def first(self, value: Value, turn: int) -> int:
        """Return the row at the start of a band in a turn, which may be below 0."""
        node = self.segment.producers[value]
        return self._unbounded(node, turn) - self.made(node) - self.kept[value]

    def band_rows(self, value: Value) -> int:
        """Return the number of rows that a band stores."""
        return self.kept[value] + self.made(self.segment.producers[value])

    @cached_property
    def kept(self) -> Mapping[Value, int]:
        """For each band, the largest number of rows that are still needed after a turn."""
        return {value: max(self._kept_after[value]) for value in self.segment.banded}

    def kept_after(self, value: Value, turn: int) -> int:
        """Return the number of rows of a band that are still needed after a turn."""
        return self._kept_after[value][turn % self.period]

    @cached_property
    def _kept_after(self) -> Mapping[Value, Sequence[int]]:
        """For each band, the rows that are needed after each of the first `period` turns."""
        return {
            value: [self._needed(value, turn) for turn in range(self.period)]
            for value in self.segment.banded
        }

    def _needed(self, value: Value, turn: int) -> int:
        oldest = min(
            self._unbounded(node, turn) * window.stride - window.before
            for node in self.segment.readers[value]
            for window in (self.segment.windows[node],)
        )
        return max(0, self._unbounded(self.segment.producers[value], turn) - oldest)

    @cached_property
    def active(self) -> Mapping[Node, range]:
        """For each node, the turns in which it makes rows."""
        found: dict[Node, range] = {}
        for node, rate in self.rates.items():
            lag, height = self.lags[node], self.segment.rows(node)
            first = ceil((1 + lag) / rate) - 1
            found[node] = range(first, ceil((height + lag) / rate), rate.denominator)
        return found

    @cached_property
    def refills(self) -> Mapping[Value, range]:
        """For each band, the turns in which new rows are made behind the kept ones.

        They go on until the last turn that reads the band. So the last ones may make no rows,
        because all rows have been made. Rows that no node reads are made too.
        """
        found: dict[Value, range] = {}
        for value in self.segment.banded:
            made = self.active[self.segment.producers[value]]
            last = max(self.active[node].stop for node in self.segment.readers[value])
            found[value] = range(made.start, max(last, made.stop), made.step)
        return found

    @cached_property
    def last_uses(self) -> Mapping[Value, Array]:
        """For each band, the last call that writes or reads it before it is refilled.

        The arrays have an element for each of `refills`. A call is given as the turn times the
        number of nodes, plus the position of the node.
        """
        nodes, found = self.segment.nodes, dict[Value, Array]()
        for value, turns in self.refills.items():
            refills = np.array(turns)
            following = np.append(refills[1:], self.turns)
            last = refills * len(nodes) + nodes.index(self.segment.producers[value])
            for reader in self.segment.readers[value]:
                reads = np.array(self.active[reader])
                before = np.searchsorted(reads, following) - 1
                turn = np.where(before >= 0, reads[before], -1)
                read = turn * len(nodes) + nodes.index(reader)
                last = np.where(turn >= refills, np.maximum(last, read), last)
            found[value] = last
        return found


def bands_of(segment: RowSegment, rows: Fraction) -> RowBands | None:
    """Return the bands of a segment whose last node makes `rows` rows in a turn.

    Returns None if the strides do not allow that number.
    """
    rates = _rates(segment, rows)
    if rates is None:
        return None
    lags: dict[Node, Fraction] = {}
    for node in segment.nodes:
        window = segment.windows[node]
        late = [Fraction(0)]
        for value in segment.operands(node):
            producer = segment.producers.get(value)
            if producer is not None:
                missing = lags[producer] + window.size - window.stride - window.before
                late.append(missing / window.stride)
        lags[node] = max(late)
    bands = RowBands(segment, rates, lags)
    return bands if _always_reads_rows(bands) else None


def _always_reads_rows(bands: RowBands) -> bool:
    """Return whether each call reads at least one row, so that none reads padding alone.

    If the first and the last call of a node do, all of its calls do.
    """
    return all(
        bands.read(node, bands.rows(node, turn)).rows
        for node in bands.segment.nodes
        for turn in (bands.active[node][0], bands.active[node][-1])
    )


def _rates(segment: RowSegment, rows: Fraction) -> dict[Node, Fraction] | None:
    """Return the rows that each node makes in a turn, or None if they are not possible.

    Possible are whole numbers, and `1 / n` for nodes that make one row in every `n`th turn. In each
    turn, some node must make a row; a delivery must make rows in each turn.
    """
    found: dict[Node, Fraction] = {segment.nodes[-1]: rows}
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
    if len(found) < len(segment.nodes) or max(found.values()) < 1:
        return None
    if any(1 not in (rate.numerator, rate.denominator) for rate in found.values()):
        return None
    if segment.streamed is not None and found[segment.nodes[0]].denominator != 1:
        return None
    return found


class BandNodes:
    """Makes the nodes that compute a few rows of other nodes' results; equal nodes only once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Node | None] = {}

    def of(self, segment: RowSegment, node: Node, made: range, read: RowsRead) -> Node | None:
        """Return the node for these rows, or None if its operator cannot compute them alone."""
        if node is segment.summed:
            first, last = made.start == 0, made.stop == segment.rows(node)
            if segment.reverse:
                first, last = last, first
            key = node, segment.axis, len(made), first, last
            if key not in self._known:
                self._known[key] = _sums_node(segment, node, len(made), first=first, last=last)
            return self._known[key]
        key = node, segment.axis, len(made), read.before, read.after
        if key not in self._known:
            self._known[key] = _band_node(segment, node, len(made), read)
        return self._known[key]


def _sums_node(
    segment: RowSegment, node: Node, added: int, *, first: bool, last: bool
) -> Node | None:
    """Return the node that adds rows to the sums or, if they are the `last`, makes the result."""
    op, x, sums = node.op.row_sums(node, last=last), node.input(0), segment.sums
    if op is None or sums is None:
        return None
    shape = list(x.type.shape)
    shape[segment.axis] = added
    rows = Value(x.name, replace(x.type, shape=tuple(shape)))
    name = f"sums of {node.output.name}"
    output = Value(node.output.name, node.output.type) if last else Value(name, sums)
    inputs = (rows,) if first else (rows, Value(name, sums))
    return replace(node, op=op, inputs=inputs, outputs=(output,))


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
    op = node.op.with_rows(axis, made)
    if window != RowWindow():
        op = op.with_row_padding(axis, read.before, read.after)
    inputs = tuple(None if v is None else resized.get(v, v) for v in node.inputs)
    output = resized[node.output]
    try:
        inferred = op.infer([None if v is None else v.type for v in inputs])
    except ModelError:  # sizes of the operator do not depend on those of its operands
        return None
    if [t.shape for t in inferred] != [output.type.shape]:
        return None
    return replace(node, op=op, inputs=inputs, outputs=(output,))

"""Bands in one buffer: layers that compute their rows in the memory of the rows that they read.

A depthwise convolution overwrites the oldest rows of its operand's band, which no later turn needs.
A 1x1 convolution overwrites the rows that it reads. Its new rows then lie directly behind the rows
that its own band has kept. So the bands of a chain of such layers lie in one buffer, in which only
the kept rows of each band need additional bytes.

Kept rows are moved to the start of their band at the end of a turn, those of the last band first:
by then, nothing else is live there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from smelt.codegen.segments.bands import RowBands
from smelt.ir import Array, Node, Value

MayOverwrite = Callable[[Node, range], bool]
"""Whether the kernel of a layer may compute some rows in the memory of its operand."""


@dataclass(frozen=True)
class LiveBytes:
    """Live bytes of a chain's buffer: those of a band, between two points in time.

    Each turn has a point for each node, then one for each move at its end.

    Attributes:
        value: The tensor of the band.
        first, end: The points in time: `first <= point < end`.
        low, high: The bytes: `low <= byte < high`.
    """

    value: Value
    first: int
    end: int
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class BandChain:
    """Bands in one buffer; each is computed in the memory of the one before.

    Attributes:
        bands: All bands of the segment.
        offsets: For each band of the chain in order, the bytes from the start of the buffer.
    """

    bands: RowBands
    offsets: dict[Value, int]

    @property
    def first(self) -> Value:
        """The first tensor of the chain."""
        return next(iter(self.offsets))

    @property
    def size(self) -> int:
        """The bytes of the buffer."""
        return max(offset + self._bytes(value) for value, offset in self.offsets.items())

    def moved_last(self, turn: int) -> Iterator[Value]:
        """Yield the bands whose kept rows are moved at the end of a turn, the last band first."""
        for value in reversed(self.offsets):
            refills = self.bands.refills[value]
            if turn in refills and turn + 1 in refills and self.bands.kept_after(value, turn):
                yield value

    @property
    def points(self) -> int:
        """The points in time of a turn: its nodes, then the moves at its end."""
        return len(self.bands.segment.nodes) + len(self.offsets)

    def live(self) -> Iterator[LiveBytes]:
        """Yield the live bytes of all bands."""
        bands, nodes, count = self.bands, self.bands.segment.nodes, self.points
        for move, (value, offset) in enumerate(reversed(self.offsets.items()), len(nodes)):
            row, size = bands.segment.row_bytes(value), self._bytes(value)
            producer = nodes.index(bands.segment.producers[value])
            for turn, last in zip(bands.refills[value], bands.last_uses[value], strict=True):
                used = int(last) // len(nodes) * count + int(last) % len(nodes) + 1
                yield LiveBytes(value, turn * count + producer, used, offset, offset + size)
                kept = bands.kept_after(value, turn) * row
                if kept and turn + 1 in bands.refills[value]:
                    moved, end = turn * count + move, offset + size
                    yield LiveBytes(value, used, moved + 1, end - kept, end)
                    target = offset + bands.kept[value] * row
                    following = (turn + 1) * count + producer
                    yield LiveBytes(value, moved, following, target - kept, target)

    def extent(self) -> tuple[Array, Array]:
        """Return the first live byte of the buffer, and the byte after the last one, by point.

        Both are 0 where no byte is live.
        """
        points = self.bands.turns * self.points
        low, high = np.full(points, self.size), np.zeros(points, int)
        for live in self.live():
            part = slice(live.first, live.end)
            low[part] = np.minimum(low[part], live.low)
            high[part] = np.maximum(high[part], live.high)
        return np.minimum(low, high), high

    def is_possible(self, in_place: MayOverwrite) -> bool:
        """Return whether no call and no move overwrites bytes that another band still needs."""
        lasting: list[LiveBytes] = []
        for live in sorted(self.live(), key=lambda live: live.first):
            lasting = [other for other in lasting if other.end > live.first]
            for other in lasting:
                shared = other.low < live.high and live.low < other.high
                if shared and other.value is not live.value:
                    together = range(live.first, min(live.end, other.end))
                    if not any(
                        self._are_in_place(operand.value, result.value, together, in_place)
                        for operand, result in ((live, other), (other, live))
                    ):
                        return False
            lasting.append(live)
        return True

    def _are_in_place(
        self, operand: Value, result: Value, together: range, in_place: MayOverwrite
    ) -> bool:
        """Return whether two bands share bytes only in the call that computes one from the other.

        Args:
            operand: One band.
            result: The other.
            together: The points at which they share bytes.
            in_place: Tells whether the call may have operand and result at one address.
        """
        bands, segment = self.bands, self.bands.segment
        node = segment.producers[result]
        turn, position = divmod(together.start, self.points)
        if segment.operands(node) != (operand,):
            return False
        if len(together) > 1 or position != segment.nodes.index(node):
            return False
        made = bands.rows(node, turn)
        if not made:
            return True
        read = self._bytes_of(operand, bands.read(node, made).rows, turn)
        write = self._bytes_of(result, made, turn)
        apart = read[1] <= write[0] or write[1] <= read[0]
        return apart or (write[0] <= read[0] and in_place(node, made))

    def _bytes_of(self, value: Value, rows: range, turn: int) -> tuple[int, int]:
        """Return the bytes of the buffer that rows of a band take in a turn: the first, the end."""
        first, row = self.bands.first(value, turn), self.bands.segment.row_bytes(value)
        offset = self.offsets[value] - first * row
        return offset + rows.start * row, offset + rows.stop * row

    def _bytes(self, value: Value) -> int:
        return self.bands.band_rows(value) * self.bands.segment.row_bytes(value)


def chains_of(bands: RowBands, in_place: MayOverwrite) -> tuple[BandChain, ...]:
    """Return the chains of a segment that computes its first rows first; none of the others."""
    segment = bands.segment
    if segment.reverse:
        return ()
    found: list[dict[Value, int]] = []
    for node in segment.layers:
        x, y = segment.operands(node)[0], node.output
        offset = _offset(bands, node, in_place)
        if offset is None:
            continue
        chain = next((chain for chain in found if x in chain), None)
        if chain is None:
            found.append(chain := {x: 0})
        chain[y] = chain[x] + offset
    chains = [_normalized(bands, chain) for chain in found]
    return tuple(chain for chain in chains if chain.is_possible(in_place))


def _normalized(bands: RowBands, offsets: Mapping[Value, int]) -> BandChain:
    """Return the chain with the lowest band at the start of the buffer."""
    lowest = min(offsets.values())
    return BandChain(bands, {value: offset - lowest for value, offset in offsets.items()})


def _offset(bands: RowBands, node: Node, in_place: MayOverwrite) -> int | None:
    """Return the bytes from the band of a node's operand to that of its result, in place of it.

    Returns None if the node cannot compute its rows in place.
    """
    segment = bands.segment
    (x, *others), y = segment.operands(node), node.output
    if others or not {x, y} <= segment.banded or segment.readers[x] != (node,):
        return None
    if x is segment.streamed or any(
        bands.rates[n].denominator > 1 for n in (segment.producers[x], node)
    ):
        return None
    turn = bands.active[node][len(bands.active[node]) // 2]
    made = bands.rows(node, turn)
    if not in_place(node, made):
        return None
    read = bands.read(node, made).rows.start - bands.first(x, turn)
    written = made.start - bands.first(y, turn)
    return read * segment.row_bytes(x) - written * segment.row_bytes(y)

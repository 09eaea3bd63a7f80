"""How many bytes are live while the calls of a segment run, without planning their addresses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smelt.codegen.segments.bands import RowBands
from smelt.ir import Node, Value


@dataclass(frozen=True)
class SegmentLiveBytes:
    """The live bytes of a segment's calls.

    Attributes:
        bands: The bands.
        other: Bytes of tensors that are live all the time.
        consumed: Tensors whose rows are live only until the segment has read them.
    """

    bands: RowBands
    other: int
    consumed: frozenset[Value]

    def peaks(self) -> tuple[int, ...]:
        """Return, for each node, the most live bytes in one of its calls, without scratch.

        Between the first and the last few turns, live bytes change at a constant rate, so that the
        turns at both ends have the maximum.
        """
        turns, nodes = self.bands.turns, self.bands.segment.nodes
        longest = max(-(-lag // made) for lag, made in self._lags()) + 2
        seen = sorted({*range(min(longest, turns)), *range(max(turns - longest, 0), turns)})
        return tuple(
            max(self._live(position, turn) for turn in seen) for position in range(len(nodes))
        )

    def _lags(self) -> Iterator[tuple[int, int]]:
        for node in self.bands.segment.nodes:
            yield self.bands.lags[node], self.bands.made[node]

    def _live(self, position: int, turn: int) -> int:
        """Return the live bytes while the node at a position runs in a turn."""
        bands, segment = self.bands, self.bands.segment
        live = self.other
        order = {node: i for i, node in enumerate(segment.nodes)}
        for value, readers in segment.readers.items():
            row = segment.row_bytes(value)
            if value in segment.banded:
                producer = order[segment.producers[value]]
                last = max(order[reader] for reader in readers)
                within = producer <= position <= last
                rows = bands.band_rows(value) if within else bands.kept[value]
                live += rows * row
            elif value in self.consumed:
                waiting = (
                    self._next(reader, turn + (order[reader] < position)) for reader in readers
                )
                live += (segment.height(value) - min(waiting)) * row
        for node in segment.nodes:
            if node.output not in segment.banded:
                made = bands.rows(node, turn - (order[node] > position)).stop
                live += made * segment.row_bytes(node.output)
        return live

    def _next(self, node: Node, turn: int) -> int:
        """Return the first row that a node reads in a turn or later."""
        made = self.bands.rows(node, turn)
        height = self.bands.segment.height(self.bands.segment.operands(node)[0])
        if made.start >= self.bands.segment.height(node.output):
            return height
        window = self.bands.segment.windows[node]
        return max(made.start * window.stride - window.before, 0)

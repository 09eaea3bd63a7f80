"""The turns of a segment, and the calls that they have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from smelt.codegen.segments.bands import BandNodes, RowBands, RowSegment
from smelt.ir import Node, Value
from smelt.ir.row_window import RowsRead


@dataclass(frozen=True)
class LayerTurn:
    """What a node does in a turn.

    Attributes:
        node: The node.
        made: The rows of its result that it makes.
        read: The rows of its operands that it reads.
        band_node: The node that computes these rows alone.
    """

    node: Node
    made: range
    read: RowsRead
    band_node: Node


class Turns:
    """The turns of a segment."""

    def __init__(self, bands: RowBands, nodes: BandNodes, moved: Sequence[Value] = ()) -> None:
        """Set up.

        Args:
            bands: The rows of each turn.
            nodes: Makes the nodes that compute a few rows.
            moved: Whole tensors that are moved before the first turn, to where they leave more
                space.

        Raises:
            ValueError: A node cannot compute a few rows alone.
        """
        self.bands = bands
        self.moved = moved
        self._nodes = nodes
        self.all = tuple(tuple(self._turn(turn)) for turn in range(bands.turns))

    @property
    def segment(self) -> RowSegment:
        """The nodes that are computed."""
        return self.bands.segment

    def _turn(self, turn: int) -> Iterator[LayerTurn]:
        for node in self.segment.nodes:
            made = self.bands.rows(node, turn)
            if made:
                read = self.bands.read(node, made)
                if self.segment.reverse:
                    height = self.segment.height(self.segment.operands(node)[0])
                    made = _mirrored(made, self.segment.height(node.output))
                    read = RowsRead(_mirrored(read.rows, height), read.after, read.before)
                band_node = self._nodes.of(self.segment, node, made, read)
                if band_node is None:
                    raise ValueError(f"{node.name} cannot be computed in rows")
                yield LayerTurn(node, made, read, band_node)

    @cached_property
    def active(self) -> Mapping[Value, range]:
        """For each band, the turns from the first that writes it to the last that reads it."""
        return {
            value: range(
                next(
                    turn
                    for turn in range(self.bands.turns)
                    if self.bands.rows(self.segment.producers[value], turn)
                ),
                self.bands.last_read(value) + 1,
            )
            for value in self.segment.banded
        }

    def position(self, value: Value, rows: range, turn: int) -> int:
        """Return where rows of a band begin in a turn, in rows from the band's start."""
        height, first = self.segment.height(value), self.bands.first(value, turn)
        if self.segment.reverse:
            return self.bands.band_rows(value) - (height - rows.start - first)
        return rows.start - first

    def is_shifted(self, value: Value, turn: int) -> bool:
        """Return whether rows of a band are moved to its start at the beginning of a turn."""
        return self.bands.kept[value] > 0 and turn in self.active[value][1:]

    def phases(self) -> Iterator[range]:
        """Yield ranges of turns that execute the same calls, each a turn's rows further on."""
        for _, turns in groupby(range(self.bands.turns), self._calls):
            found = list(turns)
            yield range(found[0], found[-1] + 1)

    def _calls(self, turn: int) -> tuple[object, ...]:
        bands, segment = self.bands, self.segment
        calls: list[tuple[int, int, int]] = []
        for layer in self.all[turn]:
            node = layer.node
            made = bands.rows(node, turn)
            advance = turn * bands.made[node]
            read = bands.read(node, made).rows.start - advance * segment.windows[node].stride
            calls.append((id(layer.band_node), made.start - advance, read))
        return tuple(calls), frozenset(v for v in segment.banded if self.is_shifted(v, turn))

    def band_nodes(self) -> Mapping[Node, Mapping[Node, int]]:
        """Return, for each node, the nodes that compute its rows, with their numbers of calls."""
        found: dict[Node, dict[Node, int]] = {node: {} for node in self.segment.nodes}
        for layer in (layer for turn in self.all for layer in turn):
            calls = found[layer.node]
            calls[layer.band_node] = calls.get(layer.band_node, 0) + 1
        return found


def _mirrored(rows: range, height: int) -> range:
    """Return the rows by their numbers from the other end."""
    return range(height - rows.stop, height - rows.start)


def nodes_of(segments: Sequence[Turns]) -> AbstractSet[Node]:
    """Return all nodes of the segments."""
    return {node for turns in segments for node in turns.segment.nodes}

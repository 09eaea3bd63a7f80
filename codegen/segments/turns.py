"""The turns of a segment: what each computes, and which rows it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from smelt.codegen.segments.bands import BandNodes, RowBands, RowSegment
from smelt.codegen.segments.chains import BandChain
from smelt.codegen.segments.delivery import is_delivery
from smelt.ir import Node, Value
from smelt.ir.row_window import RowsRead


@dataclass(frozen=True)
class LayerTurn:
    """What a node does in a turn.

    Attributes:
        node: The node.
        made: The rows of its result that it makes, or of its operand that it adds up.
        read: The rows of its operands that it reads.
        band_node: The node that computes these rows alone; for a delivery, the delivery itself.
    """

    node: Node
    made: range
    read: RowsRead
    band_node: Node

    @property
    def has_result(self) -> bool:
        """Whether the call makes rows of the node's result, or all of it; not only sums of rows."""
        return self.band_node.output.type.dtype is self.node.output.type.dtype


class Turns:
    """The turns of a segment.

    Attributes:
        bands: The rows of each turn.
        moved: Whole tensors that are moved before the first turn.
        early: The bands whose kept rows are moved to the start of the band by their last user.
        spilled: The bands whose kept rows wait in a buffer of their own.
        chains: The chains of bands that share a buffer.
        chained: The chain of each band that is in one.
        all: What the nodes do in each turn.
    """

    def __init__(
        self,
        bands: RowBands,
        nodes: BandNodes,
        moved: Sequence[Value] = (),
        early: AbstractSet[Value] = frozenset(),
        spilled: AbstractSet[Value] = frozenset(),
        chains: Sequence[BandChain] = (),
    ) -> None:
        """Set up.

        Args:
            bands: The rows of each turn.
            nodes: Makes the nodes that compute a few rows.
            moved: Whole tensors that are moved before the first turn, to make room for the results
                of the segment.
            early: The bands whose kept rows are moved to the start of the band after the last call
                that reads them. The band of a streamed input is added: between two turns, the
                caller writes the next rows behind the kept ones.
            spilled: The bands whose kept rows are then moved to a buffer of their own, and from
                there to the start of the band before new rows are made. In bands that are neither
                `early` nor `spilled`, kept rows are moved only then.
            chains: Bands that share a buffer. They are neither `early` nor `spilled`.

        Raises:
            ValueError: A node cannot compute a few rows alone.
        """
        self.bands = bands
        self.moved = moved
        streamed = bands.segment.streamed
        self.chains = chains
        self.chained = {value: chain for chain in chains for value in chain.offsets}
        self.early = (early if streamed is None else early | {streamed}) - self.chained.keys()
        own = (spilled & bands.segment.banded) - self.early - self.chained.keys()
        self.spilled = frozenset(v for v in own if bands.kept[v])
        self._nodes = nodes
        self.all = tuple(tuple(self._turn(turn)) for turn in range(bands.turns))

    @property
    def segment(self) -> RowSegment:
        """The segment that the turns compute."""
        return self.bands.segment

    def _turn(self, turn: int) -> Iterator[LayerTurn]:
        for node in self.segment.nodes:
            made = self.bands.rows(node, turn)
            if made:
                read = self.bands.read(node, made)
                if self.segment.reverse:
                    height = self.segment.height(self.segment.operands(node)[0])
                    made = _mirrored(made, self.segment.rows(node))
                    read = RowsRead(_mirrored(read.rows, height), read.after, read.before)
                band_node = node
                if not is_delivery(node):
                    band_node = self._nodes.of(self.segment, node, made, read)
                if band_node is None:
                    raise ValueError(f"{node.name} cannot be computed a few rows at a time")
                yield LayerTurn(node, made, read, band_node)

    def with_possible_chains(self, in_place: Callable[[Node], bool]) -> Turns:
        """Return the turns without chains for which a kernel cannot compute rows in place.

        The search has asked about most calls of each layer, but not about those for the first and
        last rows.

        Args:
            in_place: Whether the kernel of a node that computes a few rows may overwrite its
                operand.
        """

        def possible(node: Node, made: range) -> bool:
            read = self.bands.read(node, made)
            band_node = self._nodes.of(self.segment, node, made, read)
            return band_node is not None and in_place(band_node)

        chains = [chain for chain in self.chains if chain.is_possible(possible)]
        if len(chains) == len(self.chains):
            return self
        early, spilled = self.early, self.spilled
        return Turns(self.bands, self._nodes, self.moved, early, spilled, chains)

    def position(self, value: Value, rows: range, turn: int) -> int:
        """Return where rows of a band begin in a turn, in rows from the band's start."""
        height, first = self.segment.height(value), self.bands.first(value, turn)
        if self.segment.reverse:
            return self.bands.band_rows(value) - (height - rows.start - first)
        return rows.start - first

    def moved_before(self, turn: int) -> Iterator[Value]:
        """Yield the bands whose kept rows are moved before new ones are made in a turn."""
        for value in self._bands:
            again = turn in self.bands.refills[value][1:]
            late = value not in self.early and value not in self.chained
            if again and late and self.bands.kept_after(value, turn - 1):
                yield value

    def moved_after(self, node: Node, turn: int) -> Sequence[Value]:
        """Return the bands whose kept rows are moved after a node, their last user, in a turn."""
        return self._moved_after.get((turn, node), ())

    @cached_property
    def _moved_after(self) -> Mapping[tuple[int, Node], Sequence[Value]]:
        """The bands whose kept rows are moved after a call, by its turn and node.

        Rows that stay in their bands are moved first: other rows may be spilled to where they were.
        """
        found: dict[tuple[int, Node], list[Value]] = {}
        for kind in (self.early, self.spilled):
            for value in (value for value in self._bands if value in kind):
                for refill, again in pairwise(self.bands.refills[value]):
                    if self.bands.kept_after(value, again - 1):
                        found.setdefault(self.last_user(value, refill), []).append(value)
        return found

    def last_user(self, value: Value, refill: int) -> tuple[int, Node]:
        """Return the turn and node of the last call that uses a band before its next refill.

        Args:
            value: The band.
            refill: One of the turns `RowBands.refills`.
        """
        last = self.bands.last_uses[value][self.bands.refills[value].index(refill)]
        turn, position = divmod(int(last), len(self.segment.nodes))
        return turn, self.segment.nodes[position]

    @cached_property
    def _bands(self) -> tuple[Value, ...]:
        """The bands in the order of their producers."""
        made = (node.output for node in self.segment.nodes)
        return tuple(value for value in made if value in self.segment.banded)

    def band_nodes(self) -> Mapping[Node, Mapping[Node, int]]:
        """Return, for each node, the nodes that compute its rows, with their numbers of calls."""
        found: dict[Node, dict[Node, int]] = {node: {} for node in self.segment.layers}
        for layer in (layer for turn in self.all for layer in turn if layer.node in found):
            calls = found[layer.node]
            calls[layer.band_node] = calls.get(layer.band_node, 0) + 1
        return found


def _mirrored(rows: range, height: int) -> range:
    """Return the rows, numbered from the last row of the tensor instead of the first."""
    return range(height - rows.stop, height - rows.start)


def nodes_of(segments: Sequence[Turns]) -> AbstractSet[Node]:
    """Return all layers of the segments."""
    return {node for turns in segments for node in turns.segment.layers}

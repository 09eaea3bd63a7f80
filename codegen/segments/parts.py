"""The parts that a graph is cut into: single nodes, and segments."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

from smelt.codegen.segments.bands import BandNodes, RowBands, bands_of
from smelt.codegen.segments.chains import BandChain
from smelt.codegen.segments.turns import Turns
from smelt.ir import Node, Value


@dataclass(frozen=True, eq=False)
class GraphPart:
    """Nodes from `start` to `end - 1`, as a whole or as a segment.

    Attributes:
        start, end: Positions in the graph.
        peaks: For each node, the largest number of live bytes in one of its calls, without its
            scratch.
        calls: For each node, the nodes that its calls compute, with their numbers of calls. The
            first one is the one of most calls.
        bands: The bands of a segment; None for a single node.
        overhead: Estimated cycles to move rows, and to call each node more than once.
        consumed: Whole tensors whose rows may be overwritten once the segment has read them.
        chains: The chains of bands that share a buffer, if that needs fewer bytes.
        in_place: For each node that computes its rows in place in a chain, the most bytes of
            scratch with which its kernel is one that can; None for the other nodes.
    """

    start: int
    end: int
    peaks: tuple[int, ...]
    calls: tuple[Mapping[Node, int], ...]
    bands: RowBands | None = None
    overhead: float = 0
    consumed: frozenset[Value] = frozenset()
    chains: tuple[BandChain, ...] = ()
    in_place: tuple[int | None, ...] = (None,)

    @property
    def whole(self) -> Node:
        """The single node."""
        (node,) = self.calls[0]
        return node

    @cached_property
    def peak(self) -> int:
        """The largest number of live bytes in one of its calls, without scratch."""
        return max(self.peaks)

    def scratch(self, limit: int) -> tuple[int, ...]:
        """Return the bytes of scratch that each node may take to stay within a limit."""
        return tuple(
            limit - peak if most is None else min(limit - peak, most)
            for peak, most in zip(self.peaks, self.in_place, strict=True)
        )


@dataclass(frozen=True, eq=False)
class UnestimatedSegment:
    """A segment whose kernels the partitioner has not been asked for.

    Attributes:
        start, end: Positions in the graph.
        bands: The bands of the segment.
        overhead: See `GraphPart`.
    """

    start: int
    end: int
    bands: RowBands
    overhead: float


def is_no_smaller(part: GraphPart | UnestimatedSegment, other: GraphPart) -> bool:
    """Return whether a part is the same segment as another, with as many rows in a turn or more."""
    same = (part.start, part.end) == (other.start, other.end)
    bands, least = part.bands, other.bands
    return same and bands is not None and least is not None and bands.rate >= least.rate


@dataclass(frozen=True)
class Parts:
    """A way to compute a graph.

    Attributes:
        parts: Single nodes and segments, in order.
        limit: The bytes that each of them stays within.
        cycles: The estimated cycles of an inference.
    """

    parts: tuple[GraphPart, ...]
    limit: int
    cycles: float

    @property
    def key(self) -> Hashable:
        """A key that is equal for equal parts with equal kernels."""
        return self.parts, self.cycles

    @property
    def bands(self) -> frozenset[Value]:
        """The bands of all segments."""
        return frozenset(v for p in self.parts if p.bands for v in p.bands.segment.banded)

    @property
    def segments(self) -> tuple[GraphPart, ...]:
        """The parts that are segments."""
        return tuple(part for part in self.parts if part.bands is not None)

    def turns(
        self,
        nodes: BandNodes,
        *,
        moving: bool,
        early: AbstractSet[Value] = frozenset(),
        spilled: AbstractSet[Value] = frozenset(),
    ) -> tuple[Turns, ...]:
        """Return the turns of the segments.

        The result of a segment can overwrite rows of its operand that have been read. The result
        then begins a little before the operand if the first rows are computed first, and ends a
        little after it if the last rows are computed first. So every second segment computes the
        last rows first: the tensors of a chain of segments then stay at about the same addresses.

        Args:
            nodes: Makes the nodes that compute a few rows.
            moving: Whether all segments compute the first rows first instead, and their operands
                are moved before, to make room for their results.
            early: See `Turns`.
            spilled: See `Turns`.
        """
        found: list[Turns] = []
        made: set[Value] = set()
        for part in self.parts:
            if part.bands is not None:
                bands = part.bands
                if len(found) % 2 and not moving:
                    bands = bands_of(bands.segment.mirrored(), bands.rate) or bands
                moved = sorted(part.consumed & made, key=lambda value: value.name) if moving else ()
                chains = part.chains if bands is part.bands else ()
                found.append(Turns(bands, nodes, moved, early, spilled, chains))
                made |= set(bands.segment.producers)
            else:
                made.update(part.whole.outputs)
        return tuple(found)

    def scratch(self, segments: Sequence[Turns]) -> Mapping[Node, int]:
        """Return the bytes of scratch that each node may take.

        The nodes are those that are computed as a whole, and those that compute a few rows.
        """
        found: dict[Node, int] = {}
        banded = {turns.segment.layers[0]: turns.band_nodes() for turns in segments}
        for part in self.parts:
            if part.bands is None:
                found[part.whole] = self.limit - part.peaks[0]
                continue
            nodes = part.bands.segment.layers
            for node, scratch in zip(nodes, part.scratch(self.limit), strict=True):
                found |= dict.fromkeys(banded[nodes[0]][node], scratch)
        return found

"""Which nodes are computed in segments: the fastest way to stay within a number of bytes.

A graph is cut into parts: single nodes that compute whole tensors, and segments. Dynamic
programming over the positions of cuts finds the parts with the fewest estimated cycles among those
that need at most a given number of bytes. The bytes of a part are the most bytes that are live
during one of its calls: other tensors, bands, and scratch. Alignment and gaps between buffers need
further bytes, which the search does not count. So the caller must plan the memory and, if the plan
is too large, search again with a smaller number of bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from math import inf

from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.passes.loops import root_of
from smelt.codegen.segments.bands import BandNodes, RowBands, RowSegment, bands_of, segment_of
from smelt.codegen.segments.chains import BandChain, MayOverwrite, chains_of
from smelt.codegen.segments.kernel_costs import KernelCosts
from smelt.codegen.segments.live_bytes import SegmentLiveBytes
from smelt.codegen.segments.parts import GraphPart, Parts, UnestimatedSegment, is_no_smaller
from smelt.errors import UnsupportedError
from smelt.ir import Graph, Node, Value

ROWS = (*(Fraction(1, n) for n in (8, 4, 2)), *map(Fraction, (1, 2, 3, 4, 6, 8, 12, 16)))
"""Numbers of rows that the last node of a segment may make in a turn."""

LONGEST = 14
"""Largest number of nodes in a segment."""

CALL_CYCLES = 50
"""Estimated cycles for one more call."""

MOVE_CYCLES = 0.5
"""Estimated cycles to move one byte of a band."""

_PRECISION, _LARGEST_STEP = 128, 8
"""Fractions of the bytes: the precision of `least_memory`, and the largest step it takes."""


def can_have_segments(graph: Graph) -> bool:
    """Return whether a graph has neither control flow nor run-time lengths."""
    return not graph.lengths and not any(node.op.subgraphs for node in graph.nodes)


def streamed_input(graph: Graph) -> Value:
    """Return the input that the caller can deliver a few rows at a time.

    Raises:
        UnsupportedError: The graph has not exactly one input, which its first node reads.
    """
    inputs = graph.inputs
    if not _reads_only_input(graph):
        names = ", ".join(repr(value.name) for value in inputs) or "none"
        raise UnsupportedError(
            "--stream-input needs a network with one input, which the first layer reads; this "
            f"network's inputs are {names}. Build without --stream-input."
        )
    return inputs[0]


def has_streamable_input(graph: Graph) -> bool:
    """Return whether the first node can be computed from a few rows of the only input."""
    if not can_have_segments(graph) or not _reads_only_input(graph):
        return False
    return segment_of(graph, graph.nodes[:1], graph.inputs[0]) is not None


def _reads_only_input(graph: Graph) -> bool:
    """Return whether there is one input, and the first node reads it."""
    inputs = graph.inputs
    return len(inputs) == 1 and bool(graph.nodes) and inputs[0] in graph.nodes[0].inputs


_AnyPart = GraphPart | UnestimatedSegment

_SegmentMemory = tuple[tuple[int, ...], tuple[BandChain, ...]]
"""The peaks of a segment's nodes, and its chains if they need fewer bytes; see `GraphPart`."""


@dataclass
class _Edge:
    """A part in the search for the fastest parts, with its cycles within the limit."""

    part: _AnyPart
    cycles: float


class SegmentSearch:
    """Finds the segments of one graph.

    Most of the time goes into asking kernels about nodes that compute a few rows. So nodes are
    first assumed to take the cycles that they take with more rows or on whole tensors, and kernels
    are asked only for the path with the fewest cycles, until all cycles of this path are estimates
    (Dellin and Srinivasa, "A Unifying Formalism for Shortest Path Problems with Expensive Edge
    Evaluations via Lazy Best-First Search over Paths with Edge Selectors", ICAPS 2016).

    Attributes:
        graph: The graph.
        streamed: The input that the caller delivers a few rows at a time, or None.
        partitioner: Chooses the kernels of the parts, where RAM is limited.
        nodes: Makes the nodes that compute a few rows.
    """

    def __init__(
        self,
        graph: Graph,
        partitioner: Partitioner,
        *,
        keep_inputs: bool,
        streamed: Value | None = None,
    ) -> None:
        """Set up.

        Args:
            graph: A graph without control flow and run-time lengths.
            partitioner: Chooses the kernels.
            keep_inputs: Whether an inference must leave its inputs unchanged.
            streamed: The input that the caller delivers a few rows at a time, if there is one. It
                is an operand of the first node.
        """
        self.graph = graph
        self.streamed = streamed
        self.partitioner = in_rows = partitioner.in_little_ram()
        self._costs = KernelCosts(in_rows)
        target = partitioner.request.target
        self._word = 1 if "unaligned" in target.features else 4
        self._keep_inputs = keep_inputs
        self.nodes = BandNodes()
        self._segments: dict[tuple[int, int], RowSegment | None] = {}
        self._parts: dict[tuple[int, int, Fraction], _AnyPart | None] = {}
        self._estimates: dict[Node, dict[Fraction, float]] = {}
        self._memories: dict[UnestimatedSegment, _SegmentMemory] = {}
        self._overwriting: dict[tuple[Node, int], bool] = {}

    def smallest(self) -> int:
        """Return the fewest bytes for which `fastest` finds parts.

        Raises:
            UnsupportedError: The first nodes cannot be computed from rows of the streamed input.
        """
        low, high = 0, self.fastest_of_all.limit
        while low < high:
            middle = (low + high) // 2
            if self.fastest(middle) is None:
                low = middle + 1
            else:
                high = middle
        return low

    def least_memory(self, cycles: float, most: int) -> Parts | None:
        """Return the parts with nearly the fewest bytes that take at most so many cycles.

        The bytes are reduced in steps, because the search takes longer if fewer whole tensors fit.

        Args:
            cycles: The cycles.
            most: The most bytes that they may need; if no such parts exist, the result is None.
        """
        found, low, limit = None, 0, most
        while most - low > most // _PRECISION + 1:
            parts = self.fastest(limit)
            if parts is None or parts.cycles > cycles:
                low = limit
            else:
                found, most = parts, limit
            limit = max((low + most) // 2, most - most // _LARGEST_STEP - 1)
        return found

    @cached_property
    def fastest_of_all(self) -> Parts:
        """The fastest parts if memory is no limit.

        Raises:
            UnsupportedError: The first nodes cannot be computed from rows of the streamed input.
        """
        found = self.fastest(self._most_bytes)
        if found is None:
            target = self.partitioner.request.target.name
            aligned = f", which on {target} need rows of a multiple of {self._word} bytes"
            rows = "" if self._word == 1 else aligned
            raise UnsupportedError(
                f"--stream-input: the first layers, from {self.graph.nodes[0].origin} on, cannot "
                "be computed from a few rows of the input at a time. Only convolutions, pools and "
                "operators that compute each row from the same row can, on images with channels "
                f"last{rows}. Build without --stream-input."
            )
        return found

    @cached_property
    def _most_bytes(self) -> int:
        """Bytes that are enough for whole tensors with the fastest kernels."""
        peak = max((part.peaks[0] for part in self._whole), default=0)
        memory = max((self._costs.fastest(part.whole).memory for part in self._whole), default=0)
        return peak + memory + (0 if self.streamed is None else self.streamed.type.bytes)

    def fastest(self, limit: int, excluded: AbstractSet[GraphPart] = frozenset()) -> Parts | None:
        """Return the parts that need at most `limit` bytes and take the fewest cycles, or None.

        Args:
            limit: The bytes.
            excluded: Segments that cannot be used, because they would not fit with their gaps, nor
                would the same ones with more rows in a turn.
        """
        count = len(self.graph.nodes)
        edges: dict[int, list[_Edge]] = {}
        while True:
            best: list[tuple[float, tuple[_Edge, ...]] | None] = [None] * (count + 1)
            best[0] = 0.0, ()
            for start in range(count):
                found = best[start]
                if found is None:
                    continue
                if start not in edges:
                    edges[start] = list(self._edges(start, limit, excluded))
                for edge in edges[start]:
                    known, total = best[edge.part.end], found[0] + edge.cycles
                    if total < inf and (known is None or total < known[0]):
                        best[edge.part.end] = total, (*found[1], edge)
            found = best[count]
            if found is None:
                return None
            cycles, path = found
            if parts := _parts_of(path):
                return Parts(parts, limit, cycles)
            for edge in path:
                if isinstance(edge.part, UnestimatedSegment):
                    self._improve(edge, edge.part, limit)

    def _edges(self, start: int, limit: int, excluded: AbstractSet[GraphPart]) -> Iterator[_Edge]:
        """Yield the parts that begin at a position and fit into a number of bytes."""
        for part in self._from(start, limit):
            cycles = self._cycles(part, limit)
            if cycles is not None and not any(is_no_smaller(part, other) for other in excluded):
                yield _Edge(part, cycles)

    def _improve(self, edge: _Edge, segment: UnestimatedSegment, limit: int) -> None:
        """Raise the cycles of an edge to what other segments tell, or else ask its kernels."""
        cycles = self._cycles(segment, limit)
        if cycles is None or cycles <= edge.cycles:
            part = self._estimated(segment)
            cycles = None if part is None else self._cycles(part, limit)
            edge.part = part or segment
        edge.cycles = inf if cycles is None else cycles

    def _estimated(self, segment: UnestimatedSegment) -> GraphPart | None:
        """Return a segment with what its kernels take; None if a node cannot compute a few rows."""
        bands = segment.bands
        part = self._parts[segment.start, segment.end, bands.rate] = self._part(segment)
        if part is not None:
            # The first and last rows may take more cycles, with any number of rows in a turn.
            for node, calls in zip(bands.segment.layers, part.calls, strict=True):
                turns = bands.segment.rows(node) / bands.made(node)
                cycles = turns * self._costs.fastest(next(iter(calls))).cycles
                self._estimates.setdefault(node, {})[bands.rates[node]] = cycles
        return part

    # --- parts -----------------------------------------------------------------------------------

    def _from(self, start: int, limit: int) -> Iterator[_AnyPart]:
        """Yield the parts that begin at a position; segments only if whole tensors do not fit."""
        nodes = self.graph.nodes
        needed = streamed = start == 0 and self.streamed is not None
        if not streamed:
            yield self._whole[start]
        for end in range(start + 1, min(start + LONGEST, len(nodes)) + 1):
            part = self._whole[end - 1]
            needed |= part.peaks[0] + self._costs.fastest(part.whole).memory > limit
            if nodes[end - 1].op.is_view:
                return
            if not needed or self._live[end] > limit:
                continue
            segment = self._segment(start, end)
            if segment is None and streamed:
                continue  # a node that follows may be the last one to read the streamed input
            if segment is None:
                return
            height = segment.rows(nodes[end - 1])
            banded = (self._banded(start, end, rows, segment) for rows in ROWS if rows < height)
            yield from self._fitting([part for part in banded if part is not None], limit)

    def _fitting(self, parts: Sequence[_AnyPart], limit: int) -> Sequence[_AnyPart]:
        """Return those parts of the same nodes that fit into `limit` bytes.

        They are ordered by rows in a turn. More rows need no fewer bytes, so that the bytes of only
        a few parts are computed.
        """
        return parts[: bisect_right(parts, limit, key=self._peak)]

    def _peak(self, part: _AnyPart) -> int:
        """Return the largest number of live bytes in one of its calls, without scratch."""
        return part.peak if isinstance(part, GraphPart) else max(self._assumed_memory(part)[0])

    def _segment(self, start: int, end: int) -> RowSegment | None:
        if (start, end) not in self._segments:
            self._segments[start, end] = self._new_segment(start, end)
        return self._segments[start, end]

    def _new_segment(self, start: int, end: int) -> RowSegment | None:
        nodes = self.graph.nodes[start:end]
        found = segment_of(self.graph, nodes, self.streamed if start == 0 else None)
        if found is None:
            return None
        # The first segment computes its first rows first, so `_banded` can check its addresses.
        whole = () if start == 0 else (v for n in nodes for v in (*found.operands(n), n.output))
        values = (*found.banded, *whole)
        return None if any(found.row_bytes(v) % self._word for v in values) else found

    def _banded(self, start: int, end: int, rows: Fraction, segment: RowSegment) -> _AnyPart | None:
        key = start, end, rows
        if key not in self._parts:
            bands = bands_of(segment, rows)
            if bands is not None and not all(begin % self._word == 0 for begin in bands.begins()):
                bands = None
            if bands is None:
                self._parts[key] = None
            else:
                self._parts[key] = UnestimatedSegment(start, end, bands, _overhead(bands))
        return self._parts[key]

    def _part(self, assumed: UnestimatedSegment) -> GraphPart | None:
        """Return a segment, or None if a node cannot compute a few rows."""
        bands, (peaks, chains) = assumed.bands, self._assumed_memory(assumed)
        calls = [self._calls(bands, node) for node in bands.segment.layers]
        if not all(calls):
            return None
        in_place = self._scratch_in_place(bands, calls, chains)
        if -1 in in_place:
            exactly = partial(self._in_place, bands)
            peaks, chains = self._memory(assumed.start, assumed.end, bands, exactly)
            in_place = self._scratch_in_place(bands, calls, chains)
        return GraphPart(
            start=assumed.start,
            end=assumed.end,
            peaks=peaks[-len(calls) :],
            calls=tuple(calls),
            bands=bands,
            overhead=_overhead(bands),
            consumed=self._consumed(assumed.end, bands.segment),
            chains=chains,
            in_place=in_place,
        )

    def _calls(self, bands: RowBands, node: Node) -> Mapping[Node, int]:
        """Return the nodes that compute a node's rows, the one in most turns first; or none."""
        made = [bands.rows(node, turn) for turn in bands.active[node]]
        found: dict[Node, int] = {}
        for count, rows in ((0, made[len(made) // 2]), *((1, rows) for rows in made)):
            band_node = self.nodes.of(bands.segment, node, rows, bands.read(node, rows))
            if band_node is None:
                return {}
            found[band_node] = found.get(band_node, 0) + count
        return found

    def _scratch_in_place(
        self, bands: RowBands, calls: Sequence[Mapping[Node, int]], chains: Sequence[BandChain]
    ) -> tuple[int | None, ...]:
        """Return `GraphPart.in_place`; -1 for a layer that no kernel computes in place."""
        overwriting = {value for chain in chains for value in list(chain.offsets)[1:]}
        return tuple(
            self._costs.most_in_place(next(iter(found))) if node.output in overwriting else None
            for node, found in zip(bands.segment.layers, calls, strict=True)
        )

    def _assumed_memory(self, segment: UnestimatedSegment) -> _SegmentMemory:
        """Return `_memory`, if all kernels of a layer compute rows in place that one does."""
        if segment not in self._memories:
            bands = segment.bands
            in_place = partial(self._may_overwrite, bands)
            self._memories[segment] = self._memory(segment.start, segment.end, bands, in_place)
        return self._memories[segment]

    def _memory(
        self, start: int, end: int, bands: RowBands, in_place: MayOverwrite
    ) -> _SegmentMemory:
        """Return the peaks of a segment's nodes, and its chains if they need fewer bytes."""
        consumed = self._consumed(end, bands.segment)
        other = sum(
            root.type.bytes
            for root in self._available(start)
            if self._last_use[root] >= start and root not in {self._root[v] for v in consumed}
        )
        peaks = SegmentLiveBytes(bands, other, consumed).peaks()
        if chains := chains_of(bands, in_place):
            less = SegmentLiveBytes(bands, other, consumed, chains).peaks()
            if max(less) < max(peaks):
                return less, chains
        return peaks, ()

    def _may_overwrite(self, bands: RowBands, node: Node, made: range) -> bool:
        """Return whether some kernel for a few rows of a node may overwrite its operand.

        The answer for the first number of rows that is asked for counts for all others.
        """
        key = node, bands.segment.axis
        if key not in self._overwriting:
            self._overwriting[key] = self._in_place(bands, node, made)
        return self._overwriting[key]

    def _in_place(self, bands: RowBands, node: Node, made: range) -> bool:
        """Return whether some kernel for these rows may overwrite its operand."""
        band_node = self.nodes.of(bands.segment, node, made, bands.read(node, made))
        return band_node is not None and self._costs.most_in_place(band_node) >= 0

    def _consumed(self, end: int, segment: RowSegment) -> frozenset[Value]:
        """Return the whole tensors whose rows may be overwritten once the segment has read them."""
        values = {value for node in segment.nodes for value in segment.operands(node)}
        states = {state.before for state in self.graph.states}
        return frozenset(
            value
            for value in values - set(segment.producers)
            if self._last_use[self._root[value]] < end and self._root[value] not in states
        )

    # --- liveness --------------------------------------------------------------------------------

    @cached_property
    def _root(self) -> Mapping[Value, Value]:
        """For each value, the value whose memory it is a view of."""
        return {value: root_of(self.graph, value) for value in self.graph.values()}

    @cached_property
    def _last_use(self) -> Mapping[Value, int]:
        """The position of the last node that reads each root; for results, the number of nodes."""
        count = len(self.graph.nodes)
        last = {self._root[v]: -1 for v in self.graph.values()}
        for position, node in enumerate(self.graph.nodes):
            for value in (v for v in node.inputs if v is not None):
                last[self._root[value]] = position
            for value in node.outputs:
                last[self._root[value]] = max(last[self._root[value]], position)
        kept = (*self.graph.results, *(self.graph.inputs if self._keep_inputs else ()))
        return last | dict.fromkeys((self._root[value] for value in kept), count)

    @cached_property
    def _written(self) -> Sequence[Sequence[Value]]:
        """The roots that are written before the first node (inputs), and by each node in order."""
        states = {state.before for state in self.graph.states}
        found = [[value for value in self.graph.inputs if value is not self.streamed]]
        for node in self.graph.nodes:
            found.append([v for v in node.outputs if self._root[v] is v and v not in states])
        return found

    def _available(self, position: int) -> Iterator[Value]:
        """Yield the roots that are written before a node."""
        for values in self._written[: position + 1]:
            yield from values

    @cached_property
    def _live(self) -> Sequence[int]:
        """The bytes that are live between nodes: before the first one, after it, and so on."""
        return [
            sum(root.type.bytes for root in self._available(i) if self._last_use[root] >= i)
            for i in range(len(self.graph.nodes) + 1)
        ]

    @cached_property
    def _whole(self) -> Sequence[GraphPart]:
        """The parts of single nodes, by the position of the node."""
        found: list[GraphPart] = []
        for position, node in enumerate(self.graph.nodes):
            made = [v for v in node.outputs if self._root[v] is v]
            peak = self._live[position] + sum(value.type.bytes for value in made)
            if not node.op.is_view:
                peak -= self._costs.most_saved(node)
            found.append(GraphPart(position, position + 1, (peak,), ({node: 1},)))
        return found

    def _least_cycles(self, node: Node, rate: Fraction) -> float:
        """Return the cycles that a node takes on a whole tensor, or with more rows in a turn."""
        known = self._estimates.get(node, {})
        more = (cycles for rows, cycles in known.items() if rows >= rate)
        return max(self._costs.fastest(node).cycles, *more, 0)

    def _cycles(self, part: _AnyPart, limit: int) -> float | None:
        """Return the estimated cycles of a part within a number of bytes; None if it needs more.

        Segments that no kernel was asked about are assumed to fit.
        """
        if isinstance(part, UnestimatedSegment):
            rates = part.bands.rates
            least = (self._least_cycles(node, rates[node]) for node in part.bands.segment.layers)
            return sum(least) + part.overhead
        if part.peak > limit:
            return None
        total = part.overhead
        for calls, scratch, most in zip(
            part.calls, part.scratch(limit), part.in_place, strict=True
        ):
            for position, (node, count) in enumerate(calls.items()):
                fastest = self._costs.fastest_within(node, scratch)
                if fastest is None or (position == 0 and most is not None and not fastest.in_place):
                    return None
                total += count * fastest.cycles
        return total


def _overhead(bands: RowBands) -> float:
    """Return the estimated cycles to move rows, and to call each node more than once."""
    moved = sum(
        sum(bands.kept_after(value, turn - 1) for turn in bands.refills[value][1:])
        * bands.segment.row_bytes(value)
        for value in bands.segment.banded
    )
    calls = sum(len(bands.active[node]) - 1 for node in bands.segment.layers)
    return moved * MOVE_CYCLES + calls * CALL_CYCLES


def _parts_of(path: Sequence[_Edge]) -> tuple[GraphPart, ...]:
    """Return the parts of a path; none if some of them are not estimated."""
    parts = tuple(edge.part for edge in path if isinstance(edge.part, GraphPart))
    return parts if len(parts) == len(path) else ()

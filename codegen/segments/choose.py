"""Which nodes are computed in segments: the fastest way to stay within a number of bytes.

A graph is cut into parts: single nodes that compute whole tensors, and segments. Dynamic
programming over the positions of cuts finds the parts with the fewest estimated cycles among those
that need at most a given number of bytes. The bytes of a part are the most bytes that are live
during one of its calls: other tensors, bands, and scratch. Alignment and gaps between buffers need
further bytes, which the search does not count. So the caller must plan the memory and, if the plan
is too large, search again with a smaller number of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from math import inf

from smelt.codegen.lower.kernel import DEFAULT_SCRATCH
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.passes.loops import root_of
from smelt.codegen.segments.bands import BandNodes, RowBands, RowSegment, bands_of, segment_of
from smelt.codegen.segments.chains import chains_of
from smelt.codegen.segments.live_bytes import SegmentLiveBytes
from smelt.codegen.segments.parts import GraphPart, Parts
from smelt.errors import UnsupportedError
from smelt.ir import Graph, Node, Value

ROWS = (*(Fraction(1, n) for n in (8, 4, 2)), *map(Fraction, (1, 2, 3, 4, 6, 8, 12, 16)))
"""Numbers of rows that the last node of a segment may make in a turn."""

LONGEST = 14
"""Largest number of nodes in a segment."""

CALL_CYCLES = 50
"""Estimated cycles for one more call."""

MOST_SLOWDOWN = 1.01
"""`nearly_fastest` accepts this many times the fewest cycles, to save memory."""

MOVE_CYCLES = 0.5
"""Estimated cycles to move one byte of a band."""


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


@dataclass(frozen=True)
class KernelCost:
    """Bytes beside operands and results, and estimated cycles, of one call of a node.

    `in_place` tells whether the first result may have the address of the first operand.
    """

    memory: int
    cycles: float
    in_place: bool = False


class SegmentSearch:
    """Finds the segments of one graph."""

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
        self._least_memory = partitioner.limited()
        self._scratch_limits = partitioner.scratch_limits
        target = partitioner.request.target
        self._word = 1 if "unaligned" in target.features else 4
        self._keep_inputs = keep_inputs
        self.nodes = BandNodes()
        self._kernels: dict[Node, list[KernelCost | None]] = {}
        self._segments: dict[tuple[int, int], RowSegment | None] = {}
        self._parts: dict[tuple[int, int, Fraction], GraphPart | None] = {}

    def smallest(self) -> int:
        """Return the fewest bytes for which `fastest` finds parts.

        Raises:
            UnsupportedError: The first nodes cannot be computed from rows of the streamed input.
        """
        return self._fewest_bytes(inf)

    def nearly_fastest(self) -> Parts:
        """Return the parts with the fewest bytes that take at most 1 % more than fewest cycles.

        Raises:
            UnsupportedError: The first nodes cannot be computed from rows of the streamed input.
        """
        bytes_ = self._fewest_bytes(self._fastest_of_all.cycles * MOST_SLOWDOWN)
        return self.fastest(bytes_) or self._fastest_of_all

    @cached_property
    def _fastest_of_all(self) -> Parts:
        """The fastest parts if memory is no limit."""
        found = self.fastest(self._most_bytes)
        if found is None:
            rows = "" if self._word == 1 else f" and rows of a multiple of {self._word} bytes"
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
        memory = max((self._fastest_memory(part.calls[0][0]) for part in self._whole), default=0)
        return peak + memory + (0 if self.streamed is None else self.streamed.type.bytes)

    def _fewest_bytes(self, cycles: float) -> int:
        """Return the fewest bytes for which `fastest` finds parts with at most `cycles` cycles."""
        low, high = 0, self._fastest_of_all.limit
        while low < high:
            middle = (low + high) // 2
            parts = self.fastest(middle)
            if parts is None or parts.cycles > cycles:
                low = middle + 1
            else:
                high = middle
        return low

    def fastest(self, limit: int, excluded: AbstractSet[GraphPart] = frozenset()) -> Parts | None:
        """Return the parts that need at most `limit` bytes and take the fewest cycles, or None.

        Args:
            limit: The bytes.
            excluded: Parts that cannot be used, because they would not fit with their gaps.
        """
        count = len(self.graph.nodes)
        best: list[tuple[float, tuple[GraphPart, ...]] | None] = [None] * (count + 1)
        best[0] = 0.0, ()
        for start in range(count):
            found = best[start]
            if found is None:
                continue
            for part in self._from(start, limit):
                if part in excluded:
                    continue
                cycles = self._cycles(part, limit)
                if cycles is None:
                    continue
                known, total = best[part.end], found[0] + cycles
                if known is None or total < known[0]:
                    best[part.end] = total, (*found[1], part)
        found = best[count]
        return None if found is None else Parts(found[1], limit, found[0])

    # --- parts -----------------------------------------------------------------------------------

    def _from(self, start: int, limit: int) -> Iterator[GraphPart]:
        """Yield the parts that begin at a position; segments only if whole tensors do not fit."""
        nodes = self.graph.nodes
        needed = streamed = start == 0 and self.streamed is not None
        if not streamed:
            yield self._whole[start]
        for end in range(start + 1, min(start + LONGEST, len(nodes)) + 1):
            part = self._whole[end - 1]
            needed |= part.peaks[0] + self._fastest_memory(part.calls[0][0]) > limit
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
            for rows in (rows for rows in ROWS if rows < height):
                found = self._banded(start, end, rows, segment)
                if found is not None:
                    yield found

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

    def _banded(
        self, start: int, end: int, rows: Fraction, segment: RowSegment
    ) -> GraphPart | None:
        key = start, end, rows
        if key not in self._parts:
            bands = bands_of(segment, rows)
            if bands is not None and not all(begin % self._word == 0 for begin in bands.begins()):
                bands = None
            self._parts[key] = None if bands is None else self._part(start, end, bands)
        return self._parts[key]

    def _part(self, start: int, end: int, bands: RowBands) -> GraphPart | None:
        calls: list[tuple[Node, float]] = []
        for node in bands.segment.layers:
            turns = bands.active[node]
            made = bands.rows(node, turns[len(turns) // 2])
            band_node = self.nodes.of(bands.segment, node, made, bands.read(node, made))
            if band_node is None:
                return None
            calls.append((band_node, bands.segment.rows(node) / len(made)))
        moved = sum(
            sum(bands.kept_after(value, turn - 1) for turn in bands.refills[value][1:])
            * bands.segment.row_bytes(value)
            for value in bands.segment.banded
        )
        consumed = self._consumed(end, bands.segment)
        other = sum(
            root.type.bytes
            for root in self._available(start)
            if self._last_use[root] >= start and root not in {self._root[v] for v in consumed}
        )
        peaks, chains = SegmentLiveBytes(bands, other, consumed).peaks(), ()
        if found := chains_of(bands, partial(self._in_place, bands)):
            less = SegmentLiveBytes(bands, other, consumed, found).peaks()
            if max(less) < max(peaks):
                peaks, chains = less, found
        overwriting = {value for chain in chains for value in list(chain.offsets)[1:]}
        return GraphPart(
            start=start,
            end=end,
            peaks=peaks[-len(calls) :],
            calls=tuple(calls),
            bands=bands,
            moved=moved,
            consumed=consumed,
            chains=chains,
            in_place=tuple(
                self._most_in_place(band_node) if node.output in overwriting else None
                for node, (band_node, _) in zip(bands.segment.layers, calls, strict=True)
            ),
        )

    def _most_in_place(self, node: Node) -> int:
        """Return the most scratch with which the fastest kernel can compute a node in place.

        Returns -1, less than any kernel takes, if a kernel that cannot is always faster.
        """
        return next((kernel.memory for kernel in self._kernels_of(node) if kernel.in_place), -1)

    def _in_place(self, bands: RowBands, node: Node, made: range) -> bool:
        """Return whether some kernel for these rows may overwrite its operand."""
        band_node = self.nodes.of(bands.segment, node, made, bands.read(node, made))
        return band_node is not None and self._most_in_place(band_node) >= 0

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
                taken = self._least_memory.choose(node)
                peak -= max(c.saved for c in (taken.taken, *taken.lost))
            found.append(GraphPart(position, position + 1, (peak,), ((node, 1.0),)))
        return found

    # --- costs -----------------------------------------------------------------------------------

    def _cycles(self, part: GraphPart, limit: int) -> float | None:
        """Return the estimated cycles of a part within a number of bytes; None if it needs more."""
        if part.peak > limit:
            return None
        total = part.moved * MOVE_CYCLES
        for (node, count), scratch, most in zip(
            part.calls, part.scratch(limit), part.in_place, strict=True
        ):
            fastest = self._fastest_within(node, scratch)
            if fastest is None or (most is not None and not fastest.in_place):
                return None
            total += count * fastest.cycles + (count - 1) * CALL_CYCLES
        return total

    def _fastest_memory(self, node: Node) -> int:
        """Return the bytes that a node's fastest kernel needs beside operands and results."""
        return next(self._kernels_of(node)).memory

    def _fastest_within(self, node: Node, memory: int) -> KernelCost | None:
        """Return the costs of a node's fastest kernel within a number of bytes, or None."""
        return next((k for k in self._kernels_of(node) if k.memory <= memory), None)

    def _kernels_of(self, node: Node) -> Iterator[KernelCost]:
        """Yield the costs of a node's kernels: the fastest one, the fastest with less memory, ...

        The partitioner is asked only for those that are needed.
        """
        if node.op.is_view:
            yield KernelCost(0, 0)
            return
        known = self._kernels.setdefault(node, [])
        position, kernel = 0, None
        while position == 0 or kernel is not None:
            if position == len(known):
                known.append(self._less_memory(node, kernel))
            kernel = known[position]
            position += 1
            if kernel is not None:
                yield kernel

    def _less_memory(self, node: Node, more: KernelCost | None) -> KernelCost | None:
        """Return the costs of the fastest kernel with less memory than another, or None."""
        limit = max(DEFAULT_SCRATCH, self._scratch_limits.get(node, 0))
        if more is not None:
            limit = more.memory - 1
        if limit < 0:
            return None
        found = self._cost(node, replace(self._least_memory, scratch_limits={node: limit}))
        return found if more is None or found.memory < more.memory else None

    @staticmethod
    def _cost(node: Node, partitioner: Partitioner) -> KernelCost:
        """Return the cost of the kernel that a partitioner chooses."""
        taken = partitioner.choose(node).taken
        in_place = (0, 0) in taken.call.in_place
        return KernelCost(taken.memory, _estimate(node, taken.cycles), in_place)


def _estimate(node: Node, cycles: int | None) -> float:
    """Return the cycles of a call; without an estimate, its number of products and results."""
    return node.macs + node.outputs[0].type.size if cycles is None else cycles

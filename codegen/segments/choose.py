"""Which nodes are computed in segments: the fastest way to stay within a number of bytes.

A graph is cut into parts: single nodes that compute whole tensors, and segments. Dynamic
programming over the positions of cuts finds the parts with the fewest estimated cycles among those
that need at most a given number of bytes. The bytes of a part are the largest sum of live bytes in
any of its calls: other tensors, bands, and scratch. Alignment and fragmentation come on top, so the
caller must plan the memory and may have to ask for less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.passes.loops import root_of
from smelt.codegen.segments.bands import BandNodes, RowBands, RowSegment, bands_of, segment_of
from smelt.codegen.segments.live_bytes import SegmentLiveBytes
from smelt.codegen.segments.parts import GraphPart, Parts
from smelt.ir import Graph, Node, Value

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Numbers of rows that the last node of a segment may make in a turn."""

LONGEST = 14
"""Largest number of nodes in a segment."""

CALL_CYCLES = 50
"""Estimated cycles for one more call."""

MOVE_CYCLES = 0.5
"""Estimated cycles to move one byte of a band."""


def can_have_segments(graph: Graph) -> bool:
    """Return whether a graph has neither control flow nor run-time lengths."""
    return not graph.lengths and not any(node.op.subgraphs for node in graph.nodes)


@dataclass(frozen=True)
class KernelCost:
    """Scratch in bytes and estimated cycles of one call of a node."""

    scratch: int
    cycles: float


class SegmentSearch:
    """Finds the segments of one graph."""

    def __init__(self, graph: Graph, partitioner: Partitioner, *, keep_inputs: bool) -> None:
        """Set up.

        Args:
            graph: A graph without control flow and run-time lengths.
            partitioner: Chooses the kernels.
            keep_inputs: Whether an inference must leave its inputs unchanged.
        """
        self.graph = graph
        self._roomy, self._frugal = partitioner, partitioner.limited()
        target = partitioner.request.target
        self._word = 1 if "unaligned" in target.features else 4
        self._keep_inputs = keep_inputs
        self.nodes = BandNodes()
        self._kernels: dict[Node, tuple[KernelCost, ...]] = {}
        self._parts: dict[tuple[int, int, int], GraphPart | None] = {}
        self._packed: dict[GraphPart, int] = {}

    def smallest(self) -> int:
        """Return the fewest bytes for which `fastest` finds parts."""
        low, high = 0, max((part.peaks[0] for part in self._whole), default=0)
        high += max((self._wanted(part.calls[0][0]) for part in self._whole), default=0)
        while low < high:
            middle = (low + high) // 2
            if self.fastest(middle) is None:
                low = middle + 1
            else:
                high = middle
        return low

    def require(self, part: GraphPart, needed: int) -> None:
        """Take note that a part needs this many bytes, because of gaps between its buffers."""
        self._packed[part] = needed

    def fastest(self, limit: int) -> Parts | None:
        """Return the parts that need at most `limit` bytes and take the fewest cycles, or None."""
        count = len(self.graph.nodes)
        best: list[tuple[float, tuple[GraphPart, ...]] | None] = [None] * (count + 1)
        best[0] = 0.0, ()
        for start in range(count):
            found = best[start]
            if found is None:
                continue
            for part in self._from(start, limit):
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
        """Yield the parts that begin at a position; segments only where they save memory."""
        nodes, whole = self.graph.nodes, self._whole[start]
        yield whole
        needed = False
        for end in range(start + 1, min(start + LONGEST, len(nodes)) + 1):
            part = self._whole[end - 1]
            needed |= part.peaks[0] + self._wanted(part.calls[0][0]) > limit
            if nodes[end - 1].op.is_view:
                return
            if not needed or self._live[end] > limit:
                continue
            segment = self._segment(start, end)
            if segment is None:
                return
            height = segment.height(nodes[end - 1].output)
            for rows in (rows for rows in ROWS if rows < height):
                found = self._banded(start, end, rows, segment)
                if found is not None:
                    yield found

    def _segment(self, start: int, end: int) -> RowSegment | None:
        nodes = self.graph.nodes[start:end]
        found = segment_of(self.graph, nodes)
        if found is None:
            return None
        values = (v for n in nodes for v in (*found.operands(n), n.output))
        return None if any(found.row_bytes(v) % self._word for v in values) else found

    def _banded(self, start: int, end: int, rows: int, segment: RowSegment) -> GraphPart | None:
        key = start, end, rows
        if key not in self._parts:
            bands = bands_of(segment, rows)
            self._parts[key] = None if bands is None else self._part(start, end, bands)
        return self._parts[key]

    def _part(self, start: int, end: int, bands: RowBands) -> GraphPart | None:
        calls: list[tuple[Node, float]] = []
        for node in bands.segment.nodes:
            turn = next((t for t in (bands.turns // 2, 0) if bands.rows(node, t)), bands.turns - 1)
            made = bands.rows(node, turn)
            if not made:
                return None
            band_node = self.nodes.of(bands.segment, node, made, bands.read(node, made))
            if band_node is None:
                return None
            calls.append((band_node, bands.segment.height(node.output) / len(made)))
        moved = sum(
            bands.kept[value] * bands.segment.row_bytes(value) * bands.turns for value in bands.kept
        )
        consumed = self._consumed(end, bands.segment)
        other = sum(
            root.type.bytes
            for root in self._available(start)
            if self._last[root] >= start and root not in {self._root[v] for v in consumed}
        )
        live = SegmentLiveBytes(bands, other, consumed)
        return GraphPart(
            start=start,
            end=end,
            peaks=live.peaks(),
            calls=tuple(calls),
            bands=bands,
            moved=moved,
            consumed=consumed,
        )

    def _consumed(self, end: int, segment: RowSegment) -> frozenset[Value]:
        """Return the whole tensors whose rows may be overwritten once the segment has read them."""
        values = {value for node in segment.nodes for value in segment.operands(node)}
        states = {state.before for state in self.graph.states}
        return frozenset(
            value
            for value in values - set(segment.producers)
            if self._last[self._root[value]] < end and self._root[value] not in states
        )

    # --- liveness --------------------------------------------------------------------------------

    @cached_property
    def _root(self) -> Mapping[Value, Value]:
        """For each value, the value whose memory it is a view of."""
        return {value: root_of(self.graph, value) for value in self.graph.values()}

    @cached_property
    def _last(self) -> Mapping[Value, int]:
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
    def _begun(self) -> Sequence[Sequence[Value]]:
        """The roots that are written at each position; inputs at the first one."""
        states = {state.before for state in self.graph.states}
        found: list[list[Value]] = [list(self.graph.inputs)]
        for node in self.graph.nodes:
            found.append([v for v in node.outputs if self._root[v] is v and v not in states])
        return found

    def _available(self, position: int) -> Iterator[Value]:
        """Yield the roots that are written before a node."""
        for values in self._begun[: position + 1]:
            yield from values

    @cached_property
    def _live(self) -> Sequence[int]:
        """The bytes that are live between nodes: before the first one, after it, and so on."""
        return [
            sum(root.type.bytes for root in self._available(i) if self._last[root] >= i)
            for i in range(len(self.graph.nodes) + 1)
        ]

    @cached_property
    def _whole(self) -> Sequence[GraphPart]:
        """The part that each node is on its own."""
        found: list[GraphPart] = []
        for position, node in enumerate(self.graph.nodes):
            made = [v for v in node.outputs if self._root[v] is v]
            peak = self._live[position] + sum(value.type.bytes for value in made)
            if not node.op.is_view:
                peak -= self._saved_in_place(node, position)
            found.append(GraphPart(position, position + 1, (peak,), ((node, 1.0),)))
        return found

    def _saved_in_place(self, node: Node, position: int) -> int:
        """Return the bytes of the operand that the result of a node may overwrite."""
        for output, operand in self._frugal.choose(node).taken.call.in_place:
            value = node.inputs[operand]
            if value is not None and value.data is None:
                root = self._root[value]
                if self._last[root] == position:
                    return min(root.type.bytes, node.outputs[output].type.bytes)
        return 0

    # --- costs -----------------------------------------------------------------------------------

    def _cycles(self, part: GraphPart, limit: int) -> float | None:
        """Return the estimated cycles of a part within a number of bytes; None if it needs more."""
        if self._packed.get(part, 0) > limit:
            return None
        total = part.moved * MOVE_CYCLES
        for (node, count), peak in zip(part.calls, part.peaks, strict=True):
            fitting = [k.cycles for k in self._offers(node) if peak + k.scratch <= limit]
            if not fitting:
                return None
            total += count * min(fitting) + (count - 1) * CALL_CYCLES
        return total

    def _wanted(self, node: Node) -> int:
        """Return the scratch of a node's fastest kernel."""
        return min(self._offers(node), key=lambda kernel: kernel.cycles).scratch

    def _offers(self, node: Node) -> tuple[KernelCost, ...]:
        """Return the kernels of a node, with plenty of scratch and with as little as possible."""
        if node.op.is_view:
            return (KernelCost(0, 0),)
        if node not in self._kernels:
            choices = (self._roomy.choose(node), self._frugal.choose(node))
            self._kernels[node] = tuple(
                KernelCost(taken.call.scratch_bytes, _estimate(node, taken.cycles))
                for taken in (choice.taken for choice in choices)
            )
        return self._kernels[node]


def _estimate(node: Node, cycles: int | None) -> float:
    """Return the cycles of a call; without prices, its products and elements."""
    return node.macs + node.outputs[0].type.size if cycles is None else cycles

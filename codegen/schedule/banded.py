"""The steps of a segment: calls for a few rows at a time, and the bytes that its bands hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from smelt.codegen.lower.kernel import Scratch
from smelt.codegen.partition.candidates import Choice
from smelt.codegen.schedule.lifetimes import Lifetimes
from smelt.codegen.schedule.locations import Places, ValueView, ValueViews
from smelt.codegen.schedule.shared_symbols import Functions
from smelt.codegen.schedule.steps import (
    Argument,
    BandCall,
    BandedSegment,
    BandedWork,
    Call,
    InBuffer,
    IterationOffset,
    Phase,
    RowsMove,
    StreamedRows,
)
from smelt.codegen.segments.chains import BandChain
from smelt.codegen.segments.turns import LayerTurn, Turns
from smelt.ir import Node, Value

_COUNTER = "i"
"""The C variable that counts the iterations of a phase."""

_BAND, _CHAIN, _ROWS, _SUMS = BANDS = ("band of ", "bands of ", "rows of ", "sums of ")
"""What the names of buffers begin with that segments use.

They store a band, the bands of a chain, rows that a band keeps, or sums of rows.
"""


@dataclass(frozen=True)
class _KeptRows:
    """Rows of a band that are kept until new ones are made.

    Attributes:
        bytes: Their size.
        row_bytes: The size of one row.
        source: Where they have been made: their offset in the band, in bytes.
        target: The offset to which they are moved before new rows are made.
    """

    bytes: int
    row_bytes: int
    source: int
    target: int


class SegmentLinearizer:
    """Converts one segment to an action."""

    def __init__(
        self,
        turns: Turns,
        indices: Mapping[Node, int],
        choose: Callable[[Node], Choice],
        functions: Functions,
        lifetimes: Lifetimes,
        places: Places,
    ) -> None:
        """Set up.

        Args:
            turns: The turns of the segment.
            indices: The index of each node's step.
            choose: Returns the kernel of a node that computes a few rows.
            functions: Collects the C functions.
            lifetimes: Collects slots, buffers and lifetimes.
            places: Assigns locations.
        """
        self._turns = turns
        self._indices = indices
        self._functions = functions
        self._lifetimes = lifetimes
        self._places = places
        self._calls = turns.band_nodes()
        self._first_rows: dict[Node, int] = {}
        for layer in (layer for turn in turns.all for layer in turn):
            self._first_rows.setdefault(layer.band_node, layer.made.start)
        self._choices = {
            band_node: choose(band_node) for calls in self._calls.values() for band_node in calls
        }
        self._spills = {
            value: lifetimes.buffer(
                f"{_ROWS}{value.name}",
                turns.bands.kept[value] * turns.segment.row_bytes(value),
            )
            for value in (node.output for node in turns.segment.nodes)
            if value in turns.spilled
        }
        self._sums: str | None = None
        if turns.segment.summed is not None and turns.segment.sums is not None:
            name = f"{_SUMS}{turns.segment.summed.output.name}"
            self._sums = lifetimes.buffer(name, turns.segment.sums.bytes)
        self._slots: list[dict[Node, int]] = []
        self._ends: list[int] = []
        self._saved: list[dict[Value, int]] = []
        self._reloaded: list[dict[Value, int]] = []
        for turn in range(turns.bands.turns):
            self._add_slots(turn)

    def action(self, scope: ValueViews) -> BandedSegment:
        """Return the segment; the locations of its whole results are added to `scope`."""
        segment = self._turns.segment
        shared = {
            chain: self._lifetimes.buffer(f"{_CHAIN}{chain.first.name}", chain.size)
            for chain in self._turns.chains
        }
        bands: ValueViews = {}
        for value in (node.output for node in segment.nodes if node.output in segment.banded):
            row, chain = segment.row_bytes(value), self._turns.chained.get(value)
            if chain is not None:
                start = chain.offsets[value] // value.type.dtype.size
                bands[value] = ValueView(shared[chain], (), start)
                continue
            size = self._turns.bands.band_rows(value) * row
            bands[value] = ValueView(self._lifetimes.buffer(f"{_BAND}{value.name}", size))
        for node in segment.nodes:
            if node.output not in bands:
                self._places.define(node.output, scope)
        streamed = segment.streamed
        if streamed is not None:
            scope[streamed] = bands[streamed]
        seen = {**scope, **bands}
        self._use_whole_tensors(seen)
        self._hold_bands(bands)
        for chain, buffer in shared.items():
            self._hold_chain(chain, buffer)
        self._hold_sums()
        scratch = self._scratch()
        phases = tuple(
            self._phase(turns, period, seen, scratch) for turns, period in self._turns.phases()
        )
        layers = tuple(self._layer(node, phases, seen) for node in segment.layers)
        rows = None if streamed is None else self._rows(streamed, str(bands[streamed].place))
        return BandedSegment(layers, phases, segment.axis, segment.reverse, rows)

    def _rows(self, streamed: Value, buffer: str) -> StreamedRows:
        """Return the rows that the caller delivers."""
        segment, bands = self._turns.segment, self._turns.bands
        return StreamedRows(
            value=streamed,
            buffer=buffer,
            kept=bands.kept[streamed],
            rows=bands.made(segment.producers[streamed]),
            height=segment.height(streamed),
            row_bytes=segment.row_bytes(streamed),
        )

    def _add_slots(self, turn: int) -> None:
        """Append the slots of a turn: its calls, and the moves of spilled rows around them."""
        slots, saved, reloaded = dict[Node, int](), dict[Value, int](), dict[Value, int]()
        moved = set(self._turns.moved_before(turn))
        for node in self._turns.segment.nodes:
            what = f"{node.origin}, turn {turn + 1} of {self._turns.bands.turns}"
            if node.output in self._spills and node.output in moved:
                reloaded[node.output] = self._lifetimes.slot(f"rows for {what}")
            slots[node] = self._lifetimes.slot(what)
            for value in filter(self._spills.get, self._turns.moved_after(node, turn)):
                saved[value] = self._lifetimes.slot(f"rows kept after {what}")
        what = f"rows kept after turn {turn + 1} of {self._turns.bands.turns}"
        moves = any(self._turns.moved_last(turn))
        self._ends.append(self._lifetimes.slot(what) if moves else len(self._lifetimes.slots) - 1)
        self._slots.append(slots)
        self._saved.append(saved)
        self._reloaded.append(reloaded)

    # --- lifetimes -------------------------------------------------------------------------------

    def _use_whole_tensors(self, seen: ValueViews) -> None:
        """Record which bytes of tensors that are not banded each call reads and writes."""
        segment = self._turns.segment
        for slots, turn in zip(self._slots, self._turns.all, strict=True):
            for layer in turn:
                rows = dict.fromkeys(segment.operands(layer.node), layer.read.rows)
                if layer.node is not segment.summed:
                    rows[layer.node.output] = layer.made
                made = (layer.node.output,) if layer.has_result else ()
                for value in (*layer.node.inputs, *made):
                    if value is None or value.data is not None or value in segment.banded:
                        continue
                    buffer, size = str(seen[value].place), segment.row_bytes(value)
                    if value in rows:
                        part = rows[value]
                        self._lifetimes.use_part(
                            buffer, slots[layer.node], part.start * size, part.stop * size
                        )
                    else:
                        self._lifetimes.use(buffer, slots[layer.node])

    def _hold_sums(self) -> None:
        """Record that sums of rows are live from the first call that adds rows to the last one."""
        summed, sums = self._turns.segment.summed, self._turns.segment.sums
        if summed is not None and sums is not None and self._sums is not None:
            turns = self._turns.bands.active[summed]
            first, last = (self._slots[turn][summed] for turn in (turns[0], turns[-1]))
            self._lifetimes.hold(self._sums, first, last + 1, 0, sums.bytes)

    def _hold_bands(self, bands: ValueViews) -> None:
        """Record which bytes of each band are live.

        From the call that fills a band to the last call that reads it before it is filled again,
        the whole band is live. After that, only the kept rows are live, in the band or where they
        are spilled.
        """
        segment = self._turns.segment
        for value, view in bands.items():
            if value in self._turns.chained:
                continue
            refills, producer = self._turns.bands.refills[value], segment.producers[value]
            size = self._turns.bands.band_rows(value) * segment.row_bytes(value)
            for turn in refills:
                first = self._slots[turn][producer]
                last, user = self._turns.last_user(value, turn)
                end = self._slots[last][user] + 1
                self._lifetimes.hold(str(view.place), first, end, 0, size)
                if turn == refills[-1]:
                    continue
                again = turn + refills.step
                rows = self._kept_rows(value, again)
                if rows.bytes == 0:
                    continue
                following, start = self._slots[again][producer], rows.source
                if value in self._spills:
                    following = self._saved[last][value] + 1
                    reloaded = self._reloaded[again][value] + 1
                    self._lifetimes.hold(self._spills[value], following, reloaded, 0, rows.bytes)
                elif value in self._turns.early:
                    start = rows.target
                if end < following:
                    self._lifetimes.hold(str(view.place), end, following, start, start + rows.bytes)

    def _hold_chain(self, chain: BandChain, buffer: str) -> None:
        """Record which bytes of a chain's buffer are live."""
        nodes = self._turns.segment.nodes
        low, high = chain.extent()
        slots = [
            slot
            for turn, end in zip(self._slots, self._ends, strict=True)
            for slot in (*(turn[node] for node in nodes), *[end] * len(chain.offsets))
        ]
        held: dict[int, tuple[int, int]] = {}
        for slot, first, end in zip(slots, low.tolist(), high.tolist(), strict=True):
            if first < end:
                known = held.get(slot, (first, end))
                held[slot] = min(known[0], first), max(known[1], end)
        for slot, following in pairwise([*held, max(held) + 1]):
            self._lifetimes.hold(buffer, slot, following, *held[slot])

    def _kept_rows(self, value: Value, turn: int) -> _KeptRows:
        """Return the rows of a band that are kept until new ones are made in a turn."""
        segment, bands = self._turns.segment, self._turns.bands
        row, rows = segment.row_bytes(value), bands.kept_after(value, turn - 1)
        made = bands.made(segment.producers[value])
        if segment.reverse:
            return _KeptRows(rows * row, row, 0, made * row)
        end = bands.band_rows(value) - rows
        return _KeptRows(rows * row, row, end * row, (end - made) * row)

    def _scratch(self) -> Mapping[tuple[Node, str], str]:
        """Return the buffers of the layers' scratch; all calls of a layer use the same ones."""
        sizes: dict[tuple[Node, str], int] = {}
        for node, calls in self._calls.items():
            for operand in (o for n in calls for o in self._choices[n].taken.call.operands):
                if isinstance(operand, Scratch):
                    key = node, operand.name
                    sizes[key] = max(sizes.get(key, 0), operand.count * operand.dtype.size)
        buffers = {
            (node, name): self._lifetimes.buffer(f"step{self._indices[node]} {name}", size)
            for (node, name), size in sizes.items()
        }
        for slots, turn in zip(self._slots, self._turns.all, strict=True):
            for layer in turn:
                if layer.node not in self._calls:
                    continue  # a delivery, which calls nothing
                for operand in self._choices[layer.band_node].taken.call.operands:
                    if isinstance(operand, Scratch) and operand.count:
                        slot, size = slots[layer.node], operand.count * operand.dtype.size
                        buffer = buffers[layer.node, operand.name]
                        self._lifetimes.hold(buffer, slot, slot + 1, 0, size)
        return buffers

    # --- calls -----------------------------------------------------------------------------------

    def _phase(
        self,
        turns: range,
        period: int,
        seen: ValueViews,
        scratch: Mapping[tuple[Node, str], str],
    ) -> Phase:
        """Return the calls and moves of turns that repeat after `period` turns."""
        iteration = [turns[i::period] for i in range(period)]
        return Phase(
            _COUNTER,
            len(turns) // period,
            tuple(tuple(self._actions(same, seen, scratch)) for same in iteration),
        )

    def _actions(
        self, turns: range, seen: ValueViews, scratch: Mapping[tuple[Node, str], str]
    ) -> Iterator[BandCall | RowsMove]:
        """Yield the calls and moves that are the same in several turns."""
        segment, turn = self._turns.segment, turns.start
        layers = {layer.node: layer for layer in self._turns.all[turn]}
        moved = set(self._turns.moved_before(turn))
        for node in segment.nodes:
            if node.output in moved:
                rows = self._kept_rows(node.output, turn)
                band = str(seen[node.output].place)
                spill = self._spills.get(node.output)
                source = (band, rows.source) if spill is None else (spill, 0)
                yield RowsMove(*source, band, rows.target, rows.bytes, rows.row_bytes)
            if node in layers and node in self._calls:
                yield self._call(layers[node], turns, seen, scratch)
            for used in self._turns.moved_after(node, turn):
                refills = self._turns.bands.refills[used]
                rows = self._kept_rows(used, next(refill for refill in refills if refill > turn))
                band, spill = str(seen[used].place), self._spills.get(used)
                target = (band, rows.target) if spill is None else (spill, 0)
                yield RowsMove(band, rows.source, *target, rows.bytes, rows.row_bytes)
        for chain, value in self._turns.moved_last(turn):
            rows, offset = self._kept_rows(value, turn + 1), chain.offsets[value]
            row = rows.row_bytes if offset % rows.row_bytes == 0 else 1
            source, target = offset + rows.source, offset + rows.target
            buffer = str(seen[value].place)
            yield RowsMove(buffer, source, buffer, target, rows.bytes, row)

    def _call(
        self,
        layer: LayerTurn,
        turns: range,
        seen: ValueViews,
        scratch: Mapping[tuple[Node, str], str],
    ) -> BandCall:
        node, band_node = layer.node, layer.band_node
        choice = self._choices[band_node]
        index = self._indices[node]
        owner = f"step{index}"
        if band_node is not next(iter(self._calls[node])):
            owner += f"_row{self._first_rows[band_node]}"
        views = self._views(layer, turns, seen)
        arguments: list[Argument] = []
        for operand in choice.taken.call.operands:
            if isinstance(operand, Scratch):
                buffer = scratch[node, operand.name]
                arguments.append(InBuffer(buffer, operand.dtype, constant=False))
            else:
                arguments.append(self._places.operand(operand, band_node, owner, -1, views))
        return BandCall(
            step=index,
            node=band_node,
            choice=choice,
            function=self._functions.add(band_node, choice.taken.call),
            arguments=tuple(arguments),
            result=self._places.target(views[band_node.output], band_node.output.type),
            bytes=band_node.output.type.bytes if layer.has_result else 0,
            slots=tuple(self._slots[turn][node] for turn in turns),
        )

    def _views(self, layer: LayerTurn, turns: range, seen: ValueViews) -> ValueViews:
        """Return the locations of what a call reads and makes, by the values of its band node."""
        segment, bands, node = self._turns.segment, self._turns.bands, layer.node
        views = dict(seen)
        made = int(turns.step * bands.rates[node])
        advance = made * segment.windows[node].stride
        parts = [(value, layer.read.rows, advance) for value in segment.operands(node)]
        if node is not segment.summed:
            parts.append((node.output, layer.made, made))
        for value, rows, step in parts:
            elements = value.type.size // segment.height(value)
            place = seen[value].place
            if value in segment.banded:
                start = self._turns.position(value, rows, turns.start) * elements
                start += seen[value].start
                row = elements if start % elements == 0 else 1
                views[value] = ValueView(place, (), start, row)
                continue
            start = rows.start - (len(turns) - 1) * step if segment.reverse else rows.start
            offsets = (IterationOffset(_COUNTER, step * elements),) if len(turns) > 1 else ()
            views[value] = ValueView(place, offsets, start * elements, elements)
        values = (*node.inputs, node.output)
        own = (*layer.band_node.inputs[: len(node.inputs)], layer.band_node.output)
        found = {b: views[v] for v, b in zip(values, own, strict=True) if v in views and b}
        if self._sums is not None and node is segment.summed:
            sums = (*layer.band_node.inputs[1:], *layer.band_node.outputs[layer.has_result :])
            found |= {value: ValueView(self._sums) for value in sums if value is not None}
        return found

    def _layer(self, node: Node, phases: Sequence[Phase], seen: ValueViews) -> Call:
        """Return the step of a node, with the kernel of most of its calls."""
        index, calls = self._indices[node], self._calls[node]
        main = max(calls, key=lambda band_node: calls[band_node])
        made = [a for p in phases for a in p.actions if isinstance(a, BandCall) and a.step == index]
        shown = next(call for call in made if call.choice is self._choices[main])
        bands = self._turns.bands
        rows, turns = bands.made(node), len(bands.active[node])
        how = f"Computed {rows} row{'s' if rows > 1 else ''} at a time, in {turns} turns."
        choice = replace(shown.choice, reason=f"{how} {shown.choice.reason}".rstrip())
        work = BandedWork(
            rows,
            turns,
            self._turns.segment.reverse,
            tuple((self._choices[band_node], count) for band_node, count in calls.items()),
        )
        return Call(
            index=index,
            node=node,
            results=(),
            inside=None,
            slot=made[0].slots[0],
            choice=choice,
            function=shown.function,
            arguments=shown.arguments,
            bands=work,
        )

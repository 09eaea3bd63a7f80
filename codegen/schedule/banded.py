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
    RowsMove,
    StreamedRows,
)
from smelt.codegen.segments.chains import BandChain
from smelt.codegen.segments.turns import LayerTurn, Turns
from smelt.ir import Node, Value

TURN = "turn"
"""The C variable that counts the turns of a segment, from 0."""

_BAND, _CHAIN, _ROWS, _SUMS = BANDS = ("band of ", "bands of ", "rows of ", "sums of ")
"""What the names of buffers begin with that segments use.

They store a band, the bands of a chain, rows that a band keeps, or sums of rows.
"""

_FEWEST = 3
"""The fewest turns of a range whose step is not that of the calls."""

_NEVER = range(0)
"""The turns of a move as long as it is not known in which turns it is the same."""


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


@dataclass(frozen=True)
class _FirstRow:
    """The first row that a call reads or makes.

    Attributes:
        start: The row in turn 0, as if the call were made there.
        step: The rows from there to the first row of the layer's next call.
    """

    start: int
    step: int


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
        actions = tuple(self._actions(seen, scratch))
        layers = tuple(self._layer(node, actions) for node in segment.layers)
        rows = None if streamed is None else self._rows(streamed, str(bands[streamed].place))
        turns = self._turns.bands.turns
        return BandedSegment(layers, actions, turns, segment.axis, segment.reverse, rows)

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
        moves = any(value for chain in self._turns.chains for value in chain.moved_last(turn))
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

    # --- actions ---------------------------------------------------------------------------------

    def _actions(
        self, seen: ValueViews, scratch: Mapping[tuple[Node, str], str]
    ) -> Iterator[BandCall | RowsMove]:
        """Yield the calls and moves, in the order in which a turn executes them."""
        turns, every = self._turns, range(self._turns.bands.turns)
        before = [set(turns.moved_before(turn)) for turn in every]
        for node in turns.segment.nodes:
            moved = [turn for turn in every if node.output in before[turn]]
            yield from self._moves(node.output, moved, self._moved_before, seen)
            if node in self._calls:
                yield from self._band_calls(node, seen, scratch)
            after: dict[Value, list[int]] = {}
            for turn in every:
                for used in turns.moved_after(node, turn):
                    after.setdefault(used, []).append(turn)
            for used, moved in after.items():
                yield from self._moves(used, moved, self._moved_after, seen)
        for chain in turns.chains:
            last = [set(chain.moved_last(turn)) for turn in every]
            for value in reversed(chain.offsets):
                moved = [turn for turn in every if value in last[turn]]
                yield from self._moves(value, moved, self._moved_last, seen)

    def _moves(
        self,
        value: Value,
        turns: Sequence[int],
        move: Callable[[Value, int, str], RowsMove],
        seen: ValueViews,
    ) -> Iterator[RowsMove]:
        """Yield the moves of a band's rows in these turns.

        Args:
            value: The band.
            turns: The turns.
            move: Returns the move in a turn; it gets the band, the turn and the band's buffer.
            seen: The locations of bands.
        """
        found: dict[RowsMove, list[int]] = {}
        for turn in turns:
            found.setdefault(move(value, turn, str(seen[value].place)), []).append(turn)
        for same, times in found.items():
            for part in _ranges(times, self._turns.bands.refills[value].step):
                yield replace(same, turns=part)

    def _moved_before(self, value: Value, turn: int, band: str) -> RowsMove:
        rows, spill = self._kept_rows(value, turn), self._spills.get(value)
        source = (band, rows.source) if spill is None else (spill, 0)
        return RowsMove(*source, band, rows.target, rows.bytes, rows.row_bytes, _NEVER)

    def _moved_after(self, value: Value, turn: int, band: str) -> RowsMove:
        refills = self._turns.bands.refills[value]
        rows = self._kept_rows(value, next(refill for refill in refills if refill > turn))
        spill = self._spills.get(value)
        target = (band, rows.target) if spill is None else (spill, 0)
        return RowsMove(band, rows.source, *target, rows.bytes, rows.row_bytes, _NEVER)

    def _moved_last(self, value: Value, turn: int, band: str) -> RowsMove:
        rows, offset = self._kept_rows(value, turn + 1), self._turns.chained[value].offsets[value]
        row = rows.row_bytes if offset % rows.row_bytes == 0 else 1
        source, target = (band, offset + rows.source), (band, offset + rows.target)
        return RowsMove(*source, *target, rows.bytes, row, _NEVER)

    def _band_calls(
        self, node: Node, seen: ValueViews, scratch: Mapping[tuple[Node, str], str]
    ) -> Iterator[BandCall]:
        """Yield the calls of a layer; one for all turns in which it differs only in the rows."""
        active = self._turns.bands.active[node]
        layers = {
            turn: next(layer for layer in self._turns.all[turn] if layer.node is node)
            for turn in active
        }
        found: dict[tuple[Node, tuple[int, ...]], list[int]] = {}
        for turn, layer in layers.items():
            starts = tuple(rows.start for _, rows in self._parts(layer, turn))
            found.setdefault((layer.band_node, starts), []).append(turn)
        for turns in found.values():
            for part in _ranges(turns, active.step):
                yield self._call(layers[part.start], part, seen, scratch)

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
            turns=turns,
            slots=tuple(self._slots[turn][node] for turn in turns),
        )

    def _parts(self, layer: LayerTurn, turn: int) -> Iterator[tuple[Value, _FirstRow]]:
        """Yield where the rows begin that a call reads and makes."""
        segment, bands, node = self._turns.segment, self._turns.bands, layer.node
        active = bands.active[node]
        made = int(active.step * bands.rates[node]) * (-1 if segment.reverse else 1)
        read = made * segment.windows[node].stride
        parts = [(value, layer.read.rows, read) for value in segment.operands(node)]
        if node is not segment.summed:
            parts.append((node.output, layer.made, made))
        for value, rows, step in parts:
            if value in segment.banded:
                yield value, _FirstRow(self._turns.position(value, rows, turn), 0)
            else:
                yield value, _FirstRow(rows.start - turn // active.step * step, step)

    def _views(self, layer: LayerTurn, turns: range, seen: ValueViews) -> ValueViews:
        """Return the locations of what a call reads and makes, by the values of its band node."""
        segment, node = self._turns.segment, layer.node
        views = dict(seen)
        every = self._turns.bands.active[node].step
        for value, rows in self._parts(layer, turns.start):
            elements = value.type.size // segment.height(value)
            offsets, start = (), rows.start
            if len(turns) == 1:
                start += turns.start // every * rows.step
            elif rows.step:
                offsets = (IterationOffset(TURN, rows.step * elements, every=every),)
            view = seen[value]
            start = view.start + start * elements
            views[value] = ValueView(
                view.place, offsets, start, elements if start % elements == 0 else 1
            )
        values = (*node.inputs, node.output)
        own = (*layer.band_node.inputs[: len(node.inputs)], layer.band_node.output)
        found = {b: views[v] for v, b in zip(values, own, strict=True) if v in views and b}
        if self._sums is not None and node is segment.summed:
            sums = (*layer.band_node.inputs[1:], *layer.band_node.outputs[layer.has_result :])
            found |= {value: ValueView(self._sums) for value in sums if value is not None}
        return found

    def _layer(self, node: Node, actions: Sequence[BandCall | RowsMove]) -> Call:
        """Return the step of a node, with the kernel of most of its calls."""
        index, calls = self._indices[node], self._calls[node]
        main = max(calls, key=lambda band_node: calls[band_node])
        made = [a for a in actions if isinstance(a, BandCall) and a.step == index]
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
            slot=min(call.slots[0] for call in made),
            choice=choice,
            function=shown.function,
            arguments=shown.arguments,
            bands=work,
        )


def _ranges(turns: Sequence[int], step: int) -> Iterator[range]:
    """Yield rising turns as ranges with this step; three or more also with another one."""
    first = 0
    while first < len(turns):
        end = first + 1
        apart = turns[end] - turns[first] if end < len(turns) else step
        while end < len(turns) and turns[end] == turns[end - 1] + apart:
            end += 1
        if apart != step and end - first < _FEWEST:
            end, apart = first + 1, step
        yield range(turns[first], turns[end - 1] + 1, apart)
        first = end

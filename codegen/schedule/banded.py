"""The steps of a segment: calls for a few rows at a time, and the bytes that its bands hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

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
    Shift,
)
from smelt.codegen.segments.turns import LayerTurn, Turns
from smelt.ir import Node

_COUNTER = "i"
"""The C variable that counts the turns of a phase."""


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
        self._choices = {
            band_node: choose(band_node) for calls in self._calls.values() for band_node in calls
        }
        self._slots = [
            {
                node: lifetimes.slot(f"{node.origin}, turn {turn + 1} of {turns.bands.turns}")
                for node in turns.segment.nodes
            }
            for turn in range(turns.bands.turns)
        ]

    def action(self, scope: ValueViews) -> BandedSegment:
        """Return the segment; the locations of its whole results are added to `scope`."""
        segment = self._turns.segment
        bands = {
            value: ValueView(
                self._lifetimes.buffer(
                    f"band of {value.name}",
                    self._turns.bands.band_rows(value) * segment.row_bytes(value),
                )
            )
            for value in (node.output for node in segment.nodes)
            if value in segment.banded
        }
        for node in segment.nodes:
            if node.output not in bands:
                self._places.define(node.output, scope)
        seen = {**scope, **bands}
        self._use_whole_tensors(seen)
        self._hold_bands(bands)
        scratch = self._scratch()
        phases = tuple(self._phase(turns, seen, scratch) for turns in self._turns.phases())
        layers = tuple(self._layer(node, phases, seen) for node in segment.nodes)
        return BandedSegment(layers, phases, segment.axis, segment.reverse)

    # --- lifetimes -------------------------------------------------------------------------------

    def _use_whole_tensors(self, seen: ValueViews) -> None:
        """Record which bytes of tensors that are not banded each call reads and writes."""
        segment = self._turns.segment
        for slots, turn in zip(self._slots, self._turns.all, strict=True):
            for layer in turn:
                rows = dict.fromkeys(segment.operands(layer.node), layer.read.rows)
                rows[layer.node.output] = layer.made
                for value in (*layer.node.inputs, layer.node.output):
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

    def _hold_bands(self, bands: ValueViews) -> None:
        """Record which bytes of each band are live.

        From its producer's call to the last one that reads it in the turn, the whole band is live;
        until the next turn, only the rows that are kept.
        """
        segment = self._turns.segment
        for value, view in bands.items():
            active, producer = self._turns.active[value], segment.producers[value]
            size = self._turns.bands.band_rows(value) * segment.row_bytes(value)
            moved = self._turns.bands.made[producer] * segment.row_bytes(value)
            for turn in active:
                slots = self._slots[turn]
                reading = [
                    slots[node]
                    for node in segment.readers[value]
                    if self._turns.bands.rows(node, turn)
                ]
                end = max([slots[producer], *reading]) + 1
                self._lifetimes.hold(str(view.place), slots[producer], end, 0, size)
                following = self._slots[turn + 1][producer] if turn + 1 in active else end
                if moved < size and end < following:
                    kept = (0, size - moved) if segment.reverse else (moved, size)
                    self._lifetimes.hold(str(view.place), end, following, *kept)

    def _scratch(self) -> Mapping[tuple[Node, str], str]:
        """Return the buffers of the layers' scratch; all calls of a layer use the same ones."""
        sizes: dict[tuple[Node, str], int] = {}
        for node, calls in self._calls.items():
            for operand in (o for n in calls for o in self._choices[n].taken.call.operands):
                if isinstance(operand, Scratch):
                    key = node, operand.name
                    sizes[key] = max(sizes.get(key, 0), operand.count * operand.dtype.size)
        buffers = {
            (node, name): self._lifetimes.buffer(f"step {self._indices[node]} {name}", size)
            for (node, name), size in sizes.items()
        }
        for slots, turn in zip(self._slots, self._turns.all, strict=True):
            for layer in turn:
                for operand in self._choices[layer.band_node].taken.call.operands:
                    if isinstance(operand, Scratch) and operand.count:
                        slot, size = slots[layer.node], operand.count * operand.dtype.size
                        buffer = buffers[layer.node, operand.name]
                        self._lifetimes.hold(buffer, slot, slot + 1, 0, size)
        return buffers

    # --- calls -----------------------------------------------------------------------------------

    def _phase(
        self, turns: range, seen: ValueViews, scratch: Mapping[tuple[Node, str], str]
    ) -> Phase:
        """Return the calls of turns that execute the same ones."""
        segment, actions = self._turns.segment, list[BandCall | Shift]()
        layers = {layer.node: layer for layer in self._turns.all[turns.start]}
        for node in segment.nodes:
            value = node.output
            if value in segment.banded and self._turns.is_shifted(value, turns.start):
                row = segment.row_bytes(value)
                moved = self._turns.bands.made[node] * row
                kept = self._turns.bands.kept[value] * row
                ends = (0, moved) if segment.reverse else (moved, 0)
                actions.append(Shift(str(seen[value].place), *ends, kept))
            if node in layers:
                actions.append(self._call(layers[node], turns, seen, scratch))
        return Phase(_COUNTER, len(turns), tuple(actions))

    def _call(
        self,
        layer: LayerTurn,
        turns: range,
        seen: ValueViews,
        scratch: Mapping[tuple[Node, str], str],
    ) -> BandCall:
        node, choice = layer.node, self._choices[layer.band_node]
        index, band_nodes = self._indices[node], list(self._calls[node])
        number = band_nodes.index(layer.band_node)
        owner = f"step {index}" if number == 0 else f"step {index} rows {number}"
        views = self._views(layer, turns, seen)
        arguments: list[Argument] = []
        for operand in choice.taken.call.operands:
            if isinstance(operand, Scratch):
                buffer = scratch[node, operand.name]
                arguments.append(InBuffer(buffer, operand.dtype, constant=False))
            else:
                arguments.append(self._places.operand(operand, node, owner, -1, views))
        return BandCall(
            step=index,
            node=layer.band_node,
            choice=choice,
            function=self._functions.add(layer.band_node, choice.taken.call),
            arguments=tuple(arguments),
            result=self._places.target(views[node.output], node.output.type),
            bytes=len(layer.made) * self._turns.segment.row_bytes(node.output),
            slots=tuple(self._slots[turn][node] for turn in turns),
        )

    def _views(self, layer: LayerTurn, turns: range, seen: ValueViews) -> ValueViews:
        """Return the locations of the rows that a call reads and makes."""
        segment, bands, node = self._turns.segment, self._turns.bands, layer.node
        views = dict(seen)
        advance = bands.made[node] * segment.windows[node].stride
        operands = [(value, layer.read.rows, advance) for value in segment.operands(node)]
        for value, rows, step in (*operands, (node.output, layer.made, bands.made[node])):
            elements = value.type.size // segment.height(value)
            place = seen[value].place
            if value in segment.banded:
                start = self._turns.position(value, rows, turns.start)
                views[value] = ValueView(place, (), start * elements)
                continue
            start = rows.start - (len(turns) - 1) * step if segment.reverse else rows.start
            offsets = (IterationOffset(_COUNTER, step * elements),) if len(turns) > 1 else ()
            views[value] = ValueView(place, offsets, start * elements)
        return views

    def _layer(self, node: Node, phases: Sequence[Phase], seen: ValueViews) -> Call:
        """Return the step of a node, with the kernel of most of its calls."""
        index, calls = self._indices[node], self._calls[node]
        main = max(calls, key=lambda band_node: calls[band_node])
        made = [a for p in phases for a in p.actions if isinstance(a, BandCall) and a.step == index]
        shown = next(call for call in made if call.choice is self._choices[main])
        rows, turns = self._turns.bands.made[node], self._turns.bands.turns
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

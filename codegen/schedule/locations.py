"""Locations of values: a planned buffer, a slice of one, or a constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.lower.kernel import Input, LayerStruct, Operand, Output, Packed, Scratch
from smelt.codegen.passes.loops import unchanged_values
from smelt.codegen.passes.run_time_rows import Rows
from smelt.codegen.schedule.lifetimes import Lifetimes, Reuse
from smelt.codegen.schedule.shared_symbols import Constants
from smelt.codegen.schedule.steps import Argument, InBuffer, InFlash, IterationOffset, Move
from smelt.ir import Node, TensorType, Value
from smelt.ops.control.repeated_graph import Order, RepeatedGraph


@dataclass(frozen=True)
class ValueView:
    """The location of a value: a part of a buffer or of a constant.

    Attributes:
        place: The name of the buffer, or the constant.
        offsets: Offsets that depend on the counters of the loops around the access.
        start: Elements from the beginning of `place` to the value, besides `offsets`.
        row: Elements of a row, if `start` and `offsets` are whole rows; otherwise 0.
    """

    place: str | Value
    offsets: tuple[IterationOffset, ...] = ()
    start: int = 0
    row: int = 0


ValueViews = dict[Value, ValueView]
"""The locations of the values of one graph."""


def view_of(scope: ValueViews, value: Value) -> ValueView:
    """Return the location of a value: that in `scope`, or the constant itself."""
    return scope[value] if value.data is None else ValueView(value)


def views_in_row(node: Node, scope: ValueViews, rows: Rows, counter: str) -> ValueViews:
    """Return the locations of a node's operands and results for the rows at `counter`."""
    seen: ValueViews = {}
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.data is None:
            elements, view = rows.elements(value), scope[value]
            offset = () if elements is None else (IterationOffset(counter, elements),)
            seen[value] = ValueView(view.place, (*view.offsets, *offset))
    return seen


def _slice(
    view: ValueView, counter: str, trip_count: int | None, order: Order, elements: int
) -> ValueView:
    """Return the slice along axis 0 for one iteration of a loop."""
    last = (trip_count or 0) - 1 if order is Order.BACKWARD else None
    return ValueView(view.place, (*view.offsets, IterationOffset(counter, elements, last)))


def views_in_iteration(
    loop: RepeatedGraph, node: Node, scope: ValueViews, targets: Sequence[ValueView], counter: str
) -> tuple[list[ValueView], list[ValueView]]:
    """Return the locations of the body's inputs and of its results in one iteration."""
    count, same = len(loop.carried), unchanged_values(loop)
    carried = [
        view_of(scope, value) if k in same else targets[k] for k, value in enumerate(loop.carried)
    ]
    slices = [
        _slice(view_of(scope, value), counter, loop.trip_count, order, entry.type.size)
        for value, order, entry in zip(
            loop.scanned, loop.scans, loop.entries[count : count + len(loop.scanned)], strict=True
        )
    ]
    stacked = [
        _slice(target, counter, loop.trip_count, order, value.type.size)
        for target, order, value in zip(
            targets[count:], loop.stacks, loop.results[count:], strict=True
        )
    ]
    invariant = [view_of(scope, value) for value in loop.invariant]
    return [*carried, *slices, *invariant], [*carried, *stacked]


class Places:
    """Assigns locations to values and records when they are used."""

    def __init__(self, constants: Constants, lifetimes: Lifetimes) -> None:
        self._constants = constants
        self._lifetimes = lifetimes

    def define(self, value: Value, scope: ValueViews) -> ValueView:
        """Return the location of a node's output: the one prepared for it, or a new buffer."""
        if value not in scope:
            scope[value] = ValueView(self._lifetimes.buffer(value.name, value.type.bytes))
        return scope[value]

    def use(self, view: ValueView, time: int) -> None:
        """Record that a value is read or written in slot `time`."""
        if isinstance(view.place, str):
            self._lifetimes.use(view.place, time)

    def allow(self, time: int, source: ValueView, target: ValueView) -> None:
        """Permit `target`, written in slot `time`, to overwrite `source` unless read later."""
        whole = not source.offsets and not target.offsets
        if whole and isinstance(source.place, str) and isinstance(target.place, str):
            self._lifetimes.allow(Reuse(time, source.place, target.place))

    def read(
        self, value: Value | None, scope: ValueViews, time: int, index: int, name: str
    ) -> Argument | None:
        """Return the argument for a value that is read in slot `time`, or None for no value."""
        if value is None:
            return None
        view = view_of(scope, value)
        self.use(view, time)
        return self.argument(view, value.type, f"step{index}", name)

    def move(self, source: ValueView, value: Value, target: ValueView) -> Move:
        """Return a copy in its own slot: a no-op if the plan assigns both the same address."""
        time = self._lifetimes.slot(f"copy of {value.name}")
        self.use(source, time)
        self.use(target, time)
        self.allow(time, source, target)
        return Move(
            self.argument(source, value.type, f"copy{time}", "source"),
            self.target(target, value.type),
            value.type.bytes,
            value.name,
        )

    def relocate(self, value: Value, scope: ValueViews) -> Move:
        """Return a move of a tensor to a new buffer; `scope` has the new location afterwards.

        The buffers may overlap, because the old one is no longer live once the new one is.
        """
        source = view_of(scope, value)
        self.use(source, self._lifetimes.slot(f"before the move of {value.name}"))
        scope[value] = target = ValueView(
            self._lifetimes.buffer(f"moved {value.name}", value.type.bytes)
        )
        self.use(target, self._lifetimes.slot(f"move of {value.name}"))
        return Move(
            self.argument(source, value.type, "move", "source"),
            self.target(target, value.type),
            value.type.bytes,
            value.name,
            apart=False,
        )

    def argument(self, view: ValueView, type_: TensorType, owner: str, role: str) -> Argument:
        """Return the pointer to a value that is read; a constant is named by its owner and role."""
        if isinstance(view.place, str):
            return InBuffer(view.place, type_.dtype, True, view.offsets, view.start, view.row)
        name = self._constants.add(owner, role, view.place.name, view.place.array)
        return InFlash(name, view.offsets)

    def target(self, view: ValueView, type_: TensorType) -> InBuffer:
        """Return the pointer to a value that is written."""
        if not isinstance(view.place, str):
            raise TypeError(f"constant {view.place.name} cannot be written")
        return InBuffer(view.place, type_.dtype, False, view.offsets, view.start, view.row)

    def operand(
        self, operand: Operand, node: Node, owner: str, time: int, scope: ValueViews
    ) -> Argument:
        """Return the argument for a parameter of the call `owner` in slot `time`."""
        match operand:
            case Input(position, name):
                value = node.input(position)
                return self.argument(view_of(scope, value), value.type, owner, name)
            case Output(position):
                value = node.outputs[position]
                return self.target(scope[value], value.type)
            case Packed(name, array):
                return InFlash(self._constants.add(owner, name, str(node.origin), array))
            case LayerStruct():
                struct = self._constants.add_struct(owner, str(node.origin), operand)
                return InFlash(struct, is_struct=True)
            case Scratch(name, dtype, count):
                buffer = self._lifetimes.buffer(f"{owner} {name}", count * dtype.size)
                if count:
                    self._lifetimes.use(buffer, time)
                return InBuffer(buffer, dtype, constant=False)

    def results(self, node: Node, scope: ValueViews) -> tuple[Argument, ...]:
        """Return the pointers to a node's outputs."""
        return tuple(
            self.argument(scope[value], value.type, "result", value.name) for value in node.outputs
        )

"""Counts the bytes that an inference moves: how often each buffer and constant is read and written.

Each call reads its operands once, writes its results once, and writes and reads its scratch once.
What a kernel reads again while it runs is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from smelt.codegen import arena
from smelt.codegen.lower.kernel import Input, KernelCall, Output, Scratch
from smelt.codegen.schedule.schedule import Schedule
from smelt.codegen.schedule.steps import (
    Actions,
    Argument,
    BandCall,
    BandedSegment,
    Branch,
    Call,
    InBuffer,
    InFlash,
    Move,
    Repeat,
    RowsMove,
    SetLength,
)
from smelt.ir import Node


class Traffic:
    """The bytes that an inference moves, at most: of a branch, both alternatives are counted.

    A loop without a largest number of iterations is counted as one iteration. Reads of conditions
    and iteration numbers, a few bytes, are not counted.

    Attributes:
        buffers: Bytes read and written, by the name of the buffer.
        constants: Bytes read, by the name of the constant.
    """

    def __init__(self, schedule: Schedule, plan: arena.Plan) -> None:
        self.buffers: Counter[str] = Counter()
        self.constants: Counter[str] = Counter()
        self._schedule = schedule
        self._plan = plan
        self._actions(schedule.actions, 1)
        for state in schedule.graph.states:
            before, after = schedule.storage[state.before], schedule.storage[state.after]
            if before != after:
                self.buffers[before] += state.before.type.bytes
                self.buffers[after] += state.before.type.bytes

    def _actions(self, actions: Actions, times: int) -> None:
        for action in actions:
            match action:
                case Call():
                    self._call(action, times)
                case Move():
                    self._move(action, times)
                case BandedSegment():
                    for part in action.actions:
                        self._band_action(part, times * len(part.turns))
                case SetLength():
                    self.buffers[action.target.buffer] += times * action.node.output.type.bytes
                case Branch():
                    self._actions(action.then, times)
                    self._actions(action.otherwise, times)
                case Repeat():
                    count = times * (1 if action.trip_count is None else action.trip_count)
                    self._actions(action.before, times)
                    self._actions(action.test or (), count)
                    self._actions(action.body, count)

    def _call(self, step: Call, times: int) -> None:
        # A call for a few rows of a run-time length reads its constants again for each of them.
        again = 1 if step.rows is None else -(-step.rows.most // step.rows.at_once)
        self._operands(step.node, step.call, step.arguments, times, times * again)

    def _band_action(self, action: BandCall | RowsMove, times: int) -> None:
        if isinstance(action, BandCall):
            call = action.choice.taken.call
            self._operands(action.node, call, action.arguments, times, times)
        elif self._place(action.source, action.start) != self._place(action.target, action.to):
            self.buffers[action.source] += times * action.bytes
            self.buffers[action.target] += times * action.bytes

    def _operands(
        self, node: Node, call: KernelCall, arguments: Iterable[Argument], times: int, again: int
    ) -> None:
        """Count a call that runs `times` times for all its rows, and reads constants `again`."""
        for operand, argument in zip(call.operands, arguments, strict=True):
            if isinstance(argument, InFlash):
                array = self._schedule.constants[argument.constant]
                self.constants[argument.constant] += again * array.nbytes
                continue
            match operand:
                case Input(position):
                    count = times * node.input(position).type.bytes
                case Output(position):
                    count = times * node.outputs[position].type.bytes
                case Scratch(_, dtype, elements):
                    count = 2 * again * elements * dtype.size
                case _:
                    count = 0
            self.buffers[argument.buffer] += count

    def _move(self, move: Move, times: int) -> None:
        target = move.target
        match move.source:
            case InFlash(constant):
                self.constants[constant] += times * move.bytes
            case InBuffer(buffer, dtype, offsets=offsets, start=start):
                place = self._place(buffer, start * dtype.size)
                if offsets == target.offsets and place == self._place(
                    target.buffer, target.start * target.dtype.size
                ):
                    return
                self.buffers[buffer] += times * move.bytes
        self.buffers[target.buffer] += times * move.bytes

    def _place(self, buffer: str, start: int) -> tuple[str, int]:
        place = self._plan[buffer]
        return place.memory, place.offset + start

"""Follows every byte of the arena through an inference, as a check of segments and their plan.

Each byte of memory holds a label: which byte of which tensor was written there last. A call
must find the labels that the operator needs, with the padding that its node has; then its scratch
and its results overwrite labels. To be independent, the check uses neither the computation of bands
nor the planner: it counts rows as they are made, and derives the rows that they need from the
operator's window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.codegen import arena
from smelt.codegen.lower.kernel import Input, KernelCall, Output, Scratch
from smelt.codegen.passes.loops import root_of
from smelt.codegen.schedule.schedule import Schedule
from smelt.codegen.schedule.steps import (
    Argument,
    BandCall,
    BandedSegment,
    Call,
    InBuffer,
    Move,
    RowsMove,
    StreamedRows,
)
from smelt.codegen.segments.bands import adds_rows, operands_with_rows
from smelt.errors import GraphError
from smelt.ir import Array, DType, Graph, Node, Value

_NOTHING = -1
"""The label of a byte that holds no tensor."""


def replay(schedule: Schedule, plan: arena.Plan) -> None:
    """Check that each call of a schedule with segments reads what it needs.

    Args:
        schedule: The steps of a graph without control flow.
        plan: The addresses of their buffers.

    Raises:
        GraphError: A call reads a byte that does not hold what it needs, makes rows twice, or
            overwrites what it still reads.
    """
    _Replay(schedule, plan).run()


class _Replay:
    def __init__(self, schedule: Schedule, plan: arena.Plan) -> None:
        self._schedule = schedule
        self._plan = plan
        self._labels = _Labels(schedule.graph)
        self._memory = {use.name: np.full(use.bytes, _NOTHING, np.int64) for use in plan.memories}
        self._made: dict[Node, int] = {}
        self._delivered = 0

    def run(self) -> None:
        """Execute all actions."""
        graph, storage = self._schedule.graph, self._schedule.storage
        streamed = self._schedule.streamed
        inputs = (v for v in graph.inputs if streamed is None or v is not streamed.value)
        for value in (*inputs, *(state.before for state in graph.states)):
            self._bytes(storage[value], 0, value.type.bytes)[:] = self._labels.of(value)
        for action in self._schedule.actions:
            match action:
                case Call():
                    self._call(action)
                case Move(source=InBuffer() as source):
                    moved = self._bytes(source.buffer, 0, action.bytes).copy()
                    self._bytes(action.target.buffer, 0, action.bytes)[:] = moved
                case BandedSegment():
                    self._segment(action)
                case _:
                    raise GraphError("a schedule with segments has no control flow")
        for value in graph.outputs:
            if value.data is None:
                found = self._bytes(storage[value], 0, value.type.bytes)
                self._require(found, self._labels.of(value), f"output {value.name}")

    def _bytes(self, buffer: str, start: int, count: int) -> Array:
        """Return the labels of some bytes of a buffer, as a view."""
        place = self._plan[buffer]
        if start < 0 or start + count > place.size:
            raise GraphError(
                f"bytes {start} to {start + count} are outside of buffer '{buffer}', which has "
                f"{place.size} bytes"
            )
        first = place.offset + start
        return self._memory[place.memory][first : first + count]

    def _require(self, found: Array, wanted: Array, where: str) -> None:
        wrong = np.flatnonzero(found != wanted)
        if len(wrong):
            i = int(wrong[0])
            raise GraphError(
                f"{where}: byte {i} of {len(wanted)} holds {self._labels.text(int(found[i]))}, not "
                f"{self._labels.text(int(wanted[i]))}"
            )

    # --- calls -----------------------------------------------------------------------------------

    def _call(self, step: Call) -> None:
        node = step.node
        inputs = [None if v is None else self._labels.of(v) for v in node.inputs]
        outputs = [self._labels.of(value) for value in node.outputs]
        self._execute(node, step.call, step.arguments, 0, inputs, outputs, in_place=True)

    def _segment(self, segment: BandedSegment) -> None:
        nodes = {layer.index: layer.node for layer in segment.layers}
        for turn in range(segment.turns):
            if segment.streamed is not None:
                self._deliver(segment.streamed)
            for action in (action for action in segment.actions if turn in action.turns):
                if isinstance(action, RowsMove):
                    moved = self._bytes(action.source, action.start, action.bytes).copy()
                    self._bytes(action.target, action.to, action.bytes)[:] = moved
                else:
                    self._band_call(nodes[action.step], action, segment, turn)
        for node in nodes.values():
            height = self._height(node, segment)
            made = self._made.get(node, 0)
            if made != height:
                raise GraphError(f"{node.name} has {made} of {height} rows")

    def _deliver(self, streamed: StreamedRows) -> None:
        """Write the rows that the caller delivers before a turn."""
        first = self._delivered * streamed.row_bytes
        self._delivered = min(self._delivered + streamed.rows, streamed.height)
        labels = self._labels.of(streamed.value)[first : self._delivered * streamed.row_bytes]
        start = streamed.kept * streamed.row_bytes
        self._bytes(streamed.buffer, start, len(labels))[:] = labels

    def _band_call(self, node: Node, call: BandCall, segment: BandedSegment, turn: int) -> None:
        axis, band_node = segment.axis, call.node
        if adds_rows(node, axis):
            self._add_rows(node, call, segment, turn)
            return
        height, made = node.output.type.shape[axis], band_node.output.type.shape[axis]
        done = self._made.get(node, 0)
        self._made[node] = done + made
        window, own = node.op.row_window(node, axis), band_node.op.row_window(band_node, axis)
        first = height - done - made if segment.reverse else done
        if window is None or own is None or first < 0:
            raise GraphError(f"{node.name} makes {done + made} of {height} rows")
        ranges = {v: (0, v.type.bytes) for v in node.inputs if v is not None}
        ranges[node.output] = self._bytes_of_rows(node.output, axis, range(first, first + made))
        for value, band_value in zip(
            operands_with_rows(node, axis), operands_with_rows(band_node, axis), strict=True
        ):
            start = first * window.stride - window.before
            end = min(start + (made - 1) * window.stride + window.size, value.type.shape[axis])
            got = range(start + own.before, start + own.before + band_value.type.shape[axis])
            if got != range(max(start, 0), end):
                raise GraphError(
                    f"{node.name} gets rows {got.start} to {got.stop - 1} of {value.name}, not "
                    f"{max(start, 0)} to {end - 1}"
                )
            ranges[value] = self._bytes_of_rows(value, axis, got)
        inputs, outputs = (
            [None if v is None else self._labels.of(v)[slice(*ranges[v])] for v in values]
            for values in (node.inputs, node.outputs)
        )
        kernel = call.choice.taken.call
        self._execute(
            node,
            kernel,
            call.arguments,
            turn,
            inputs,
            outputs,
            in_place=(0, 0) in kernel.in_place,
        )

    def _add_rows(self, node: Node, call: BandCall, segment: BandedSegment, turn: int) -> None:
        """Check a call that adds rows to sums; the last one makes the result."""
        x, rows = node.input(0), call.node.input(0).type.shape[segment.axis]
        height, done = self._height(node, segment), self._made.get(node, 0)
        self._made[node] = made = done + rows
        first = height - made if segment.reverse else done
        if first < 0 or call.node.op != node.op.row_sums(node, last=made == height):
            raise GraphError(f"{node.name} adds up {made} of {height} rows, and makes its result")
        part = self._bytes_of_rows(x, segment.axis, range(first, first + rows))
        inputs = [self._labels.of(x)[slice(*part)]]
        if done:
            inputs.append(self._labels.of_sums(node, done))
        if len(inputs) != len(call.node.inputs):
            raise GraphError(f"{node.name} has sums of {done} rows; its operands do not")
        result = self._labels.of_sums(node, made)
        outputs = [self._labels.of(node.output) if made == height else result]
        self._execute(
            node, call.choice.taken.call, call.arguments, turn, inputs, outputs, in_place=True
        )

    @staticmethod
    def _height(node: Node, segment: BandedSegment) -> int:
        """Return the number of rows that a layer makes or, if it adds rows, reads."""
        value = node.input(0) if adds_rows(node, segment.axis) else node.output
        return value.type.shape[segment.axis]

    @staticmethod
    def _bytes_of_rows(value: Value, axis: int, rows: range) -> tuple[int, int]:
        size = value.type.bytes // value.type.shape[axis]
        return rows.start * size, rows.stop * size

    def _execute(
        self,
        node: Node,
        call: KernelCall,
        arguments: Sequence[Argument],
        turn: int,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
        *,
        in_place: bool,
    ) -> None:
        """Check what a call reads, then mark what it overwrites.

        Args:
            node: The layer.
            call: The kernel.
            arguments: The kernel's arguments.
            turn: The turn, if the call is made in a segment.
            inputs: The labels of the bytes of each operand that the call reads.
            outputs: The labels of the bytes of each result that it makes.
            in_place: Whether results may overwrite operands as `call.in_place` says.
        """
        read: list[tuple[Array, Array, str]] = []
        written: list[tuple[Array, Array]] = []
        scratch: list[Array] = []
        for operand, argument in zip(call.operands, arguments, strict=True):
            if not isinstance(argument, InBuffer):
                continue
            match operand:
                case Input(index):
                    labels = self._present(node, inputs[index])
                    found = self._argument(argument, turn, len(labels))
                    name = node.input(index).name if index < len(node.inputs) else "sums"
                    read.append((found, labels, f"{node.name} reads {name}"))
                case Output(index):
                    labels = self._present(node, outputs[index])
                    written.append((self._argument(argument, turn, len(labels)), labels))
                case Scratch(_, dtype, count):
                    scratch.append(self._argument(argument, turn, count * dtype.size))
                case _:
                    pass
        for found, labels, where in read:
            self._require(found, labels, where)
        for found in scratch:
            found[:] = _NOTHING
        same = [target for target, _ in written]
        for target, labels in written:
            target[:] = labels
        for found, labels, where in read:
            if not (in_place and any(_may_overwrite(target, found, node) for target in same)):
                self._require(found, labels, f"{where} after it has written its results")

    @staticmethod
    def _present(node: Node, labels: Array | None) -> Array:
        if labels is None:
            raise GraphError(f"{node.name} reads an operand that it does not have")
        return labels

    def _argument(self, argument: InBuffer, turn: int, count: int) -> Array:
        elements = argument.start
        for offset in argument.offsets:
            elements += turn // offset.every * offset.elements
        return self._bytes(argument.buffer, elements * argument.dtype.size, count)


def _may_overwrite(result: Array, operand: Array, node: Node) -> bool:
    """Return whether a result begins where an operand does, or before it; see `KernelCall`."""
    (begin, _), (end, _) = (a.__array_interface__["data"] for a in (result, operand))
    apart, x, y = (end - begin) // operand.itemsize, node.input(0).type, node.outputs[0].type
    alike = x.shape[-1:] == y.shape[-1:]
    return apart >= 0 and (not alike or apart % (x.shape[-1] * x.dtype.size) == 0)


class _Labels:
    """The labels of the bytes of each tensor."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._numbers: dict[Value | tuple[Node, int], int] = {}
        self._names: list[str] = []

    def of(self, value: Value) -> Array:
        """Return the labels of all bytes of a value, which are those of the value it views."""
        root = root_of(self._graph, value)
        return self._of(root, root.name, value.type.bytes)

    def of_sums(self, node: Node, rows: int) -> Array:
        """Return the labels of all bytes of the int32 sums of the first rows that a node adds."""
        name = f"the sums of {rows} rows of {node.input(0).name}"
        return self._of((node, rows), name, node.output.type.size * DType.INT32.size)

    def _of(self, key: Value | tuple[Node, int], name: str, count: int) -> Array:
        if key not in self._numbers:
            self._numbers[key] = len(self._names)
            self._names.append(name)
        return (self._numbers[key] << 40) + np.arange(count)

    def text(self, label: int) -> str:
        """Return a label in words."""
        if label == _NOTHING:
            return "nothing"
        return f"byte {label & ((1 << 40) - 1)} of {self._names[label >> 40]}"

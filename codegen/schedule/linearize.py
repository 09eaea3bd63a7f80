"""Assigns time slots and buffers to the nodes of a graph and of its inner graphs.

Module `locations` assigns the locations of values. Reshapes produce no step. The result of a branch
or a loop body is written directly to its final buffer if that cannot destroy data that is still
needed, and is copied there otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from smelt.codegen.lower.device import DeviceCall
from smelt.codegen.partition.candidates import Choice
from smelt.codegen.passes.loops import (
    in_safe_order,
    is_read,
    root_of,
    unchanged_values,
    written_early,
)
from smelt.codegen.passes.run_time_rows import Rows
from smelt.codegen.schedule.banded import SegmentLinearizer
from smelt.codegen.schedule.lifetimes import Lifetimes
from smelt.codegen.schedule.locations import (
    Places,
    ValueView,
    ValueViews,
    view_of,
    views_in_iteration,
    views_in_row,
)
from smelt.codegen.schedule.shared_symbols import Constants, Functions
from smelt.codegen.schedule.steps import (
    Actions,
    Argument,
    BandedSegment,
    Branch,
    Call,
    FallbackCall,
    Move,
    Repeat,
    RowLoop,
    SetLength,
    Step,
)
from smelt.codegen.segments.turns import Turns, nodes_of
from smelt.ir import DType, Graph, Node, TensorType, Value
from smelt.ops.control.branches import If, Loop, While
from smelt.ops.control.repeated_graph import RepeatedGraph
from smelt.ops.control.run_time_length import LengthOf

_COUNTERS = "ijkmnpqrstuvwxyz"
"""C variables that count the iterations of nested loops, outermost first."""


@dataclass(frozen=True)
class _Surroundings:
    """The control flow around a graph.

    Attributes:
        inside: The index of the enclosing branch or loop step, or None.
        depth: The number of enclosing loops.
    """

    inside: int | None = None
    depth: int = 0


class Linearizer:
    """Converts graphs to actions."""

    def __init__(
        self,
        choose: Callable[[Node], Choice],
        functions: Functions,
        constants: Constants,
        lifetimes: Lifetimes,
        rows: Callable[[Node], Rows | None],
        segments: Sequence[Turns] = (),
        fallback: Callable[[Node], Choice] | None = None,
    ) -> None:
        """Set up.

        Args:
            choose: Returns the kernel of a node.
            functions: Collects the C functions.
            constants: Collects the constant arrays.
            lifetimes: Collects slots, buffers and lifetimes.
            rows: Returns how a node is computed row by row, or None.
            segments: The segments of the outermost graph.
            fallback: Returns the CPU's kernel for a node of an accelerator; None for no fallback.
        """
        self._choose = choose
        self._choose_fallback = fallback
        self._functions = functions
        self._lifetimes = lifetimes
        self._places = Places(constants, lifetimes)
        self._rows = rows
        self._segments = {turns.segment.layers[0]: turns for turns in segments}
        self._in_segments = nodes_of(segments)
        self._count = 0

    def actions(
        self, graph: Graph, scope: ValueViews, around: _Surroundings | None = None
    ) -> Actions:
        """Return the steps of a graph.

        `scope` has the locations of the inputs; the locations of all other values are added to it.
        """
        around = around or _Surroundings()
        actions: list[Step | Move | BandedSegment] = []
        for node in graph.nodes:
            if node in self._segments:
                actions += self._segment(self._segments[node], scope)
            if node in self._in_segments:
                continue
            match node.op:
                case op if op.is_view:
                    scope[node.output] = view_of(scope, node.input(0))
                case If():
                    actions.append(self._branch(node, node.op, scope, around))
                case LengthOf():
                    actions.append(self._length(node, node.op, scope, around))
                case While() | Loop():
                    loop = node.op.repeated(node)
                    step, moves = self._repeat(node, loop, graph, scope, around)
                    actions += [step, *moves]
                case _:
                    actions.append(self._call(node, scope, around))
        return tuple(actions)

    def _segment(self, turns: Turns, scope: ValueViews) -> list[Move | BandedSegment]:
        moves = [self._places.relocate(value, scope) for value in turns.moved]
        indices = {node: self._next_index() for node in turns.segment.layers}
        segment = SegmentLinearizer(
            turns, indices, self._choose, self._functions, self._lifetimes, self._places
        )
        return [*moves, segment.action(scope)]

    # --- one node --------------------------------------------------------------------------------

    def _call(self, node: Node, scope: ValueViews, around: _Surroundings) -> Call:
        index, time = self._next_index(), self._lifetimes.slot(str(node.origin))
        rows = self._rows(node)
        choice = self._choose(node if rows is None else rows.node)
        call, cpu_call = choice.taken.call, None
        if self._choose_fallback is not None and isinstance(call, DeviceCall):
            cpu_call = self._choose_fallback(node).taken.call
        function = self._functions.add(node, call)
        for value in node.inputs:
            if value is not None:
                self._places.use(view_of(scope, value), time)
        for value in node.outputs:
            self._places.use(self._places.define(value, scope), time)
        for output, operand in call.in_place:
            if cpu_call is not None and (output, operand) not in cpu_call.in_place:
                continue
            source, target = node.inputs[operand], node.outputs[output]
            if source is not None and (rows is None or rows.have_equal_rows(source, target)):
                self._places.allow(time, view_of(scope, source), scope[target])
        loop, seen = None, scope
        if rows is not None:
            counter = _counter(around.depth)
            loop = RowLoop(counter, rows.length.name, rows.at_once, rows.length.maximum)
            seen = views_in_row(node, scope, rows, counter)
        owner = f"step{index}"
        arguments = [
            self._places.operand(operand, node, owner, time, seen) for operand in call.operands
        ]
        fallback = None
        if cpu_call is not None:
            owner = f"{owner}cpu"
            cpu_arguments = tuple(
                self._places.operand(operand, node, owner, time, seen)
                for operand in cpu_call.operands
            )
            fallback = FallbackCall(cpu_call, self._functions.add(node, cpu_call), cpu_arguments)
        results = self._places.results(node, scope)
        return Call(
            index=index,
            node=node,
            results=results,
            inside=around.inside,
            slot=time,
            choice=choice,
            function=function,
            arguments=tuple(arguments),
            rows=loop,
            fallback=fallback,
        )

    def _length(
        self, node: Node, op: LengthOf, scope: ValueViews, around: _Surroundings
    ) -> SetLength:
        """Return the step that writes a length, set by the caller, to a tensor."""
        index, time = self._next_index(), self._lifetimes.slot(str(node.origin))
        self._places.use(self._places.define(node.output, scope), time)
        target = self._places.target(scope[node.output], node.output.type)
        return SetLength(index, node, self._places.results(node, scope), around.inside, op, target)

    # --- branches --------------------------------------------------------------------------------

    def _branch(self, node: Node, op: If, scope: ValueViews, around: _Surroundings) -> Branch:
        index, time = self._next_index(), self._lifetimes.slot(str(node.origin))
        condition, arguments = node.input(0), node.inputs[1:]
        self._places.use(view_of(scope, condition), time)
        views = [view_of(scope, value) for value in arguments if value is not None]
        targets = [self._places.define(value, scope) for value in node.outputs]
        inner = replace(around, inside=index)
        view = view_of(scope, condition)
        pointer = self._places.argument(view, condition.type, f"step{index}", "condition")
        then = self._branch_actions(op.then_graph, views, targets, inner)
        otherwise = self._branch_actions(op.else_graph, views, targets, inner)
        results = self._places.results(node, scope)
        return Branch(
            index=index,
            node=node,
            results=results,
            inside=around.inside,
            condition=pointer,
            then=then,
            otherwise=otherwise,
        )

    def _branch_actions(
        self,
        graph: Graph,
        arguments: Sequence[ValueView],
        targets: Sequence[ValueView],
        around: _Surroundings,
    ) -> Actions:
        """Return the steps of a branch, then copies of results that cannot be written in place."""
        scope: ValueViews = dict(zip(graph.inputs, arguments, strict=True))
        moved: list[tuple[Value, ValueView]] = []
        for value, target in zip(graph.outputs, targets, strict=True):
            root = root_of(graph, value)
            if root in graph.producer and root not in scope:
                scope[root] = target
            else:
                moved.append((value, target))
        steps = self.actions(graph, scope, around)
        return (*steps, *(self._places.move(view_of(scope, v), v, target) for v, target in moved))

    # --- loops -----------------------------------------------------------------------------------

    def _repeat(
        self,
        node: Node,
        loop: RepeatedGraph,
        graph: Graph,
        scope: ValueViews,
        around: _Surroundings,
    ) -> tuple[Repeat, Actions]:
        """Return the loop, and the copies after it, of operands that it returns unchanged."""
        index = self._next_index()
        inner = _Surroundings(index, around.depth + 1)
        counter = _counter(around.depth)
        same = unchanged_values(loop)
        copied = [k for k in sorted(same) if is_read(graph, node.outputs[k])]
        scope |= {node.outputs[k]: view_of(scope, loop.carried[k]) for k in same if k not in copied}
        targets = [scope.get(value) or self._places.define(value, scope) for value in node.outputs]
        own = [view for k, view in enumerate(targets) if k not in same]
        before = tuple(
            self._places.move(view_of(scope, value), value, target)
            for k, (value, target) in enumerate(zip(loop.carried, targets, strict=False))
            if k not in same
        )
        head = self._lifetimes.slot(str(node.origin))
        limit = self._places.read(loop.limit, scope, head, index, "limit")
        start = self._places.read(loop.condition, scope, head, index, "condition")
        number = None
        if loop.number is not None and is_read(loop.body, loop.number):
            number = ValueView(
                self._lifetimes.buffer(f"step{index} iteration", loop.number.type.bytes)
            )
            own.append(number)
        for view in own:
            self._places.use(view, head)
        entries, results = views_in_iteration(loop, node, scope, targets, counter)
        test, continues_before = self._test(loop, entries, index, inner)
        body, continues_after = self._body(loop, entries, results, number, index, inner)
        tail = self._lifetimes.slot(f"end of {node.origin}")
        for view in own:
            self._places.use(view, tail)
        self._lifetimes.repeat(head, tail)
        after = tuple(
            self._places.move(view_of(scope, loop.carried[k]), loop.carried[k], targets[k])
            for k in copied
        )
        repeat = Repeat(
            index=index,
            node=node,
            results=self._places.results(node, scope),
            inside=around.inside,
            word="for" if loop.test is None else "while",
            counter=counter,
            before=before,
            trip_count=loop.trip_count,
            limit=limit,
            start=start,
            number=None if number is None else self._places.target(number, _NUMBER),
            test=test,
            body=body,
            continues=continues_before or continues_after,
        )
        return repeat, after

    def _test(
        self, loop: RepeatedGraph, entries: Sequence[ValueView], index: int, around: _Surroundings
    ) -> tuple[Actions | None, Argument | None]:
        """Return the actions before every iteration of a While, and the bool that they compute."""
        if loop.test is None:
            return None, None
        scope: ValueViews = dict(zip(loop.test.inputs, entries, strict=True))
        steps = self.actions(loop.test, scope, around)
        time = self._lifetimes.slot(f"condition of {loop.test.name}")
        return steps, self._places.read(loop.test.outputs[0], scope, time, index, "again")

    def _body(
        self,
        loop: RepeatedGraph,
        entries: Sequence[ValueView],
        results: Sequence[ValueView],
        number: ValueView | None,
        index: int,
        around: _Surroundings,
    ) -> tuple[Actions, Argument | None]:
        """Return the actions of one iteration, and the bool that a Loop computes.

        The steps come first. Then stacked results are copied, because they may be old carried
        values. Copies of the new carried values are last.
        """
        scope: ValueViews = dict(zip(loop.entries, entries, strict=True))
        if loop.number is not None and number is not None:
            scope[loop.number] = number
        early = written_early(loop, lambda node: self._choose(node).taken.call.in_place)
        scope |= {value: results[k] for value, k in early.items()}
        actions = list(self.actions(loop.body, scope, around))
        placed = unchanged_values(loop) | set(early.values())
        late = [k for k in range(len(results)) if k not in placed]
        stacked = [k for k in late if k >= len(loop.carried)]
        for value, target in ((loop.results[k], results[k]) for k in stacked):
            actions.append(self._places.move(view_of(scope, value), value, target))
        continues = loop.continues
        if continues is not None and root_of(loop.body, continues) not in loop.body.producer:
            target = ValueView(self._lifetimes.buffer(f"step{index} again", continues.type.bytes))
            actions.append(self._places.move(view_of(scope, continues), continues, target))
            scope[continues] = target
        carried = {results[k]: loop.results[k] for k in late if k < len(loop.carried)}
        actions += self._moves(carried, scope, index)
        time = self._lifetimes.slot(f"iteration of step {index}")
        return tuple(actions), self._places.read(continues, scope, time, index, "again")

    def _moves(
        self, carried: Mapping[ValueView, Value], scope: ValueViews, index: int
    ) -> list[Move]:
        """Return copies of results to their buffers, ordered so that no source is overwritten."""
        types = dict(carried)

        def saved(place: ValueView) -> ValueView:
            name = f"step{index} {types[place].name}"
            kept = ValueView(self._lifetimes.buffer(name, types[place].type.bytes))
            types[kept] = types[place]
            return kept

        sources = {target: view_of(scope, value) for target, value in carried.items()}
        return [
            self._places.move(source, types[target], target)
            for source, target in in_safe_order(sources, saved)
        ]

    def _next_index(self) -> int:
        self._count += 1
        return self._count - 1


def _counter(depth: int) -> str:
    return _COUNTERS[depth] if depth < len(_COUNTERS) else f"i{depth}"


_NUMBER = TensorType((), DType.INT64)

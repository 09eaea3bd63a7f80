"""Lays the nodes of a graph, and of the graphs inside, out in time and memory.

A value is a *view*: of a planned buffer, whole or the slice of a loop's turn, or of a constant.
Reshapes cost nothing. What a branch or a loop's body makes is written straight to where it is read
afterwards, where that cannot destroy what is still needed, and else copied there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from smelt.codegen.lower.device import DeviceCall
from smelt.codegen.lower.offer import Input, Operand, Output, Packed, Scratch
from smelt.codegen.partition.partitioner import Choice
from smelt.codegen.passes.loops import LoopForm, in_safe_order, is_read, root_of
from smelt.codegen.passes.rows import Rows
from smelt.codegen.schedule.lifetimes import Lifetimes, Reuse
from smelt.codegen.schedule.steps import (
    Argument,
    Block,
    Branch,
    Call,
    InBuffer,
    InFlash,
    Move,
    Repeat,
    RowLoop,
    Spare,
    Step,
    TellLength,
    Turn,
)
from smelt.codegen.schedule.symbols import Constants, Functions
from smelt.ir import DType, Graph, Node, TensorType, Value
from smelt.ops.control.branches import If, Loop, Order, While
from smelt.ops.control.run_time_length import LengthOf

_COUNTERS = "ijkmnpqrstuvwxyz"
"""C variables that count the turns of nested loops, outermost first."""


@dataclass(frozen=True)
class ValueView:
    """Where a value is: in a buffer or a constant, or in a slice of it."""

    place: str | Value
    turns: tuple[Turn, ...] = ()


Scope = dict[Value, ValueView]
"""Where the values of one graph are."""


@dataclass(frozen=True)
class _Surroundings:
    """What the steps of a graph stand in."""

    inside: int | None = None
    depth: int = 0


class Linearizer:
    """Turns graphs into blocks of steps; `steps` are all of them, `lifetimes` their memory."""

    def __init__(
        self,
        choose: Callable[[Node], Choice],
        functions: Functions,
        constants: Constants,
        lifetimes: Lifetimes,
        rows: Callable[[Node], Rows | None],
        spare: Callable[[Node], Choice] | None = None,
    ) -> None:
        """Prepare; `spare` chooses a kernel of the CPU for what goes elsewhere, if wanted."""
        self._choose = choose
        self._spare = spare
        self._functions = functions
        self._constants = constants
        self._lifetimes = lifetimes
        self._rows = rows
        self._count = 0

    def block(self, graph: Graph, scope: Scope, around: _Surroundings | None = None) -> Block:
        """The steps of a graph with its inputs in `scope`, which is told where other values are."""
        around = around or _Surroundings()
        actions: list[Step | Move] = []
        for node in graph.nodes:
            match node.op:
                case op if op.is_view:
                    scope[node.output] = _view(scope, node.input(0))
                case If():
                    actions.append(self._branch(node, node.op, scope, around))
                case LengthOf():
                    actions.append(self._length(node, node.op, scope, around))
                case While() | Loop():
                    step, moves = self._repeat(node, graph, scope, around)
                    actions += [step, *moves]
                case _:
                    actions.append(self._call(node, scope, around))
        return tuple(actions)

    # --- one node --------------------------------------------------------------------------------

    def _call(self, node: Node, scope: Scope, around: _Surroundings) -> Call:
        index, time = self._next(), self._lifetimes.slot(str(node.origin))
        rows = self._rows(node)
        choice = self._choose(node if rows is None else rows.node)
        call, twin = choice.taken.call, None
        if self._spare is not None and isinstance(call, DeviceCall):
            twin = self._spare(node).taken.call
        function = self._functions.add(node, call)
        for value in node.inputs:
            if value is not None:
                self._use(_view(scope, value), time)
        for value in node.outputs:
            self._use(self._define(value, scope), time)
        for output, operand in call.in_place:
            if twin is not None and (output, operand) not in twin.in_place:
                continue
            source, target = node.inputs[operand], node.outputs[output]
            if source is not None and (rows is None or rows.alike(source, target)):
                self._allow(time, _view(scope, source), scope[target])
        loop, seen = None, scope
        if rows is not None:
            counter = _counter(around.depth)
            loop = RowLoop(counter, rows.length.name, rows.block, rows.length.maximum)
            seen = _in_row(node, scope, rows, counter)
        owner = f"step {index}"
        arguments = [self._operand(operand, node, owner, time, seen) for operand in call.operands]
        spare = None
        if twin is not None:
            owner = f"{owner} cpu"
            own = [self._operand(operand, node, owner, time, seen) for operand in twin.operands]
            spare = Spare(twin, self._functions.add(node, twin), tuple(own))
        results = self._results(node, scope)
        return Call(
            index, node, results, around.inside, choice, function, tuple(arguments), loop, spare
        )

    def _length(self, node: Node, op: LengthOf, scope: Scope, around: _Surroundings) -> TellLength:
        """Tells the graph a length that the caller has set."""
        index, time = self._next(), self._lifetimes.slot(str(node.origin))
        self._use(self._define(node.output, scope), time)
        target = self._target(scope[node.output], node.output.type)
        return TellLength(index, node, self._results(node, scope), around.inside, op, target)

    def _operand(
        self, operand: Operand, node: Node, owner: str, time: int, scope: Scope
    ) -> Argument:
        word = owner.replace(" ", "")
        match operand:
            case Input(position, name):
                value = node.input(position)
                return self._argument(_view(scope, value), value.type, word, name)
            case Output(position):
                value = node.outputs[position]
                return self._target(scope[value], value.type)
            case Packed(name, array):
                return InFlash(self._constants.add(word, name, str(node.origin), array))
            case Scratch(name, dtype, count):
                buffer = self._lifetimes.buffer(f"{owner} {name}", count * dtype.size)
                if count:
                    self._lifetimes.use(buffer, time)
                return InBuffer(buffer, dtype, constant=False)

    # --- branches --------------------------------------------------------------------------------

    def _branch(self, node: Node, op: If, scope: Scope, around: _Surroundings) -> Branch:
        index, time = self._next(), self._lifetimes.slot(str(node.origin))
        condition, arguments = node.input(0), node.inputs[1:]
        self._use(_view(scope, condition), time)
        views = [_view(scope, value) for value in arguments if value is not None]
        targets = [self._define(value, scope) for value in node.outputs]
        inner = replace(around, inside=index)
        view = _view(scope, condition)
        pointer = self._argument(view, condition.type, f"step{index}", "condition")
        then = self._arm(op.then_graph, views, targets, inner)
        otherwise = self._arm(op.else_graph, views, targets, inner)
        results = self._results(node, scope)
        return Branch(index, node, results, around.inside, pointer, then, otherwise)

    def _arm(
        self,
        graph: Graph,
        arguments: Sequence[ValueView],
        targets: Sequence[ValueView],
        around: _Surroundings,
    ) -> Block:
        """A branch: its graph's steps, and copies of results that no step can write in place."""
        scope: Scope = dict(zip(graph.inputs, arguments, strict=True))
        moved: list[tuple[Value, ValueView]] = []
        for value, target in zip(graph.outputs, targets, strict=True):
            root = root_of(graph, value)
            if root in graph.producer and root not in scope:
                scope[root] = target
            else:
                moved.append((value, target))
        steps = self.block(graph, scope, around)
        return (*steps, *(self._move(_view(scope, v), v, target) for v, target in moved))

    # --- loops -----------------------------------------------------------------------------------

    def _repeat(
        self, node: Node, graph: Graph, scope: Scope, around: _Surroundings
    ) -> tuple[Repeat, Block]:
        """The loop; and copies, after it, of operands that it hands on as they are."""
        index, form = self._next(), _form(node)
        inner = _Surroundings(index, around.depth + 1)
        counter = _counter(around.depth)
        copied = [k for k in sorted(form.kept) if is_read(graph, node.outputs[k])]
        scope |= {
            node.outputs[k]: _view(scope, form.carried[k]) for k in form.kept if k not in copied
        }
        targets = [scope.get(value) or self._define(value, scope) for value in node.outputs]
        own = [view for k, view in enumerate(targets) if k not in form.kept]
        before = tuple(
            self._move(_view(scope, value), value, target)
            for k, (value, target) in enumerate(zip(form.carried, targets, strict=False))
            if k not in form.kept
        )
        head = self._lifetimes.slot(str(node.origin))
        limit = self._read(form.limit, scope, head, index, "limit")
        start = self._read(form.condition, scope, head, index, "condition")
        number = None
        if form.number is not None and form.numbered:
            number = ValueView(self._lifetimes.buffer(f"step {index} turn", form.number.type.bytes))
            own.append(number)
        for view in own:
            self._use(view, head)
        entries, results = _views_in_turn(form, node, scope, targets, counter)
        test, before_turn = self._test(form, entries, index, inner)
        body, after_turn = self._body(form, entries, results, number, index, inner)
        tail = self._lifetimes.slot(f"end of {node.origin}")
        for view in own:
            self._use(view, tail)
        self._lifetimes.repeat(head, tail)
        after = tuple(
            self._move(_view(scope, form.carried[k]), form.carried[k], targets[k]) for k in copied
        )
        loop = Repeat(
            index,
            node,
            self._results(node, scope),
            around.inside,
            form.word,
            counter,
            before,
            form.turns,
            limit,
            start,
            None if number is None else self._target(number, _NUMBER),
            test,
            body,
            before_turn or after_turn,
        )
        return loop, after

    def _test(
        self, form: LoopForm, entries: Sequence[ValueView], index: int, around: _Surroundings
    ) -> tuple[Block | None, Argument | None]:
        """What runs before every turn of While, and the bool that it computes."""
        if form.test is None:
            return None, None
        scope: Scope = dict(zip(form.test.inputs, entries, strict=True))
        steps = self.block(form.test, scope, around)
        time = self._lifetimes.slot(f"condition of {form.test.name}")
        return steps, self._read(form.test.outputs[0], scope, time, index, "again")

    def _body(
        self,
        form: LoopForm,
        entries: Sequence[ValueView],
        results: Sequence[ValueView],
        number: ValueView | None,
        index: int,
        around: _Surroundings,
    ) -> tuple[Block, Argument | None]:
        """What a turn does, and the bool of Loop that it computes.

        The steps; then copies of what is stacked, which may be what was carried before; then
        copies of what is carried next.
        """
        scope: Scope = dict(zip(form.entries, entries, strict=True))
        if form.number is not None and number is not None:
            scope[form.number] = number
        early = form.written_early(lambda node: self._choose(node).taken.call.in_place)
        scope |= {value: results[k] for value, k in early.items()}
        actions = list(self.block(form.body, scope, around))
        placed = form.kept | set(early.values())
        late = [k for k in range(len(results)) if k not in placed]
        stacked = [k for k in late if k >= len(form.carried)]
        for value, target in ((form.results[k], results[k]) for k in stacked):
            actions.append(self._move(_view(scope, value), value, target))
        again = form.again
        if again is not None and root_of(form.body, again) not in form.body.producer:
            target = ValueView(self._lifetimes.buffer(f"step {index} again", again.type.bytes))
            actions.append(self._move(_view(scope, again), again, target))
            scope[again] = target
        carried = {results[k]: form.results[k] for k in late if k < len(form.carried)}
        actions += self._moves(carried, scope, index)
        time = self._lifetimes.slot(f"turn of step {index}")
        return tuple(actions), self._read(again, scope, time, index, "again")

    def _moves(self, carried: Mapping[ValueView, Value], scope: Scope, index: int) -> list[Move]:
        """Copies of results to their places, none of which destroys what another one reads."""
        types = dict(carried)

        def spare(place: ValueView) -> ValueView:
            name = f"step {index} {types[place].name}"
            kept = ValueView(self._lifetimes.buffer(name, types[place].type.bytes))
            types[kept] = types[place]
            return kept

        sources = {target: _view(scope, value) for target, value in carried.items()}
        return [
            self._move(source, types[target], target)
            for source, target in in_safe_order(sources, spare)
        ]

    # --- views -----------------------------------------------------------------------------------

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _define(self, value: Value, scope: Scope) -> ValueView:
        """The place of what a node makes: the one that is ready for it, or a buffer of its own."""
        if value not in scope:
            scope[value] = ValueView(self._lifetimes.buffer(value.name, value.type.bytes))
        return scope[value]

    def _use(self, view: ValueView, time: int) -> None:
        if isinstance(view.place, str):
            self._lifetimes.use(view.place, time)

    def _allow(self, time: int, source: ValueView, target: ValueView) -> None:
        whole = not source.turns and not target.turns
        if whole and isinstance(source.place, str) and isinstance(target.place, str):
            self._lifetimes.allow(Reuse(time, source.place, target.place))

    def _read(
        self, value: Value | None, scope: Scope, time: int, index: int, name: str
    ) -> Argument | None:
        """The argument for a value that is read in slot `time`."""
        if value is None:
            return None
        view = _view(scope, value)
        self._use(view, time)
        return self._argument(view, value.type, f"step{index}", name)

    def _move(self, source: ValueView, value: Value, target: ValueView) -> Move:
        """A copy in a slot of its own, which is free if the plan gives both the same place."""
        time = self._lifetimes.slot(f"copy of {value.name}")
        self._use(source, time)
        self._use(target, time)
        self._allow(time, source, target)
        return Move(
            self._argument(source, value.type, f"copy{time}", "source"),
            self._target(target, value.type),
            value.type.bytes,
            value.name,
        )

    def _argument(self, view: ValueView, type_: TensorType, owner: str, role: str) -> Argument:
        if isinstance(view.place, str):
            return InBuffer(view.place, type_.dtype, constant=True, turns=view.turns)
        name = self._constants.add(owner, role, view.place.name, view.place.array)
        return InFlash(name, view.turns)

    def _target(self, view: ValueView, type_: TensorType) -> InBuffer:
        if not isinstance(view.place, str):
            raise TypeError(f"constant {view.place.name} cannot be written")
        return InBuffer(view.place, type_.dtype, constant=False, turns=view.turns)

    def _results(self, node: Node, scope: Scope) -> tuple[Argument, ...]:
        return tuple(
            self._argument(scope[value], value.type, "result", value.name) for value in node.outputs
        )


def _view(scope: Scope, value: Value) -> ValueView:
    return scope[value] if value.data is None else ValueView(value)


def _in_row(node: Node, scope: Scope, rows: Rows, counter: str) -> Scope:
    """Where the operands and results of a node are for the rows that `counter` has come to."""
    seen: Scope = {}
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.data is None:
            elements, view = rows.elements(value), scope[value]
            turns = () if elements is None else (Turn(counter, elements),)
            seen[value] = ValueView(view.place, (*view.turns, *turns))
    return seen


def _slice(
    view: ValueView, counter: str, turns: int | None, order: Order, elements: int
) -> ValueView:
    """The slice along axis 0 that belongs to a loop's turn."""
    last = (turns or 0) - 1 if order is Order.BACKWARD else None
    return ValueView(view.place, (*view.turns, Turn(counter, elements, last)))


def _views_in_turn(
    form: LoopForm, node: Node, scope: Scope, targets: Sequence[ValueView], counter: str
) -> tuple[list[ValueView], list[ValueView]]:
    """Where the body finds what it is passed, and where its results belong."""
    count = len(form.carried)
    carried = [
        _view(scope, value) if k in form.kept else targets[k]
        for k, value in enumerate(form.carried)
    ]
    slices = [
        _slice(_view(scope, value), counter, form.turns, order, entry.type.size)
        for value, order, entry in zip(
            form.scanned, form.scans, form.entries[count : count + len(form.scanned)], strict=True
        )
    ]
    stacked = [
        _slice(target, counter, form.turns, order, value.type.size)
        for target, order, value in zip(
            targets[count:], form.stacks, form.results[count:], strict=True
        )
    ]
    invariant = [_view(scope, value) for value in form.invariant]
    return [*carried, *slices, *invariant], [*carried, *stacked]


def _form(node: Node) -> LoopForm:
    if not isinstance(node.op, While | Loop):
        raise TypeError(f"{node.op.name} is no loop")
    return LoopForm.of(node, node.op)


def _counter(depth: int) -> str:
    return _COUNTERS[depth] if depth < len(_COUNTERS) else f"i{depth}"


_NUMBER = TensorType((), DType.INT64)

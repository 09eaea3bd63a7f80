"""Scheduled steps as C statements, with the addresses that the plan gives them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from smelt.codegen import arena
from smelt.codegen.dispatches import Program
from smelt.codegen.schedule import (
    ARENA,
    Argument,
    Block,
    Branch,
    InBuffer,
    InFlash,
    Move,
    Repeat,
    Step,
)
from smelt.codegen.steps import Turn
from smelt.ir import DType, Value
from smelt.ops.length import LengthOf


@dataclass(frozen=True)
class Tap:
    """One output of a step: a C expression and its size, which may be one too."""

    address: str
    bytes: int | str


@dataclass(frozen=True)
class StepView:
    """A step as the templates see it: a statement, or an `if` or a loop around other lines.

    `row_head` opens a loop over rows around the statement; `last` comes after the taps.
    """

    index: int
    comment: str
    taps: tuple[Tap, ...]
    statement: str = ""
    row_head: str = ""
    last: str = ""
    branch: BranchView | None = None
    loop: LoopView | None = None


@dataclass(frozen=True)
class MoveView:
    """A copy as the templates see it: a statement."""

    statement: str
    comment: str


BlockView = tuple[StepView | MoveView, ...]


@dataclass(frozen=True)
class BranchView:
    """An `if` as the templates see it; `condition` is a C expression."""

    condition: str
    then: BlockView
    otherwise: BlockView


@dataclass(frozen=True)
class LoopView:
    """A loop as the templates see it: lines of C, and the blocks between them.

    `head` stands before the loop and opens it, `test` and `stop` come first in every turn, `next`
    last.
    """

    before: BlockView
    head: tuple[str, ...]
    test: BlockView
    stop: str
    body: BlockView
    next: str


def block_view(block: Block, plan: arena.Plan, gpu: Program | None = None) -> BlockView:
    """Steps and copies in their order, without copies that the plan makes needless."""
    numbers = {} if gpu is None else {d.step: i for i, d in enumerate(gpu.dispatches)}
    ends = {} if gpu is None else {end - 1: i for i, (_, end) in enumerate(gpu.regions)}
    views: list[StepView | MoveView | None] = []
    for action in block:
        if isinstance(action, Move):
            views.append(_move(action, plan))
        elif action.index in numbers:
            views.append(_dispatched(action, plan, numbers[action.index], ends))
        else:
            views.append(_step(action, plan))
    return tuple(view for view in views if view is not None)


def _dispatched(step: Step, plan: arena.Plan, number: int, ends: Mapping[int, int]) -> StepView:
    """A step on the GPU: it runs by itself where steps are watched, else with its region."""
    last = f"GPU_REGION({ends[number]})" if number in ends else ""
    lines = [f"GPU_STEP({number})"]
    if step.spare is not None:
        arguments = [_argument(argument, plan) for argument in step.spare.arguments]
        call = _call(step.spare.function, arguments).replace("\n", "\n    ")
        lines += ["if (ctx->gpu == 0) {", f"    {call}", "}"]
    return StepView(step.index, comment_of(step), _taps(step, plan), "\n".join(lines), last=last)


def _taps(step: Step, plan: arena.Plan) -> tuple[Tap, ...]:
    types = (value.type for value in step.node.outputs)
    return tuple(
        Tap(_pointer(result, plan), type_.bytes)
        for result, type_ in zip(step.results, types, strict=True)
    )


def _step(step: Step, plan: arena.Plan) -> StepView:
    taps = _taps(step, plan)
    match step.control:
        case None if isinstance(step.node.op, LengthOf):
            (target,) = step.arguments
            pointer, name = _pointer(target, plan), f"length_{c_word(step.node.op.length)}"
            lines = (f"((int32_t *)({pointer}))[{i}] = {name};" for i in range(step.node.op.count))
            return StepView(step.index, comment_of(step), taps, "\n".join(lines))
        case None if step.rows is not None:
            statement = _call(step.function, [_argument(a, plan) for a in step.arguments])
            row, limit = step.rows, f"length_{c_word(step.rows.length)}"
            advance = f"++{row.counter}" if row.block == 1 else f"{row.counter} += {row.block}"
            head = f"for (int32_t {row.counter} = 0; {row.counter} < {limit}; {advance}) {{"
            taps = tuple(
                Tap(t.address, f"(uint32_t){limit} * {int(t.bytes) // row.most}u") for t in taps
            )
            return StepView(step.index, comment_of(step), taps, statement, head)
        case None:
            statement = _call(step.function, [_argument(a, plan) for a in step.arguments])
            return StepView(step.index, comment_of(step), taps, statement)
        case Branch(condition, then, otherwise):
            branch = BranchView(
                _element(condition, DType.BOOL, plan),
                block_view(then, plan),
                block_view(otherwise, plan),
            )
            return StepView(step.index, comment_of(step), taps, branch=branch)
        case Repeat():
            return StepView(
                step.index, comment_of(step), taps, loop=_loop(step.index, step.control, plan)
            )


def _move(move: Move, plan: arena.Plan) -> MoveView | None:
    """The copy, if there is anything to copy: not where the plan gives both the same place."""
    target, source = _pointer(move.target, plan), _pointer(move.source, plan)
    if target == source or move.bytes == 0:
        return None
    return MoveView(_call("memcpy", [target, source, str(move.bytes)]), f"'{move.comment}'")


def _loop(index: int, repeat: Repeat, plan: arena.Plan) -> LoopView:
    counter, lines = repeat.counter, list[str]()
    conditions: list[str] = []
    kind = "int64_t"
    if repeat.turns is not None:
        kind = "int32_t" if repeat.turns < 2**31 else "int64_t"
        conditions.append(f"{counter} < {repeat.turns}{'' if kind == 'int32_t' else 'LL'}")
    if repeat.limit is not None:
        lines.append(f"const int64_t turns_{index} = {_element(repeat.limit, DType.INT64, plan)};")
        conditions.append(f"{counter} < turns_{index}")
    again = None if repeat.again is None else _element(repeat.again, DType.BOOL, plan)
    stop = following = ""
    if repeat.start is not None or (again is not None and repeat.test is None):
        start = "1" if repeat.start is None else _element(repeat.start, DType.BOOL, plan)
        lines.append(f"{'const ' if again is None else ''}uint8_t again_{index} = {start};")
        conditions.insert(0, f"again_{index}")
        following = "" if again is None else f"again_{index} = {again};"
    else:
        stop = "" if again is None else f"if (!{again}) {{"
    if conditions in ([], [f"again_{index}"]) and repeat.number is None:
        lines.append(f"while ({conditions[0]}) {{" if conditions else "for (;;) {")
    else:
        text = " && ".join(conditions)
        lines.append(f"for ({kind} {counter} = 0; {text}; ++{counter}) {{")
    if repeat.number is not None:
        lines.append(f"    *{_argument(repeat.number, plan)} = {counter};")
    before, test, body = (
        block_view(block, plan) for block in (repeat.before, repeat.test or (), repeat.body)
    )
    return LoopView(before, tuple(lines), test, stop, body, following)


def lines_of(block: BlockView) -> Iterator[str]:
    """Every piece of C in a block."""
    for view in block:
        if isinstance(view, MoveView):
            yield view.statement
            continue
        yield view.statement
        if view.branch is not None:
            yield view.branch.condition
            yield from lines_of(view.branch.then)
            yield from lines_of(view.branch.otherwise)
        if view.loop is not None:
            yield from (*view.loop.head, view.loop.stop, view.loop.next)
            for inner in (view.loop.before, view.loop.test, view.loop.body):
                yield from lines_of(inner)


def comment_of(step: Step) -> str:
    """What a step computes: origin, operator, types and quantization."""
    types = " x ".join(_quantized(v) for v in step.node.inputs if v and not v.is_constant)
    results = ", ".join(map(_quantized, step.node.outputs))
    return f"{step.node.origin}: {step.node.op.name} {types} -> {results}"


def _quantized(value: Value) -> str:
    """Type and, where there is one, scale and zero point."""
    quant = value.type.quant
    if quant is None or not quant.is_per_tensor:
        return str(value.type)
    scale, zero_point = quant.scalar
    return f"{value.type} ({scale:.6g}, zero point {zero_point})"


def _call(function: str, arguments: list[str]) -> str:
    lines = [f"{function}("]
    for i, argument in enumerate(arguments):
        text = argument + ("," if i + 1 < len(arguments) else ");")
        if len(lines[-1]) + len(text) + 5 > 100:
            lines.append("        " + text)
        else:
            lines[-1] += ("" if lines[-1].endswith("(") else " ") + text
    return "\n".join(lines)


def _argument(argument: Argument, plan: arena.Plan) -> str:
    pointer = _pointer(argument, plan)
    if isinstance(argument, InFlash) or argument.dtype.c_name == "uint8_t":
        return pointer
    return f"({'const ' if argument.constant else ''}{argument.dtype.c_name} *)({pointer})"


def _element(argument: Argument, dtype: DType, plan: arena.Plan) -> str:
    """The C expression of the one element that an argument points to."""
    text = _argument(argument, plan)
    cast = isinstance(argument, InBuffer) and dtype is not DType.BOOL
    return f"*{text}" if cast or " " not in text else f"*({text})"


def base_of(plan: arena.Plan, buffer: str) -> str:
    """The C expression of the memory that a buffer lies in."""
    return "arena" if plan[buffer].memory == ARENA else f"ctx->{plan[buffer].memory}"


def _pointer(argument: Argument, plan: arena.Plan) -> str:
    """The address without a cast."""
    match argument:
        case InFlash(constant, turns):
            return constant + _offsets(turns, 1)
        case InBuffer(buffer, dtype, turns=turns):
            return f"{base_of(plan, buffer)} + {plan[buffer].offset}{_offsets(turns, dtype.size)}"


def _offsets(turns: Sequence[Turn], size: int) -> str:
    """What loops add to an address whose elements have `size` times its unit."""
    indices = (t.counter if t.last is None else f"({t.last} - {t.counter})" for t in turns)
    return "".join(f" + {i} * {t.elements * size}" for i, t in zip(indices, turns, strict=True))


def c_word(name: str) -> str:
    """A length's name as part of a C identifier."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)

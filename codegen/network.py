"""Renders a scheduled, planned network into its C files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from smelt.codegen import arena
from smelt.codegen.helpers import required_headers, required_helpers
from smelt.codegen.render import c_comment, c_float, render
from smelt.codegen.schedule import (
    ARENA,
    STATE,
    Argument,
    Block,
    Branch,
    Function,
    InBuffer,
    InFlash,
    Move,
    Repeat,
    Schedule,
    Step,
)
from smelt.codegen.steps import Turn
from smelt.codegen.weights import declared, is_binary, render_assembler, render_text
from smelt.errors import UnsupportedError
from smelt.ir import DType, Graph, Length, Value
from smelt.ops.length import LengthOf

API_VERSION = 1


@dataclass(frozen=True)
class Tensor:
    """An input or output as the C API shows it; `address` is a C expression."""

    name: str
    dtype: str
    c_type: str
    shape: tuple[int, ...]
    count: int
    bytes: int
    scale: float | None
    zero_point: int | None
    address: str

    @property
    def scale_text(self) -> str:
        """The scale as a float literal that reads back exactly; empty if not quantized."""
        return "" if self.scale is None else c_float(self.scale)


@dataclass(frozen=True)
class Tap:
    """One output of a step: a C expression and its size, which may be one too."""

    address: str
    bytes: int | str


@dataclass(frozen=True)
class StepView:
    """A step as the templates see it: a statement, or an `if` or a loop around other lines.

    `row_head` opens a loop over rows around the statement.
    """

    index: int
    comment: str
    taps: tuple[Tap, ...]
    statement: str = ""
    row_head: str = ""
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


@dataclass(frozen=True)
class StateView:
    """A state tensor as the templates see it."""

    name: str
    offset: int
    bytes: int
    initial: str
    after: str


@dataclass(frozen=True)
class LengthView:
    """A size known at run time as the templates see it; `word` is a C identifier."""

    name: str
    word: str
    minimum: int
    maximum: int


@dataclass(frozen=True)
class Network:
    """Everything that the templates of the network and of the project ask about it.

    `weights_binary` is the file of the weights where they are not C text, empty where they are.
    """

    name: str
    summary: str
    hash: str
    alignment: int
    arena_bytes: int
    state_bytes: int
    keep_inputs: bool
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    states: tuple[StateView, ...]
    block: BlockView
    step_count: int
    lengths: tuple[LengthView, ...] = ()
    weights_binary: str = ""
    api_version: int = API_VERSION

    @property
    def macro(self) -> str:
        """Prefix of the network's macros."""
        return self.name.upper()

    @property
    def has_state(self) -> bool:
        """Whether the caller must provide state memory."""
        return self.state_bytes > 0

    @property
    def uses_arena(self) -> bool:
        """Whether `invoke` refers to the arena at all."""
        return any(re.search(r"\barena\b", line) for line in _lines(self.block))

    @property
    def copies(self) -> bool:
        """Whether `memcpy` or `memmove` is called."""
        return bool(self.states) or any("memcpy" in line for line in _lines(self.block))

    @property
    def sources(self) -> tuple[str, ...]:
        """The network's C files; the last is an assembler file where the weights are binary."""
        weights = f"{self.name}_weights.{'S' if self.weights_binary else 'c'}"
        return (f"{self.name}.c", f"{self.name}_kernels.c", weights)


def describe(
    schedule: Schedule, plan: arena.Plan, name: str, hash_: str, *, keep_inputs: bool
) -> Network:
    """The network as the templates see it."""
    graph = schedule.graph

    def address(value: Value, base: str) -> str:
        if value.data is not None:
            raise ValueError(f"{value.name} is constant and has no address")
        return f"{base} + {plan[schedule.storage[value]].offset}"

    def tensor(value: Value) -> Tensor:
        quant = value.type.quant
        memory = plan[schedule.storage[value]].memory
        return Tensor(
            value.name,
            value.type.dtype.numpy.name,
            value.type.dtype.c_name,
            value.type.shape,
            value.type.size,
            value.type.bytes,
            None if quant is None else quant.scalar[0],
            None if quant is None else quant.scalar[1],
            address(value, f"ctx->{memory}"),
        )

    states = tuple(
        StateView(
            s.before.name,
            plan[schedule.storage[s.before]].offset,
            s.before.type.bytes,
            schedule.initial_states[s.before],
            f"{_base(plan, schedule.storage[s.after])} + {plan[schedule.storage[s.after]].offset}",
        )
        for s in graph.states
    )
    memories = {use.name: use.bytes for use in plan.memories}
    return Network(
        name,
        f"{len(schedule.steps)} steps, {graph.macs:,} multiply-accumulates",
        hash_,
        schedule.alignment,
        max(memories[ARENA], schedule.alignment),
        memories.get(STATE, 0),
        keep_inputs,
        tuple(tensor(v) for v in graph.inputs),
        tuple(tensor(v) for v in graph.outputs),
        states,
        _block(schedule.block, plan),
        len(schedule.steps),
        _lengths(graph),
        f"{name}_weights.bin" if is_binary(schedule) else "",
    )


def render_network(network: Network, schedule: Schedule) -> dict[str, str]:
    """The network's text files: name to contents."""
    functions = [
        {
            "name": f.name,
            "signature": f.signature,
            "definition": _documented(f),
        }
        for f in schedule.functions
    ]
    helpers = frozenset[str]().union(*(f.helpers for f in schedule.functions))
    bodies = required_helpers(helpers)
    text = "".join([*bodies, *(f.definition for f in schedule.functions)])
    common: Mapping[str, object] = {
        "net": network,
        "functions": functions,
        "constants": declared(schedule),
        "helpers": bodies,
        "headers": required_headers(text),
    }
    *_, weights = network.sources
    render_weights = render_assembler if network.weights_binary else render_text
    return {
        f"{network.name}.h": render("network/header.h.j2", common),
        f"{network.name}.c": render("network/network.c.j2", common),
        f"{network.name}_kernels.h": render("network/kernels.h.j2", common),
        f"{network.name}_kernels.c": render("network/kernels.c.j2", common),
        weights: render_weights(schedule, common),
    }


def _documented(function: Function) -> str:
    """The function's C text, with the layers it computes at the head of its own comment.

    Functions that only serve it come before it in the text, with comments of theirs.
    """
    users = c_comment("Computes " + ", ".join(function.users))
    lines = "".join(f" * {line}\n" for line in wrap(users, 96))
    start = function.definition.index(f"void {function.name}(")
    opening = function.definition.rfind("/*\n", 0, start)
    closing = function.definition.find("*/\n", opening)
    if opening >= 0 and closing + len("*/\n") == start:
        split = opening + len("/*\n")
        return function.definition[:split] + lines + function.definition[split:]
    return f"{function.definition[:start]}/*\n{lines} */\n{function.definition[start:]}"


def network_hash(*parts: str | bytes) -> str:
    """16 hexadecimal digits over everything that the code depends on."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:16]


def _block(block: Block, plan: arena.Plan) -> BlockView:
    views = (
        _move(action, plan) if isinstance(action, Move) else _step(action, plan) for action in block
    )
    return tuple(view for view in views if view is not None)


def _step(step: Step, plan: arena.Plan) -> StepView:
    types = (value.type for value in step.node.outputs)
    taps = tuple(
        Tap(_pointer(result, plan), type_.bytes)
        for result, type_ in zip(step.results, types, strict=True)
    )
    match step.control:
        case None if isinstance(step.node.op, LengthOf):
            (target,) = step.arguments
            pointer, name = _pointer(target, plan), f"length_{_word(step.node.op.length)}"
            lines = (f"((int32_t *)({pointer}))[{i}] = {name};" for i in range(step.node.op.count))
            return StepView(step.index, _comment(step), taps, "\n".join(lines))
        case None if step.rows is not None:
            statement = _call(step.function, [_argument(a, plan) for a in step.arguments])
            row, limit = step.rows, f"length_{_word(step.rows.length)}"
            advance = f"++{row.counter}" if row.block == 1 else f"{row.counter} += {row.block}"
            head = f"for (int32_t {row.counter} = 0; {row.counter} < {limit}; {advance}) {{"
            taps = tuple(
                Tap(t.address, f"(uint32_t){limit} * {int(t.bytes) // row.most}u") for t in taps
            )
            return StepView(step.index, _comment(step), taps, statement, head)
        case None:
            statement = _call(step.function, [_argument(a, plan) for a in step.arguments])
            return StepView(step.index, _comment(step), taps, statement)
        case Branch(condition, then, otherwise):
            branch = BranchView(
                _element(condition, DType.BOOL, plan), _block(then, plan), _block(otherwise, plan)
            )
            return StepView(step.index, _comment(step), taps, branch=branch)
        case Repeat():
            return StepView(
                step.index, _comment(step), taps, loop=_loop(step.index, step.control, plan)
            )


def _lengths(graph: Graph) -> tuple[LengthView, ...]:
    """Views of the graph's lengths, whose words must differ."""
    named: dict[str, Length] = {}
    for length in graph.lengths:
        other = named.setdefault(_word(length.name), length)
        if other is not length:
            raise UnsupportedError(
                f"dimensions '{other.name}' and '{length.name}' would have one name in C: fix one "
                f"with --dim {length.name}={length.maximum}"
            )
    return tuple(LengthView(x.name, word, x.minimum, x.maximum) for word, x in named.items())


def _word(name: str) -> str:
    """A length's name as part of a C identifier."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


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
        _block(block, plan) for block in (repeat.before, repeat.test or (), repeat.body)
    )
    return LoopView(before, tuple(lines), test, stop, body, following)


def _lines(block: BlockView) -> Iterator[str]:
    """Every piece of C in a block."""
    for view in block:
        if isinstance(view, MoveView):
            yield view.statement
            continue
        yield view.statement
        if view.branch is not None:
            yield view.branch.condition
            yield from _lines(view.branch.then)
            yield from _lines(view.branch.otherwise)
        if view.loop is not None:
            yield from (*view.loop.head, view.loop.stop, view.loop.next)
            for inner in (view.loop.before, view.loop.test, view.loop.body):
                yield from _lines(inner)


def _comment(step: Step) -> str:
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


def _base(plan: arena.Plan, buffer: str) -> str:
    return "arena" if plan[buffer].memory == ARENA else f"ctx->{plan[buffer].memory}"


def _pointer(argument: Argument, plan: arena.Plan) -> str:
    """The address without a cast."""
    match argument:
        case InFlash(constant, turns):
            return constant + _offsets(turns, 1)
        case InBuffer(buffer, dtype, turns=turns):
            return f"{_base(plan, buffer)} + {plan[buffer].offset}{_offsets(turns, dtype.size)}"


def _offsets(turns: Sequence[Turn], size: int) -> str:
    """What loops add to an address whose elements have `size` times its unit."""
    indices = (t.counter if t.last is None else f"({t.last} - {t.counter})" for t in turns)
    return "".join(f" + {i} * {t.elements * size}" for i, t in zip(indices, turns, strict=True))

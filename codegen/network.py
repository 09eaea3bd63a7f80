"""Renders a scheduled, planned network into its C files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import wrap

from smelt.codegen import arena
from smelt.codegen.helpers import required_headers, required_helpers
from smelt.codegen.render import c_comment, c_elements, c_float, c_lines, render
from smelt.codegen.schedule import (
    ARENA,
    STATE,
    Argument,
    Function,
    InBuffer,
    InFlash,
    Schedule,
    Step,
)
from smelt.ir import DType, Value

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
    """One output of a step: a C expression and its size."""

    address: str
    bytes: int


@dataclass(frozen=True)
class StepView:
    """A step as the templates see it."""

    index: int
    comment: str
    statement: str
    taps: tuple[Tap, ...]


@dataclass(frozen=True)
class ConstantView:
    """A constant array as the templates see it; `lines` is its initializer."""

    name: str
    c_type: str
    count: int
    comment: str
    lines: list[str]


@dataclass(frozen=True)
class StateView:
    """A state tensor as the templates see it."""

    name: str
    offset: int
    bytes: int
    initial: str
    after: str


@dataclass(frozen=True)
class Network:
    """Everything that the templates of the network and of the project ask about it."""

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
    steps: tuple[StepView, ...]
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
        return any("arena" in step.statement for step in self.steps)

    @property
    def sources(self) -> tuple[str, ...]:
        """The network's C files."""
        return (f"{self.name}.c", f"{self.name}_kernels.c", f"{self.name}_weights.c")


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

    steps = tuple(_step(schedule, plan, index) for index in range(len(schedule.steps)))
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
        f"{len(steps)} steps, {graph.macs:,} multiply-accumulates",
        hash_,
        schedule.alignment,
        max(memories[ARENA], schedule.alignment),
        memories.get(STATE, 0),
        keep_inputs,
        tuple(tensor(v) for v in graph.inputs),
        tuple(tensor(v) for v in graph.outputs),
        states,
        steps,
    )


def render_network(network: Network, schedule: Schedule) -> dict[str, str]:
    """The network's files: name to contents."""
    functions = [
        {
            "name": f.name,
            "signature": f.signature,
            "definition": _documented(f),
        }
        for f in schedule.functions
    ]
    helpers = frozenset[str]().union(*(f.helpers for f in schedule.functions))
    constants = [
        ConstantView(
            name,
            DType.of(array).c_name,
            array.size,
            schedule.constant_comments[name],
            c_lines(c_elements(array)),
        )
        for name, array in schedule.constants.items()
    ]
    bodies = required_helpers(helpers)
    text = "".join([*bodies, *(f.definition for f in schedule.functions)])
    common: Mapping[str, object] = {
        "net": network,
        "functions": functions,
        "constants": constants,
        "helpers": bodies,
        "headers": required_headers(text),
        "infinite": any("INFINITY" in line for c in constants for line in c.lines),
    }
    return {
        f"{network.name}.h": render("network/header.h.j2", common),
        f"{network.name}.c": render("network/network.c.j2", common),
        f"{network.name}_kernels.h": render("network/kernels.h.j2", common),
        f"{network.name}_kernels.c": render("network/kernels.c.j2", common),
        f"{network.name}_weights.c": render("network/weights.c.j2", common),
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


def _step(schedule: Schedule, plan: arena.Plan, index: int) -> StepView:
    step = schedule.steps[index]
    arguments = [_argument(argument, plan) for argument in step.arguments]
    statement = _call(step.function, arguments)
    taps = tuple(Tap(_pointer(schedule.storage[v], plan), v.type.bytes) for v in step.node.outputs)
    return StepView(index, _comment(step), statement, taps)


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
    match argument:
        case InFlash(constant):
            return constant
        case InBuffer(buffer, dtype, constant):
            pointer = _pointer(buffer, plan)
            if dtype.c_name == "uint8_t":
                return pointer
            return f"({'const ' if constant else ''}{dtype.c_name} *)({pointer})"


def _base(plan: arena.Plan, buffer: str) -> str:
    return "arena" if plan[buffer].memory == ARENA else f"ctx->{plan[buffer].memory}"


def _pointer(buffer: str, plan: arena.Plan) -> str:
    return f"{_base(plan, buffer)} + {plan[buffer].offset}"

"""Scheduling: from a graph to ordered steps over buffers, and the memory planning problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from smelt.codegen import arena
from smelt.codegen.lower.device import DeviceFunctions
from smelt.codegen.partition.candidates import Choice
from smelt.codegen.partition.partitioner import Partitioner, nodes_inside
from smelt.codegen.partition.sharing import share
from smelt.codegen.passes.run_time_rows import Rows, rows_of
from smelt.codegen.schedule.lifetimes import Lifetimes
from smelt.codegen.schedule.linearize import Linearizer
from smelt.codegen.schedule.locations import ValueView, ValueViews
from smelt.codegen.schedule.shared_symbols import Constants, Functions
from smelt.codegen.schedule.steps import (
    Actions,
    Argument,
    BandCall,
    BandedSegment,
    Branch,
    Call,
    Function,
    InBuffer,
    InFlash,
    Move,
    Repeat,
    RowsMove,
    SetLength,
    Step,
    StreamedRows,
    StructType,
    flatten,
)
from smelt.codegen.segments.turns import Turns
from smelt.errors import DoesNotFit
from smelt.ir import Array, Graph, Node, Value
from smelt.ops.control.run_time_length import LengthOf
from smelt.targets import Platform

ARENA = "arena"
STATE = "state"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The steps of an inference in order, their code and constants, and the locations of values.

    Attributes:
        graph: The scheduled graph.
        actions: The steps and copies in order.
        collected: The C functions, which are not rendered yet.
        device: The code for an accelerator, if there is one.
        constants: The constant arrays by C name.
        constant_comments: A comment for each of them.
        structs: The types of the constants that are structs.
        initial_states: The constant with the initial value of each state.
        storage: The buffer of every non-constant value of the outermost graph. Values in one buffer
            are views of each other (reshape).
        problem: The memory planning problem.
    """

    graph: Graph
    actions: Actions
    collected: Functions
    device: DeviceFunctions[Any] | None
    constants: Mapping[str, Array]
    constant_comments: Mapping[str, str]
    structs: Mapping[str, StructType]
    initial_states: Mapping[Value, str]
    storage: Mapping[Value, str]
    problem: arena.Problem

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """The C functions."""
        return self.collected.all()

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All steps by `Step.index`, including those inside branches and loops."""
        return tuple(flatten(self.actions))

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The steps that call kernels."""
        return tuple(step for step in self.steps if isinstance(step, Call))

    @property
    def segments(self) -> tuple[BandedSegment, ...]:
        """The layers that are computed together, a few rows at a time."""
        return tuple(action for action in self.actions if isinstance(action, BandedSegment))

    @property
    def streamed(self) -> StreamedRows | None:
        """The input that the caller delivers a few rows at a time, if there is one."""
        return next((segment.streamed for segment in self.segments if segment.streamed), None)

    @property
    def alignment(self) -> int:
        """The largest alignment of all memories, in bytes."""
        return max(memory.alignment for memory in self.problem.memories)


def schedule(
    graph: Graph,
    platform: Platform,
    partitioner: Partitioner,
    *,
    prefix: str,
    keep_inputs: bool = False,
    max_ram: int | None = None,
    segments: Sequence[Turns] = (),
    fallback: Partitioner | None = None,
    device: DeviceFunctions[Any] | None = None,
) -> Schedule:
    """Create the steps, functions, constants and buffers of a graph.

    Args:
        graph: A legalized, verified graph.
        platform: The target and its memories.
        partitioner: Chooses a kernel for every node.
        prefix: The prefix of every C identifier.
        keep_inputs: Whether an inference must leave its inputs unchanged.
        max_ram: The bytes that arena and states may take together; None for all of the platform.
        segments: Nodes that are computed together, a few rows at a time.
        fallback: Chooses the fallback call for every node of an accelerator; None for no fallback.
        device: Collects the code for an accelerator.

    Raises:
        UnsupportedError: No backend serves a node; the message has each backend's reason.
        DoesNotFit: The states alone take more than `max_ram`.
    """
    functions, constants, lifetimes = Functions(prefix, device), Constants(prefix), Lifetimes()
    scope: ValueViews = {}
    streamed = {turns.segment.streamed for turns in segments}
    inputs = [value for value in graph.inputs if value not in streamed]
    for value in (*inputs, *(state.before for state in graph.states)):
        scope[value] = ValueView(lifetimes.buffer(value.name, value.type.bytes))
    for value in inputs:
        lifetimes.use(_buffer(scope, value), 0)
    rows = rows_of(graph)
    choices = _choices(graph, partitioner, rows, segments)
    linearizer = Linearizer(
        lambda node: choices.get(node) or partitioner.explained(node),
        functions=functions,
        constants=constants,
        lifetimes=lifetimes,
        rows=rows,
        segments=segments,
        fallback=None if fallback is None else fallback.choose,
    )
    actions = linearizer.actions(graph, scope)
    # Values that the caller reads afterwards stay live for one slot after the last step.
    for value in (*graph.results, *(graph.inputs if keep_inputs else ())):
        if value.data is None:
            lifetimes.use(_buffer(scope, value), len(lifetimes.slots))
    initial = {
        state.before: constants.add(f"state{i}", "initial", state.before.name, state.initial)
        for i, state in enumerate(graph.states)
    }
    persistent = frozenset(_buffer(scope, state.before) for state in graph.states)
    return Schedule(
        graph=graph,
        actions=actions,
        collected=functions,
        device=device,
        constants=constants.arrays,
        constant_comments=constants.comments,
        structs=constants.structs,
        initial_states=initial,
        storage={value: view.place for value, view in scope.items() if isinstance(view.place, str)},
        problem=_problem(lifetimes, persistent, platform, max_ram, device),
    )


def _choices(
    graph: Graph,
    partitioner: Partitioner,
    rows: Callable[[Node], Rows | None],
    segments: Sequence[Turns],
) -> dict[Node, Choice]:
    """Return the kernel choice of each layer, after layers with equal bodies are merged.

    For a layer of a segment, the result has the nodes that compute its rows instead. Layers that
    are computed row by row because of a run-time length are left out: they have their own bodies.
    """
    banded = {node: calls for turns in segments for node, calls in turns.band_nodes().items()}
    calls = {
        part: count
        for node in (*graph.nodes, *nodes_inside(graph))
        if not (node.op.is_view or node.op.subgraphs or isinstance(node.op, LengthOf))
        for part, count in banded.get(node, {node: 1}).items()
    }
    chosen = {node: partitioner.explained(node) for node in calls if rows(node) is None}
    request = partitioner.request
    return share(chosen, request.optimize, calls, little_ram=request.little_ram)


def _buffer(scope: ValueViews, value: Value) -> str:
    """Return the buffer of a value of the outermost graph."""
    return str(scope[value].place)


def _problem(
    lifetimes: Lifetimes,
    persistent: frozenset[str],
    platform: Platform,
    max_ram: int | None,
    device: DeviceFunctions[Any] | None,
) -> arena.Problem:
    alignment = platform.target.alignment
    end = len(lifetimes.slots) + 1
    # If the accelerator has only one memory, states are in the arena too, live all the time.
    kept = ARENA if device is not None and device.shares_arena else STATE
    buffers = [b for b in lifetimes.buffers(ARENA, alignment) if b.name not in persistent]
    buffers += [
        arena.Buffer(name, lifetimes.size(name), 0, end, kept, alignment)
        for name in sorted(persistent)
    ]
    size = _budget(platform)
    if max_ram is not None:
        states = sum(lifetimes.size(name) for name in persistent) if kept != ARENA else 0
        if states > max_ram:
            raise DoesNotFit(
                f"the states take {states:,} bytes, and --max-ram allows {max_ram:,}: use a larger "
                "--max-ram or a smaller network.",
                needed=states,
                available=max_ram,
            )
        left = max_ram - states
        size = left if size is None else min(size, left)
    memories = [arena.Memory(ARENA, size, alignment)]
    if persistent and kept != ARENA:
        memories.append(arena.Memory(STATE, None, alignment))
    in_place = lifetimes.in_place(persistent)
    return arena.Problem(tuple(memories), tuple(buffers), in_place, tuple(lifetimes.slots))


def _budget(platform: Platform) -> int | None:
    """Return the bytes that the board has for the arena; None for no limit."""
    memory = platform.memory_of("arena")
    if memory is None:
        return None
    return platform.room(memory)


__all__ = [
    "ARENA",
    "STATE",
    "Actions",
    "Argument",
    "BandCall",
    "BandedSegment",
    "Branch",
    "Call",
    "Function",
    "InBuffer",
    "InFlash",
    "Move",
    "Repeat",
    "RowsMove",
    "Schedule",
    "SetLength",
    "Step",
    "StreamedRows",
    "StructType",
    "schedule",
]

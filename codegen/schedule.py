"""From a graph to ordered steps over buffers, and the planning problem that they pose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.codegen import arena
from smelt.codegen.kernels.base import (
    Backend,
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Request,
    Scratch,
)
from smelt.codegen.render import render
from smelt.errors import DoesNotFit, UnsupportedError
from smelt.ir import Array, DType, Graph, Node, Value
from smelt.ops.reshape import Reshape
from smelt.targets import Platform

ARENA = "arena"
STATE = "state"
FUNCTION = "@FUNCTION@"
"""Stands for a function's name until equal functions have been found."""


@dataclass(frozen=True)
class InBuffer:
    """An argument that points into a planned buffer."""

    buffer: str
    dtype: DType
    constant: bool


@dataclass(frozen=True)
class InFlash:
    """An argument that points to a constant array."""

    constant: str


Argument = InBuffer | InFlash


@dataclass(frozen=True)
class Function:
    """One C function: a specialization of a kernel, shared by every step that needs it."""

    name: str
    definition: str
    signature: str
    helpers: frozenset[str]
    users: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One call of one C function, computing one node."""

    node: Node
    backend: str
    call: KernelCall
    function: str
    arguments: tuple[Argument, ...]
    reason: str


@dataclass(frozen=True)
class Schedule:
    """Ordered steps, the functions and constants they use, and where values live.

    `storage` gives the buffer of every value that is not constant; values of one buffer are
    views of each other (reshape).
    """

    graph: Graph
    steps: tuple[Step, ...]
    functions: tuple[Function, ...]
    constants: Mapping[str, Array]
    constant_comments: Mapping[str, str]
    initial_states: Mapping[Value, str]
    storage: Mapping[Value, str]
    problem: arena.Problem

    @property
    def alignment(self) -> int:
        """Alignment of every memory, in bytes."""
        return max(memory.alignment for memory in self.problem.memories)


def schedule(
    graph: Graph,
    platform: Platform,
    backends: Sequence[Backend],
    request: Request,
    *,
    prefix: str,
    keep_inputs: bool = False,
) -> Schedule:
    """Choose a kernel for every node and lay out steps, functions, constants and buffers.

    Args:
        graph: a legalized, verified graph.
        platform: target and memories.
        backends: in order of preference; the last one is the fallback.
        request: what is asked of every kernel.
        prefix: the network's name, in front of every C identifier.
        keep_inputs: whether an inference must leave the inputs as they were.

    Raises:
        UnsupportedError: no backend serves a node; names the node and each backend's reason.
    """
    storage = _storage(graph)
    functions = _Functions(prefix)
    constants = _Constants(prefix)
    steps: list[Step] = []
    for node in graph.nodes:
        if isinstance(node.op, Reshape):
            continue
        backend, kernel, reason = _choose(node, backends, request)
        call = kernel.lower(node, request)
        function = functions.add(node, call)
        arguments = tuple(
            _argument(operand, node, len(steps), storage, constants) for operand in call.operands
        )
        steps.append(Step(node, backend, call, function, arguments, reason))
    initial = {
        state.before: constants.add(f"state{i}", "initial", state.before.name, state.initial)
        for i, state in enumerate(graph.states)
    }
    problem = _problem(graph, steps, storage, platform, keep_inputs=keep_inputs)
    return Schedule(
        graph,
        tuple(steps),
        functions.all(),
        constants.arrays,
        constants.comments,
        initial,
        storage,
        problem,
    )


def _choose(node: Node, backends: Sequence[Backend], request: Request) -> tuple[str, Kernel, str]:
    reasons: list[str] = []
    for backend in backends:
        found = backend.find(node, request.target)
        if isinstance(found, Kernel):
            return backend.name, found, " ".join(reasons)
        reasons.append(found)
    raise UnsupportedError(
        f"{node.op.name} of {node.origin} cannot run on target '{request.target.name}': "
        f"{' '.join(reasons)} See `smelt ops` for what each backend serves."
    )


def _storage(graph: Graph) -> dict[Value, str]:
    """One buffer a value; a reshaped value lives in the buffer of what it is made of."""
    storage = {v: v.name for v in (*graph.inputs, *(state.before for state in graph.states))}
    for node in graph.nodes:
        if isinstance(node.op, Reshape):
            storage[node.output] = storage[node.input(0)]
        else:
            storage |= {value: value.name for value in node.outputs}
    return storage


def _argument(
    operand: Operand,
    node: Node,
    step: int,
    storage: Mapping[Value, str],
    constants: _Constants,
) -> Argument:
    match operand:
        case Input(index):
            value = node.input(index)
            if value.data is not None:
                return InFlash(constants.add(f"step{step}", operand.name, value.name, value.data))
            return InBuffer(storage[value], value.type.dtype, constant=True)
        case Output(index):
            value = node.outputs[index]
            return InBuffer(storage[value], value.type.dtype, constant=False)
        case Packed(name, array):
            return InFlash(constants.add(f"step{step}", name, str(node.origin), array))
        case Scratch(name, dtype):
            return InBuffer(_scratch_name(step, name), dtype, constant=False)


def _scratch_name(step: int, name: str) -> str:
    return f"step {step} {name}"


def _problem(
    graph: Graph,
    steps: Sequence[Step],
    storage: Mapping[Value, str],
    platform: Platform,
    *,
    keep_inputs: bool,
) -> arena.Problem:
    # What the caller reads afterwards lives one step longer than the last one that may destroy it.
    end = len(steps) + 1
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    size: dict[str, int] = {}
    for value, buffer in storage.items():
        size[buffer] = max(size.get(buffer, 0), value.type.bytes)
    for value in graph.inputs:
        first[storage[value]] = 0
        last[storage[value]] = end if keep_inputs else 1
    for index, step in enumerate(steps):
        for value in (*step.node.inputs, *step.node.outputs):
            if value is not None and value in storage:
                first.setdefault(storage[value], index)
                last[storage[value]] = max(last.get(storage[value], 0), index + 1)
    for value in graph.results:
        if value in storage:
            last[storage[value]] = end
    persistent = {storage[state.before] for state in graph.states}
    alignment = platform.target.alignment
    buffers = [
        arena.Buffer(name, size[name], first[name], last[name], (ARENA,), alignment)
        for name in first
        if name not in persistent
    ]
    buffers += [
        arena.Buffer(name, size[name], 0, end, (STATE,), alignment) for name in sorted(persistent)
    ]
    for index, step in enumerate(steps):
        for operand in step.call.operands:
            if isinstance(operand, Scratch) and operand.count:
                name = _scratch_name(index, operand.name)
                bytes_ = operand.count * operand.dtype.size
                buffers.append(arena.Buffer(name, bytes_, index, index + 1, (ARENA,), alignment))
    memories = [arena.Memory(ARENA, _budget(platform), alignment)]
    if persistent:
        memories.append(arena.Memory(STATE, None, alignment))
    return arena.Problem(
        tuple(memories),
        tuple(buffers),
        _overlaps(steps, storage, last, persistent),
        tuple(str(step.node.origin) for step in steps),
    )


def _budget(platform: Platform) -> int | None:
    """Bytes that the board leaves for the arena; None where nothing limits it."""
    memory = platform.memory_of("arena")
    if memory is None:
        return None
    return memory.size - (platform.stack_bytes if memory == platform.memory_of("stack") else 0)


def _overlaps(
    steps: Sequence[Step], storage: Mapping[Value, str], last: Mapping[str, int], fixed: set[str]
) -> tuple[arena.Overlap, ...]:
    """Where a kernel may write its output over an input that is read for the last time."""
    overlaps: dict[tuple[str, str], arena.Overlap] = {}
    for index, step in enumerate(steps):
        for output, operand in step.call.in_place:
            source = step.node.inputs[operand]
            if source is None or source not in storage:
                continue
            pair = storage[source], storage[step.node.outputs[output]]
            if last[pair[0]] == index + 1 and not fixed & set(pair) and pair[0] != pair[1]:
                overlaps[pair] = arena.Overlap(*pair, deltas=(0,))
    return tuple(overlaps.values())


def require_weights_fit(scheduled: Schedule, platform: Platform) -> None:
    """Raise DoesNotFit if the constants alone are larger than the memory they go to."""
    memory = platform.memory_of("weights")
    sizes = sorted(((a.nbytes, name) for name, a in scheduled.constants.items()), reverse=True)
    needed = sum(size for size, _ in sizes)
    if memory is None or needed <= memory.size:
        return
    largest = tuple((name, size) for size, name in sizes[:5])
    raise DoesNotFit(
        f"memory '{memory.name}' of {platform.name} has {memory.size:,} bytes, the weights need "
        f"{needed:,}; the largest are "
        f"{', '.join(f'{name} {size:,}' for name, size in largest)} bytes. Use a board with more "
        "memory or a smaller network.",
        needed=needed,
        available=memory.size,
        largest=largest,
    )


class _Functions:
    """Collects rendered functions; equal ones become one."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: dict[str, str] = {}
        self._taken: dict[str, int] = {}
        self._users: dict[str, list[str]] = {}
        self._calls: dict[str, tuple[KernelCall, str]] = {}

    def add(self, node: Node, call: KernelCall) -> str:
        """The name of the C function for a call."""
        signature = _signature(node, call)
        variables = {"function": FUNCTION, "signature": signature, **call.parameters}
        text = render(call.template, variables)
        name = self._names.get(text)
        if name is None:
            count = self._taken[call.stem] = self._taken.get(call.stem, 0) + 1
            name = f"{self._prefix}_{call.stem}" + (f"_{count}" if count > 1 else "")
            self._names[text] = name
            self._calls[name] = call, signature
        users = self._users.setdefault(name, [])
        if str(node.origin) not in users:
            users.append(str(node.origin))
        return name

    def all(self) -> tuple[Function, ...]:
        """The distinct functions in order of first use."""
        return tuple(
            Function(
                name,
                text.replace(FUNCTION, name),
                self._calls[name][1],
                self._calls[name][0].helpers,
                tuple(self._users[name]),
            )
            for text, name in self._names.items()
        )


def _signature(node: Node, call: KernelCall) -> str:
    parameters = [_parameter(operand, node) for operand in call.operands]
    if call.parameters.get("rectangle"):
        parameters += [f"int32_t {axis}_{end}" for axis in "yx" for end in ("begin", "end")]
    line = ", ".join(parameters) or "void"
    if len(line) <= _SIGNATURE_WIDTH:
        return line
    return "\n" + ",\n".join(f"    {parameter}" for parameter in parameters)


_SIGNATURE_WIDTH = 70
"""Columns of a parameter list that may stand on the line of the function's name."""


def _parameter(operand: Operand, node: Node) -> str:
    match operand:
        case Input(index, name):
            return f"const {node.input(index).type.dtype.c_name} *{name}"
        case Output(index, name):
            return f"{node.outputs[index].type.dtype.c_name} *{name}"
        case Packed(name, array):
            return f"const {DType.of(array).c_name} *{name}"
        case Scratch(name, dtype):
            return f"{dtype.c_name} *{name}"


class _Constants:
    """Collects constant arrays; arrays of equal type and contents are stored once."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: dict[tuple[str, bytes], str] = {}
        self.arrays: dict[str, Array] = {}
        self.comments: dict[str, str] = {}

    def add(self, owner: str, role: str, origin: str, array: Array) -> str:
        """The C name of the array that holds these constants."""
        array = np.ascontiguousarray(array)
        key = array.dtype.str, array.tobytes()
        if key not in self._names:
            name = f"{self._prefix}_{owner}_{role}"
            self._names[key] = name
            self.arrays[name] = array
            self.comments[name] = f"{role} of {origin}"
        return self._names[key]

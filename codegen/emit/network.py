"""The network's C files, rendered from its schedule and memory plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from smelt.codegen.accelerator import DeviceProgram, NetworkNames
from smelt.codegen.emit.addresses import Addresses, BufferOffset
from smelt.codegen.emit.names import c_name
from smelt.codegen.emit.statements import Statements, c_word, comment_of, statements_of
from smelt.codegen.emit.weights import (
    ConstantArray,
    binary,
    constants_of,
    has_infinite_weights,
    is_binary,
    stored,
)
from smelt.codegen.lower.backend import backend
from smelt.codegen.schedule.memories import Distribution
from smelt.codegen.schedule.schedule import ARENA, STATE, Schedule
from smelt.codegen.schedule.steps import Function, StructType
from smelt.codegen.text.helpers import Preamble, preamble
from smelt.codegen.text.literals import c_float
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render_c
from smelt.errors import UnsupportedError
from smelt.ir import Array, Graph, Length, Value
from smelt.targets import ExternalLibrary, Target

API_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An input or output, as the C API shows it.

    Attributes:
        name: The name in the model.
        dtype: numpy's name of the element type.
        c_type: The C name of the element type.
        shape: The shape, with run-time lengths at their maxima.
        count: The number of elements.
        bytes: The size in bytes.
        scale: The scale of a quantized tensor.
        zero_point: The zero point of a quantized tensor.
        address: The C expression of its address, where only `ctx` is known.
    """

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
        """The scale as an exact float literal; empty if the tensor is not quantized."""
        return "" if self.scale is None else c_float(self.scale)


@dataclass(frozen=True)
class StateView:
    """A state tensor, as the templates print it.

    Attributes:
        name: The name in the model.
        offset: The macro of its offset in the memory of states.
        bytes: The size in bytes.
        initial: The name of the constant with its initial contents.
        after: The C expression of the address of the value after an inference.
        after_in_arena: Whether that value is in the arena.
    """

    name: str
    offset: str
    bytes: int
    initial: str
    after: str
    after_in_arena: bool


@dataclass(frozen=True)
class ExtraArena:
    """An arena beside the main one, for another memory of the board.

    Attributes:
        name: The name of the C variables that point to it.
        memory: The memory of the board.
        bytes: The size.
        certificate: How the size compares with its lower bound, in words.
    """

    name: str
    memory: str
    bytes: int
    certificate: str

    @property
    def macro(self) -> str:
        """The end of the macro of its size, after the network's prefix."""
        return f"{self.name.upper()}_BYTES"


@dataclass(frozen=True)
class LengthView:
    """A run-time length, as the templates print it.

    Attributes:
        name: The name of the dimension.
        word: The name as a part of C identifiers.
        minimum: The smallest size.
        maximum: The largest size.
    """

    name: str
    word: str
    minimum: int
    maximum: int


@dataclass(frozen=True)
class StreamedInput:
    """The input whose rows the caller delivers, as the templates print it.

    Attributes:
        rows: The rows of the input.
        row_count: The elements of a row.
        row_bytes: The bytes of a row.
        turn_rows: The rows that the caller delivers for a turn; fewer for the last turn if the
            input has no more.
        turns: The turns that need rows of the input.
        next_row: The C expression of the row of the band that the caller writes next.
        address: The C expression of the band's address, where only `ctx` is known.
    """

    rows: int
    row_count: int
    row_bytes: int
    turn_rows: int
    turns: int
    next_row: str
    address: str


@dataclass(frozen=True, kw_only=True)
class EmittedNetwork:
    """A network, as the templates of its own files and of the project print it.

    Attributes:
        title: The name for people; `name` is derived from it.
        summary: The numbers of steps and multiply-accumulates, in words.
        hash: 16 hexadecimal digits of the SHA-256 hash of the network's own files, rendered with
            an empty hash. Empty until they are rendered.
        alignment: The alignment of arena and states, in bytes.
        arena_bytes: The size of the arena.
        arena_certificate: How the size of the arena compares with its lower bound, in words.
        extra_arenas: The arenas for other memories of the board.
        state_bytes: The size of the memory of states that the caller provides.
        state_home: The memory of the board for the states, if it is not that of the arena.
        weights_bytes: The size of all constants.
        keep_inputs: Whether an inference leaves the inputs unchanged.
        streamed: The first input, if the caller delivers its rows; None if inputs are in the arena.
        inputs: The inputs, in the model's order.
        outputs: The outputs, in the model's order.
        states: The states.
        statements: The body of `invoke`.
        comments: What each step computes.
        preamble: Headers and helpers that the functions of the layers need.
        functions: The functions of the layers.
        constants: Weights, biases and tables.
        offsets: The macros of the buffer offsets that the code uses.
        infinite_weights: Whether the C file of the constants uses `INFINITY` from math.h.
        structs: The struct types of constants.
        lengths: The run-time lengths.
        weights_binary: The name of the binary file of the constants; empty if they are C text.
        device: The accelerator's program; None if the CPU computes everything.
        libraries: The system libraries to link.
        external: The libraries that the user provides.
        cpu_fallback: Whether the CPU can compute the accelerator's steps.
        api_version: The version of the C API.
    """

    title: str
    summary: str
    alignment: int
    arena_bytes: int
    arena_certificate: str
    state_bytes: int
    weights_bytes: int
    keep_inputs: bool
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    states: tuple[StateView, ...]
    statements: Statements
    comments: tuple[str, ...]
    preamble: Preamble
    functions: tuple[Function, ...]
    constants: tuple[ConstantArray, ...]
    offsets: tuple[BufferOffset, ...] = ()
    infinite_weights: bool = False
    structs: tuple[StructType, ...] = ()
    lengths: tuple[LengthView, ...] = ()
    weights_binary: str = ""
    device: DeviceProgram | None = None
    libraries: tuple[str, ...] = ()
    external: tuple[ExternalLibrary, ...] = ()
    cpu_fallback: bool = False
    api_version: int = API_VERSION
    streamed: StreamedInput | None = None
    extra_arenas: tuple[ExtraArena, ...] = ()
    state_home: str = ""
    hash: str = ""

    @property
    def name(self) -> str:
        """Prefix of the network's files and C identifiers."""
        return c_name(self.title)

    @property
    def macro(self) -> str:
        """Prefix of the network's macros."""
        return self.name.upper()

    @property
    def step_count(self) -> int:
        """The number of steps of an inference."""
        return len(self.comments)

    @property
    def has_state(self) -> bool:
        """Whether the caller must provide state memory."""
        return self.state_bytes > 0

    @property
    def state_memory(self) -> str:
        """The name of the memory with the states."""
        return STATE if self.has_state else ARENA

    @property
    def arena_homes(self) -> tuple[str, ...]:
        """The memories of the board that store tensors or states, besides that of the arena."""
        homes = (*(extra.memory for extra in self.extra_arenas), self.state_home)
        return tuple(dict.fromkeys(home for home in homes if home))

    @property
    def weights_homes(self) -> tuple[str, ...]:
        """The memories of the board that store constants, besides the main one."""
        return tuple(dict.fromkeys(c.memory for c in self.constants if c.memory))

    @property
    def memories(self) -> str:
        """The C variables of all memory that the caller provides, as an initializer lists them."""
        extras = (extra.name for extra in self.extra_arenas)
        return ", ".join((ARENA, *extras, *((STATE,) if self.state_bytes else ())))

    @property
    def uses_arena(self) -> bool:
        """Whether `invoke` needs its variable `arena`."""
        return self.statements.uses_arena or any(state.after_in_arena for state in self.states)

    @property
    def copies(self) -> bool:
        """Whether `memcpy` or `memmove` is called."""
        return bool(self.states) or self.statements.copies or self.streamed is not None

    @property
    def device_headers(self) -> tuple[str, ...]:
        """The accelerator's headers, which the network's own header includes."""
        return () if self.device is None else self.device.headers(self.name)

    @property
    def headers(self) -> tuple[str, str]:
        """The network's public and internal headers, without an accelerator's."""
        return (f"{self.name}.h", f"{self.name}_kernels.h")

    @property
    def sources(self) -> tuple[str, ...]:
        """The network's C files; the last is an assembler file if the weights are binary."""
        weights = f"{self.name}_weights.{'S' if self.weights_binary else 'c'}"
        device = () if self.device is None else self.device.sources(self.name)
        return (f"{self.name}.c", f"{self.name}_kernels.c", *device, weights)


def describe(
    stored: Distribution,
    device: DeviceProgram | None,
    title: str,
    *,
    target: Target,
    keep_inputs: bool,
) -> EmittedNetwork:
    """Return the network as the templates print it."""
    schedule, plan, graph = stored.schedule, stored.plan, stored.schedule.graph
    memories = {use.name: use for use in plan.memories}
    main, weights = stored.main("arena"), stored.main("weights")
    addresses = Addresses(plan)
    inputs = tuple(_tensor(schedule, addresses, v) for v in graph.inputs)
    outputs = tuple(_tensor(schedule, addresses, v) for v in graph.outputs)
    states = _states(schedule, addresses)
    streamed = _streamed(schedule, addresses)
    success = f"{c_name(title).upper()}_OK"
    statements = statements_of(schedule.actions, addresses, device, success)
    return EmittedNetwork(
        title=title,
        summary=f"{len(schedule.steps)} steps, {graph.macs:,} multiply-accumulates",
        alignment=schedule.alignment,
        arena_bytes=max(memories[ARENA].bytes, schedule.alignment),
        arena_certificate=memories[ARENA].certificate,
        state_bytes=memories[STATE].bytes if STATE in memories else 0,
        weights_bytes=sum(array.nbytes for array in schedule.constants.values()),
        keep_inputs=keep_inputs,
        streamed=streamed,
        inputs=inputs,
        outputs=outputs,
        states=states,
        statements=statements,
        offsets=addresses.offsets,
        comments=tuple(map(comment_of, schedule.steps)),
        preamble=preamble(*(function.uses for function in schedule.functions)),
        functions=schedule.functions,
        constants=constants_of(
            schedule, {name: home for name, home in stored.constants.items() if home != weights}
        ),
        structs=tuple(dict.fromkeys(schedule.structs.values())),
        infinite_weights=has_infinite_weights(schedule),
        lengths=_lengths(graph),
        weights_binary=f"{c_name(title)}_weights.bin" if is_binary(schedule) else "",
        device=device,
        libraries=()
        if device is None
        else tuple(library.name for library in target.host_libraries),
        external=_external(schedule),
        cpu_fallback=any(step.fallback is not None for step in schedule.calls),
        extra_arenas=tuple(
            ExtraArena(name, home, memories[name].bytes, memories[name].certificate)
            for name, home in stored.arenas.items()
            if name != ARENA
        ),
        state_home="" if stored.state in (None, main) else stored.state,
    )


def _tensor(schedule: Schedule, addresses: Addresses, value: Value) -> Tensor:
    """Return the view of an input or output.

    Raises:
        ValueError: The value is a constant, which has no address.
    """
    if value.data is not None:
        raise ValueError(f"{value.name} is constant and has no address")
    quant = value.type.quant
    return Tensor(
        name=value.name,
        dtype=value.type.dtype.numpy.name,
        c_type=value.type.dtype.c_name,
        shape=value.type.shape,
        count=value.type.size,
        bytes=value.type.bytes,
        scale=None if quant is None else quant.scalar[0],
        zero_point=None if quant is None else quant.scalar[1],
        address=addresses.outside(schedule.storage[value]),
    )


def _streamed(schedule: Schedule, addresses: Addresses) -> StreamedInput | None:
    """Return the input whose rows the caller delivers, if there is one."""
    rows = schedule.streamed
    if rows is None:
        return None
    kept = f"{rows.kept} + " if rows.kept else ""
    taken = "ctx->turn" if rows.rows == 1 else f"ctx->turn * {rows.rows}"
    return StreamedInput(
        rows=rows.height,
        row_count=rows.value.type.size // rows.height,
        row_bytes=rows.row_bytes,
        turn_rows=rows.rows,
        turns=-(-rows.height // rows.rows),
        next_row=f"({kept}ctx->rows - {taken})",
        address=addresses.outside(rows.buffer),
    )


def _states(schedule: Schedule, addresses: Addresses) -> tuple[StateView, ...]:
    """Return views of the states, which are kept from one inference to the next."""
    return tuple(
        StateView(
            s.before.name,
            addresses.offset(schedule.storage[s.before]),
            s.before.type.bytes,
            schedule.initial_states[s.before],
            addresses.of_buffer(schedule.storage[s.after]),
            addresses.in_arena(schedule.storage[s.after]),
        )
        for s in schedule.graph.states
    )


def _external(schedule: Schedule) -> tuple[ExternalLibrary, ...]:
    """Return the libraries that the user must provide for the backends that compute layers."""
    names = sorted({step.backend for step in schedule.calls})
    found = (backend(name).library for name in names)
    return tuple(library for library in found if library is not None)


@dataclass(frozen=True)
class NetworkParameters(Parameters):
    """Variables of the templates of `emit/network/`.

    Attributes:
        net: The network.
        standalone: Whether each text is a file of its own, with a license and includes of the
            network's other files. Otherwise, all texts are parts of one file.
        pragmas: Lines before the functions that replace compiler flags.
    """

    net: EmittedNetwork
    standalone: bool = True
    pragmas: str = ""


@dataclass(frozen=True)
class NetworkFiles:
    """The network's own files, without those of the project around it.

    Attributes:
        network: The network, with the hash of its files.
        texts: The contents of the text files by name.
        binaries: The contents of the binary files by name: arrays to be concatenated.
    """

    network: EmittedNetwork
    texts: Mapping[str, str]
    binaries: Mapping[str, Sequence[Array]]


def render_network(network: EmittedNetwork, schedule: Schedule) -> NetworkFiles:
    """Render the network's own files, and store the hash of their contents in its header.

    Args:
        network: The network; its hash is not used.
        schedule: The network's steps and constants.

    Raises:
        ModelError: A constant contains a NaN.
    """
    texts = _texts(replace(network, hash=""))
    binaries = {network.weights_binary: binary(schedule)} if network.weights_binary else {}
    digest = hashlib.sha256()
    for name, text in texts.items():
        digest.update(f"{name} {len(text)}\n{text}".encode())
    for array in chain(*binaries.values()):
        digest.update(array.data)
    network = replace(network, hash=digest.hexdigest()[:16])
    return NetworkFiles(network, {**texts, **_header(NetworkParameters(network))}, binaries)


def _texts(network: EmittedNetwork) -> dict[str, str]:
    """Render the network's text files: contents by name."""
    device = network.device
    names = NetworkNames(network.title, network.name, network.macro)
    finish_device = None if device is None else device.render(names, network.comments)
    rendered = render_files(NetworkParameters(network))
    return rendered if finish_device is None else {**finish_device(), **rendered}


def render_files(parameters: NetworkParameters) -> dict[str, str]:
    """Render the network's text files except an accelerator's: contents by name.

    Raises:
        ModelError: A constant contains a NaN.
    """
    network = parameters.net
    name, *_, weights = network.name, *network.sources
    kind = "S" if network.weights_binary else "c"
    return {
        **_header(parameters),
        f"{name}.c": _before_statements(parameters)
        + f"{network.statements.text}\n"
        + render_c("emit/network/network_end.c.j2", parameters),
        f"{name}_kernels.h": render_c("emit/network/kernels.h.j2", parameters),
        f"{name}_kernels.c": render_kernels(parameters),
        weights: render_c(f"emit/network/weights.{kind}.j2", parameters),
    }


def _header(parameters: NetworkParameters) -> dict[str, str]:
    """Render the network's header: its contents by its name."""
    return {f"{parameters.net.name}.h": render_c("emit/network/header.h.j2", parameters)}


def render_kernels(parameters: NetworkParameters) -> str:
    """Render the C file with the functions that compute the layers."""
    return render_c("emit/network/kernels.c.j2", parameters)


def call_lines(network: EmittedNetwork) -> dict[int, int]:
    """Return the index of the called step by the number of the calling line in NAME.c, from 1."""
    first = _before_statements(NetworkParameters(network)).count("\n") + 1
    return {first + line: step for line, step in network.statements.calls.items()}


def _before_statements(parameters: NetworkParameters) -> str:
    """Render the part of NAME.c before the statements of `invoke`."""
    return render_c("emit/network/network.c.j2", parameters)


def stored_arrays(network: EmittedNetwork, schedule: Schedule) -> Mapping[str, Array]:
    """Return the network's arrays in memory, besides code, by their names in C."""
    device = network.device
    return {**stored(schedule), **({} if device is None else device.arrays(network.name))}


def _lengths(graph: Graph) -> tuple[LengthView, ...]:
    """Return views of the graph's run-time lengths.

    Raises:
        UnsupportedError: Two lengths have the same name in C.
    """
    named: dict[str, Length] = {}
    for length in graph.lengths:
        other = named.setdefault(c_word(length.name), length)
        if other is not length:
            raise UnsupportedError(
                f"dimensions '{other.name}' and '{length.name}' would have the same name in C: fix "
                f"the size of one with --dim {length.name}={length.maximum}"
            )
    return tuple(LengthView(x.name, word, x.minimum, x.maximum) for word, x in named.items())

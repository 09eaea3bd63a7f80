"""Renders a scheduled, planned network into its C files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from smelt.codegen import arena
from smelt.codegen.accelerator import DeviceProgram, NetworkNames
from smelt.codegen.emit.addresses import Addresses, BufferOffset
from smelt.codegen.emit.names import c_name
from smelt.codegen.emit.statements import Statements, c_word, comment_of, statements_of
from smelt.codegen.emit.weights import (
    ConstantArray,
    constants_of,
    is_binary,
    is_infinite,
    stored,
)
from smelt.codegen.lower.backend import backend
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
class StateView:
    """A state tensor as the templates see it."""

    name: str
    offset: str
    bytes: int
    initial: str
    after: str
    after_in_arena: bool


@dataclass(frozen=True)
class LengthView:
    """A size known at run time as the templates see it; `word` is a C identifier."""

    name: str
    word: str
    minimum: int
    maximum: int


@dataclass(frozen=True, kw_only=True)
class EmittedNetwork:
    """Everything that the templates of the network and of the project ask about it.

    `title` is what people call it, and `name` what every file and C identifier of it begins with.
    `weights_binary` is the file of the weights where they are not C text, empty where they are;
    `device` what an accelerator does, None where the CPU does everything; with `cpu_fallback` the
    CPU can too. `libraries` are those of the system that it is linked with, `external` the user's.
    `preamble` stands before the functions that compute its layers; with `infinite_weights`, the C
    file of the weights includes math.h. `structs` are the types of structs among the constants.
    `offsets` are those of the buffers that the code names, `comments` say what each step computes.
    No layout takes less arena than `arena_bound`; with `arena_optimal`, less than `arena_bytes`.
    """

    title: str
    summary: str
    hash: str
    alignment: int
    arena_bytes: int
    arena_bound: int
    arena_optimal: bool
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
        """How many steps an inference has."""
        return len(self.comments)

    @property
    def has_state(self) -> bool:
        """Whether the caller must provide state memory."""
        return self.state_bytes > 0

    @property
    def state_memory(self) -> str:
        """The memory that state is kept in."""
        return STATE if self.has_state else ARENA

    @property
    def uses_arena(self) -> bool:
        """Whether `invoke` refers to the arena at all."""
        return self.statements.uses_arena or any(state.after_in_arena for state in self.states)

    @property
    def copies(self) -> bool:
        """Whether `memcpy` or `memmove` is called."""
        return bool(self.states) or self.statements.copies

    @property
    def device_headers(self) -> tuple[str, ...]:
        """Headers that its own one includes, of what an accelerator does."""
        return () if self.device is None else self.device.headers(self.name)

    @property
    def sources(self) -> tuple[str, ...]:
        """The network's C files; the last is an assembler file where the weights are binary."""
        weights = f"{self.name}_weights.{'S' if self.weights_binary else 'c'}"
        device = () if self.device is None else self.device.sources(self.name)
        return (f"{self.name}.c", f"{self.name}_kernels.c", *device, weights)


def describe(
    schedule: Schedule,
    plan: arena.Plan,
    device: DeviceProgram | None,
    title: str,
    hash_: str,
    *,
    target: Target,
    keep_inputs: bool,
) -> EmittedNetwork:
    """The network as the templates see it."""
    graph = schedule.graph
    memories = {use.name: use for use in plan.memories}
    addresses = Addresses(plan)
    inputs = tuple(_tensor(schedule, addresses, v) for v in graph.inputs)
    outputs = tuple(_tensor(schedule, addresses, v) for v in graph.outputs)
    states = _states(schedule, addresses)
    statements = statements_of(schedule.actions, addresses, device)
    return EmittedNetwork(
        title=title,
        summary=f"{len(schedule.steps)} steps, {graph.macs:,} multiply-accumulates",
        hash=hash_,
        alignment=schedule.alignment,
        arena_bytes=max(memories[ARENA].bytes, schedule.alignment),
        arena_bound=memories[ARENA].lower_bound,
        arena_optimal=memories[ARENA].optimal,
        state_bytes=memories[STATE].bytes if STATE in memories else 0,
        weights_bytes=sum(array.nbytes for array in schedule.constants.values()),
        keep_inputs=keep_inputs,
        inputs=inputs,
        outputs=outputs,
        states=states,
        statements=statements,
        offsets=addresses.offsets,
        comments=tuple(map(comment_of, schedule.steps)),
        preamble=preamble(*(function.uses for function in schedule.functions)),
        functions=schedule.functions,
        constants=constants_of(schedule),
        structs=tuple(dict.fromkeys(schedule.structs.values())),
        infinite_weights=is_infinite(schedule),
        lengths=_lengths(graph),
        weights_binary=f"{c_name(title)}_weights.bin" if is_binary(schedule) else "",
        device=device,
        libraries=()
        if device is None
        else tuple(library.name for library in target.host_libraries),
        external=_external(schedule),
        cpu_fallback=any(step.spare is not None for step in schedule.calls),
    )


def _tensor(schedule: Schedule, addresses: Addresses, value: Value) -> Tensor:
    """An input or output; `ValueError` for a constant, which has no address."""
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


def _states(schedule: Schedule, addresses: Addresses) -> tuple[StateView, ...]:
    """What survives from one inference to the next."""
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
    """The libraries that the user provides, of all backends that compute a layer."""
    names = sorted({step.backend for step in schedule.calls})
    found = (backend(name).library for name in names)
    return tuple(library for library in found if library is not None)


@dataclass(frozen=True)
class NetworkParameters(Parameters):
    """Variables of the templates of `emit/network/`.

    Attributes:
        net: the network.
        standalone: whether a text is a file of its own, with a licence, which includes the other
            files of the network; where it is not, all of them stand in one.
        pragmas: lines before the functions that say to the compiler what flags else do.
    """

    net: EmittedNetwork
    standalone: bool = True
    pragmas: str = ""


def render_network(network: EmittedNetwork) -> dict[str, str]:
    """The network's text files: name to contents."""
    device = network.device
    names = NetworkNames(network.title, network.name, network.macro)
    begun = None if device is None else device.render(names, network.comments)
    rendered = render_files(NetworkParameters(network))
    return rendered if begun is None else {**begun(), **rendered}


def render_files(parameters: NetworkParameters) -> dict[str, str]:
    """Those of the network's text files that are not of an accelerator: name to contents.

    Raises:
        ModelError: a constant is not a number.
    """
    network = parameters.net
    name, *_, weights = network.name, *network.sources
    kind = "S" if network.weights_binary else "c"
    return {
        f"{name}.h": render_c("emit/network/header.h.j2", parameters),
        f"{name}.c": _before_statements(parameters)
        + f"{network.statements.text}\n"
        + render_c("emit/network/network_end.c.j2", parameters),
        f"{name}_kernels.h": render_c("emit/network/kernels.h.j2", parameters),
        f"{name}_kernels.c": render_kernels(parameters),
        weights: render_c(f"emit/network/weights.{kind}.j2", parameters),
    }


def render_kernels(parameters: NetworkParameters) -> str:
    """The C file of the functions that compute the layers."""
    return render_c("emit/network/kernels.c.j2", parameters)


def call_lines(network: EmittedNetwork) -> dict[int, int]:
    """The lines of NAME.c, from 1, on which a kernel is called, and the step that each calls."""
    first = _before_statements(NetworkParameters(network)).count("\n") + 1
    return {first + line: step for line, step in network.statements.calls.items()}


def _before_statements(parameters: NetworkParameters) -> str:
    """The text of NAME.c that the statements of an inference follow."""
    return render_c("emit/network/network.c.j2", parameters)


def stored_arrays(network: EmittedNetwork, schedule: Schedule) -> Mapping[str, Array]:
    """What memory holds of a network beside code, by the names of the arrays."""
    device = network.device
    return {**stored(schedule), **({} if device is None else device.arrays(network.name))}


def network_hash(*parts: str | bytes) -> str:
    """Return 16 hexadecimal digits over everything that the code depends on.

    Equal digits mean equal code. The reverse is not true: another option may change no code.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:16]


def _lengths(graph: Graph) -> tuple[LengthView, ...]:
    """Views of the graph's lengths, whose words must differ."""
    named: dict[str, Length] = {}
    for length in graph.lengths:
        other = named.setdefault(c_word(length.name), length)
        if other is not length:
            raise UnsupportedError(
                f"dimensions '{other.name}' and '{length.name}' would have one name in C: fix one "
                f"with --dim {length.name}={length.maximum}"
            )
    return tuple(LengthView(x.name, word, x.minimum, x.maximum) for word, x in named.items())

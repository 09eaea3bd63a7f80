"""The planner's input: memories, buffers with lifetimes, and allowed overlaps."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from smelt.errors import GraphError


class WriteOrder(StrEnum):
    """The order in which a step writes the bytes of its outputs."""

    ASCENDING = "ascending"
    DESCENDING = "descending"


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory region that buffers are placed in.

    Attributes:
        name: A unique name.
        size: Bytes; None for unlimited.
        alignment: The alignment of the base address in bytes, a power of two. No buffer may have a
            larger alignment.
    """

    name: str
    size: int | None = None
    alignment: int = 16


@dataclass(frozen=True, slots=True)
class Buffer:
    """`size` bytes that are in use in the steps `start <= step < end`.

    `memories` names the memories that may store it, the preferred one first. A fixed `offset`
    (bytes from the memory's base) pins it to the first of them.
    """

    name: str
    size: int
    start: int
    end: int
    memories: tuple[str, ...]
    alignment: int = 16
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Overlap:
    """The ways in which `output` may share bytes with `input`.

    With `delta = offset(output) - offset(input)` in bytes, sharing is allowed if

    - `delta` is one of `deltas` (0: in place), whatever the write order; or
    - `delta <= -ascending`, and the step writes the output in ascending order; or
    - `delta >= descending`, and the step writes it in descending order.

    The last two require that `output` starts at the step that reads `input` for the last time. All
    overlaps of one step must agree on its write order. The distances may be negative.
    """

    input: str
    output: str
    deltas: tuple[int, ...] = ()
    ascending: int | None = None
    descending: int | None = None

    @property
    def directed(self) -> bool:
        """Whether the overlap allows a diagonal layout, which needs a write order."""
        return self.ascending is not None or self.descending is not None


@dataclass(frozen=True, slots=True)
class Problem:
    """A complete planning problem. `steps` has the steps' names for messages (may be empty).

    Raises:
        GraphError: On construction, if the problem contradicts itself.
    """

    memories: tuple[Memory, ...]
    buffers: tuple[Buffer, ...]
    overlaps: tuple[Overlap, ...] = ()
    steps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _reject_duplicates("memory", (m.name for m in self.memories))
        _reject_duplicates("buffer", (b.name for b in self.buffers))
        pairs = (" with ".join(sorted((o.input, o.output))) for o in self.overlaps)
        _reject_duplicates("overlap", pairs)
        memories = {m.name: m for m in self.memories}
        for memory in self.memories:
            _require(
                _is_power_of_two(memory.alignment),
                f"memory {memory.name!r}: alignment {memory.alignment} is not a power of two",
            )
            _require(
                memory.size is None or memory.size >= 0,
                f"memory {memory.name!r}: size {memory.size} is negative",
            )
        for buffer in self.buffers:
            _check_buffer(buffer, memories)
        buffers = {b.name: b for b in self.buffers}
        for overlap in self.overlaps:
            _check_overlap(overlap, buffers)

    def memory(self, name: str) -> Memory:
        """Return the memory called `name`. Raises KeyError if there is none."""
        for memory in self.memories:
            if memory.name == name:
                return memory
        raise KeyError(name)


def _check_buffer(buffer: Buffer, memories: dict[str, Memory]) -> None:
    where = f"buffer {buffer.name!r}"
    _require(buffer.size >= 0, f"{where}: size {buffer.size} is negative")
    _require(
        _is_power_of_two(buffer.alignment),
        f"{where}: alignment {buffer.alignment} is not a power of two",
    )
    _require(
        0 <= buffer.start < buffer.end,
        f"{where}: lifetime [{buffer.start}, {buffer.end}) is empty or negative",
    )
    _require(bool(buffer.memories), f"{where}: no memory is allowed")
    _reject_duplicates(f"{where}: memory", buffer.memories)
    for name in buffer.memories:
        _require(name in memories, f"{where}: unknown memory {name!r}")
        _require(
            buffer.alignment <= memories[name].alignment,
            f"{where}: alignment {buffer.alignment} is above the {memories[name].alignment} "
            f"of memory {name!r}",
        )
    if buffer.offset is not None:
        _require(
            buffer.offset >= 0 and buffer.offset % buffer.alignment == 0,
            f"{where}: fixed offset {buffer.offset} is not a multiple of {buffer.alignment}",
        )


def _check_overlap(overlap: Overlap, buffers: dict[str, Buffer]) -> None:
    where = f"overlap {overlap.input!r} -> {overlap.output!r}"
    _require(overlap.input != overlap.output, f"{where}: input and output are the same buffer")
    for name in (overlap.input, overlap.output):
        _require(name in buffers, f"{where}: unknown buffer {name!r}")
    _require(bool(overlap.deltas) or overlap.directed, f"{where}: has neither deltas nor distances")
    source, result = buffers[overlap.input], buffers[overlap.output]
    _require(
        source.start < result.end and result.start < source.end,
        f"{where}: the buffers are never live at the same time",
    )
    _require(
        not overlap.directed or source.end == result.start + 1,
        f"{where}: a diagonal overlap needs the input to end where the output starts, but it "
        f"lives to step {source.end - 1} and the output starts at {result.start}",
    )


def _reject_duplicates(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        _require(name not in seen, f"{kind} {name!r} appears twice")
        seen.add(name)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise GraphError(f"arena problem: {message}")


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0

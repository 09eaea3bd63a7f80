"""The planner's input: memories, buffers with their live bytes, and buffers computed in place."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from smelt.errors import GraphError


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
class Span:
    """In the steps `start <= step < end`, the bytes `low <= byte < high` of a buffer are live."""

    start: int
    end: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """`size` bytes that are in use in the steps `start <= step < end`.

    A fixed `offset` is counted in bytes from the base of its memory.

    `spans` says which bytes are live in which steps, in ascending order; other buffers may
    overwrite the rest. No spans mean that all bytes are live from `start` to `end`.
    """

    name: str
    size: int
    start: int
    end: int
    memory: str
    alignment: int = 16
    offset: int | None = None
    spans: tuple[Span, ...] = ()

    @property
    def live(self) -> tuple[Span, ...]:
        """The spans of the live bytes; one span if all bytes are live all the time."""
        return self.spans or (Span(self.start, self.end, 0, self.size),)


@dataclass(frozen=True, slots=True)
class InPlace:
    """Permission for two buffers to have the same offset and share bytes that both have live.

    An elementwise step allows this: it writes each element of its output after it read that element
    of its input.
    """

    input: str
    output: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A complete planning problem. `steps` has the steps' names for messages (may be empty).

    Raises:
        GraphError: On construction, if the problem contradicts itself.
    """

    memories: tuple[Memory, ...]
    buffers: tuple[Buffer, ...]
    in_place: tuple[InPlace, ...] = ()
    steps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _reject_duplicates("memory", (m.name for m in self.memories))
        _reject_duplicates("buffer", (b.name for b in self.buffers))
        pairs = (" with ".join(sorted((pair.input, pair.output))) for pair in self.in_place)
        _reject_duplicates("in place", pairs)
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
        for pair in self.in_place:
            _check_in_place(pair, buffers)

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
    _require(buffer.memory in memories, f"{where}: unknown memory {buffer.memory!r}")
    most = memories[buffer.memory].alignment
    _require(
        buffer.alignment <= most,
        f"{where}: alignment {buffer.alignment} is above the {most} of memory {buffer.memory!r}",
    )
    if buffer.offset is not None:
        _require(
            buffer.offset >= 0 and buffer.offset % buffer.alignment == 0,
            f"{where}: fixed offset {buffer.offset} is not a multiple of {buffer.alignment}",
        )
    _check_spans(buffer, where)


def _check_spans(buffer: Buffer, where: str) -> None:
    for span in buffer.spans:
        steps = f"{where}: span of steps [{span.start}, {span.end})"
        _require(span.start < span.end, f"{steps} is empty or negative")
        _require(
            0 <= span.low < span.high <= buffer.size,
            f"{steps}: bytes [{span.low}, {span.high}) are empty or outside [0, {buffer.size})",
        )
    for before, after in pairwise(buffer.spans):
        _require(
            before.end <= after.start,
            f"{where}: the span from step {after.start} begins before the previous one ends at "
            f"{before.end}",
        )
    if buffer.spans:
        first, last = buffer.spans[0].start, buffer.spans[-1].end
        _require(
            (first, last) == (buffer.start, buffer.end),
            f"{where}: its spans reach from step {first} to {last}, its lifetime from "
            f"{buffer.start} to {buffer.end}",
        )


def _check_in_place(pair: InPlace, buffers: dict[str, Buffer]) -> None:
    where = f"{pair.output!r} in place of {pair.input!r}"
    _require(pair.input != pair.output, f"{where}: input and output are the same buffer")
    for name in (pair.input, pair.output):
        _require(name in buffers, f"{where}: unknown buffer {name!r}")
    source, result = buffers[pair.input], buffers[pair.output]
    _require(
        source.start < result.end and result.start < source.end,
        f"{where}: the buffers are never live at the same time",
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

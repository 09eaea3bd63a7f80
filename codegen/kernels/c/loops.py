"""Nested loops over several arrays of one logical shape, as few as their strides allow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from smelt.ir import TensorType

LANES = 4
"""How many neighbouring results are accumulated in registers at a time."""

_NAMES = "ijkmnpqr"

ALL_NAMES = _NAMES + "stuvwxyz"
"""Names of loop variables for tensors of any rank."""


@dataclass(frozen=True)
class Loop:
    """One level: a C variable that counts to `size`; `strides` in elements, one per array."""

    name: str
    size: int
    strides: tuple[int, ...]

    @property
    def head(self) -> str:
        """The C line that opens the loop."""
        return f"for (int32_t {self.name} = 0; {self.name} < {self.size}; ++{self.name}) {{"


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a dense row-major array."""
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()


def broadcast_strides(shape: Sequence[int], to: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense array of `shape` when it is read in the (numpy-broadcast) shape `to`."""
    padded = (*[1] * (len(to) - len(shape)), *shape)
    return tuple(
        0 if size == 1 else stride
        for size, stride in zip(padded, dense_strides(padded), strict=True)
    )


def unbroadcast(operands: Sequence[TensorType], y: TensorType) -> tuple[tuple[int, int], ...]:
    """`KernelCall.in_place` where each element is read once, just before its result is written.

    A broadcast operand may have as many bytes as a result of smaller elements: it is read again.
    """
    return tuple((0, i) for i, x in enumerate(operands) if (x.size, x.bytes) == (y.size, y.bytes))


def nest(shape: Sequence[int], *strides: Sequence[int], names: str = _NAMES) -> tuple[Loop, ...]:
    """Loops over `shape`, outermost first; axes that every array crosses evenly are merged."""
    merged: list[tuple[int, tuple[int, ...]]] = []
    for size, *own in zip(shape, *strides, strict=True):
        steps = tuple(own)
        if size == 1:
            continue
        if merged and merged[-1][1] == tuple(size * step for step in steps):
            merged[-1] = merged[-1][0] * size, steps
        else:
            merged.append((size, steps))
    return tuple(Loop(names[level], size, steps) for level, (size, steps) in enumerate(merged))


def index(loops: Sequence[Loop], array: int) -> str:
    """The C expression of the element's index in the array, as `i * 48 + j`."""
    return total(
        loop.name if loop.strides[array] == 1 else f"{loop.name} * {loop.strides[array]}"
        for loop in loops
        if loop.strides[array]
    )


def total(terms: Iterable[str]) -> str:
    """The C expression of a sum; terms "0" are left out."""
    return " + ".join(term for term in terms if term != "0").replace("+ -", "- ") or "0"


@dataclass(frozen=True)
class Copies:
    """Nested loops that copy `input` to `output`, `block` elements at a time.

    `statements[d]` are the C lines that stand inside the first d loops.
    """

    loops: tuple[Loop, ...]
    statements: tuple[tuple[str, ...], ...]
    block: int

    @property
    def summary(self) -> str:
        """One line for reports."""
        return f"{len(self.loops)} nested loops, {self.block} elements at a time"


def block_copies(
    shape: Sequence[int],
    source: Sequence[int],
    target: Sequence[int],
    element: int,
    read: str = "0",
    written: str = "0",
) -> Copies:
    """Copies of the elements of `shape`, of `element` bytes each, between two arrays' strides.

    `read` and `written` are C expressions of where the first element stands.
    """
    loops = nest(shape, source, target, names=ALL_NAMES)
    block = loops[-1].size if loops and loops[-1].strides == (1, 1) else 1
    if block > 1:
        loops = loops[:-1]
    statement = copy(
        total((written, index(loops, 1))), total((read, index(loops, 0))), block, element
    )
    return Copies(loops, (*(() for _ in loops), (statement,)), block)


def copy(written: str, read: str, count: int, element: int) -> str:
    """The C statement that copies neighbouring elements of `input` to `output`."""
    if count == 1:
        return f"output[{written}] = input[{read}];"
    target = "output" if written == "0" else f"output + {written}"
    source = "input" if read == "0" else f"input + {read}"
    return f"memcpy({target}, {source}, {count * element});"


def braced(head: str, body: Iterable[str]) -> list[str]:
    """C lines of a loop or a block that `head` opens."""
    return [head, *(f"    {line}" for line in body), "}"]


@dataclass(frozen=True)
class NestedLoop:
    """A loop as C: the line that opens it, and lines at the start of its body."""

    head: str
    lines: tuple[str, ...] = ()


def depth(loops: Sequence[Loop], array: int) -> int:
    """How many loops the array's element depends on: 0 if it is the same throughout."""
    return max((level + 1 for level, loop in enumerate(loops) if loop.strides[array]), default=0)


@dataclass(frozen=True)
class Block:
    """Neighbouring elements from `begin` to `end`, so many `lanes` of them at a time."""

    begin: int
    end: int
    lanes: int

    @property
    def repeats(self) -> bool:
        """Whether a loop is needed: its variable is `c`."""
        return self.end - self.begin > self.lanes

    @property
    def head(self) -> str:
        """The C line that opens the block."""
        if self.repeats:
            return f"for (int32_t c = {self.begin}; c < {self.end}; c += {self.lanes}) {{"
        return "{"

    @property
    def position(self) -> str:
        """The C expression of the first of the lanes."""
        return "c" if self.repeats else str(self.begin)

    def lane(self, number: int) -> str:
        """The C expression of one of the lanes."""
        if self.repeats:
            return f"c + {number}" if number else "c"
        return str(self.begin + number)


def lane_blocks(size: int, lanes: int = LANES) -> tuple[Block, ...]:
    """The blocks of a row of elements that are computed so many at a time, in registers."""
    whole = size - size % lanes
    blocks = (Block(0, whole, lanes), Block(whole, size, size % lanes))
    return tuple(block for block in blocks if block.end > block.begin)

"""Nested C loops over several arrays with one logical shape, merged where strides allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from smelt.codegen.lower.c_expressions import quantization
from smelt.codegen.lower.kernel import KernelCall, Operand, Parameters
from smelt.codegen.lower.loop_heads import loop_head, looped
from smelt.codegen.text.expressions import times
from smelt.codegen.text.helpers import uses_in
from smelt.ir import TensorType

LANES = 4
"""Number of adjacent results that are accumulated in registers at a time."""

_NAMES = "ijkmnpqr"

ALL_NAMES = _NAMES + "stuvwxyz"
"""Names of loop variables for tensors of any rank."""


@dataclass(frozen=True)
class ArrayLoop:
    """One loop: a C variable that counts to `size`, and the stride in elements of each array."""

    name: str
    size: int
    strides: tuple[int, ...]

    @property
    def head(self) -> str:
        """The C line that opens the loop."""
        return f"for (int32_t {self.name} = 0; {self.name} < {self.size}; ++{self.name}) {{"


@dataclass(frozen=True)
class LoopsParameters(Parameters):
    """Variables of `lower/loops.j2`: a function with these C lines as its `body`.

    `comment` is one line, or the lines of a block comment.
    """

    comment: str | tuple[str, ...]
    body: tuple[str, ...]


def loops_call(
    parameters: LoopsParameters,
    *,
    stem: str,
    form: str,
    operands: tuple[Operand, ...],
    summary: str,
    in_place: tuple[tuple[int, int], ...] = (),
) -> KernelCall:
    """Return the call of a function that consists of those lines; see `KernelCall`."""
    return KernelCall(
        template="lower/loops.j2",
        stem=stem,
        parameters=parameters,
        operands=operands,
        in_place=in_place,
        uses=uses_in(parameters.body),
        summary=summary,
        form=form,
    )


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides in elements of a dense row-major array."""
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()


def broadcast_strides(shape: Sequence[int], to: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense array of `shape` broadcast (as in numpy) to shape `to`."""
    padded = (*[1] * (len(to) - len(shape)), *shape)
    return tuple(
        0 if size == 1 else stride
        for size, stride in zip(padded, dense_strides(padded), strict=True)
    )


def unbroadcast(operands: Sequence[TensorType], y: TensorType) -> tuple[tuple[int, int], ...]:
    """Return `KernelCall.in_place` if each element is read once, just before its result is written.

    A broadcast operand is read repeatedly, so its size must be compared in elements too: it may
    have as many bytes as a result of smaller elements.
    """
    return tuple((0, i) for i, x in enumerate(operands) if (x.size, x.bytes) == (y.size, y.bytes))


def nest(
    shape: Sequence[int], *strides: Sequence[int], names: str = _NAMES
) -> tuple[ArrayLoop, ...]:
    """Return loops over `shape`, outermost first; axes contiguous in all arrays are merged."""
    merged: list[tuple[int, tuple[int, ...]]] = []
    for size, *own in zip(shape, *strides, strict=True):
        steps = tuple(own)
        if size == 1:
            continue
        if merged and merged[-1][1] == tuple(size * step for step in steps):
            merged[-1] = merged[-1][0] * size, steps
        else:
            merged.append((size, steps))
    return tuple(ArrayLoop(names[level], size, steps) for level, (size, steps) in enumerate(merged))


def index(loops: Sequence[ArrayLoop], array: int) -> str:
    """Return the C expression of the element's index in the array, for example `i * 48 + j`."""
    return total(times(loop.name, loop.strides[array]) for loop in loops if loop.strides[array])


def in_loops(loops: Sequence[ArrayLoop], lines: Sequence[str]) -> tuple[str, ...]:
    """Return the C lines of nested loops with `lines` in the innermost one."""
    return nested([loop.head for loop in loops], (*(() for _ in loops), lines))


def nested(heads: Sequence[str], statements: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the C lines of nested blocks, which `heads` open.

    `statements[d]` are the lines inside the first d blocks, before the next block.
    """
    first, *others = statements
    if not heads:
        return tuple(first)
    return (*first, heads[0], *indented(nested(heads[1:], others)), "}")


def each_element(
    what: str, x: TensorType, y: TensorType, lines: Callable[[str], Sequence[str]]
) -> LoopsParameters:
    """Return a function that computes every element of the output with the same C lines.

    Args:
        what: name of the operator, for the function's comment.
        x: type of the input.
        y: type of the output.
        lines: function that returns the lines for an element, from the C expression of its index.
    """
    sides = ("input", x), ("output", y)
    notes = (quantization(name, type_) for name, type_ in sides if type_.is_quantized)
    return LoopsParameters((f"{what}: {x} -> {y}.", *notes), looped("i", x.size, lines))


def indented(lines: Iterable[str]) -> Iterator[str]:
    """Return C lines indented by one level."""
    return (f"    {line}" for line in lines)


def around_axis(stride: int, row: int) -> tuple[str, ...]:
    """Return C terms of the offset of an axis's first element, where `i` counts all other elements.

    Elements along the axis are `stride` apart. `stride` consecutive values of `i` are adjacent in
    memory; the next group of them begins `row` elements later.
    """
    if stride == 1:
        return (times("i", row),)
    return times(f"i / {stride}", row), f"i % {stride}"


def total(terms: Iterable[str]) -> str:
    """Return the C expression of a sum; terms "0" are left out, and literals added up."""
    parts = [term for term in terms if term != "0"]
    literals = [term for term in parts if term.isdecimal()]
    if len(literals) > 1:
        others = (term for term in parts if not term.isdecimal())
        parts = [*others, str(sum(map(int, literals)))]
    return " + ".join(parts).replace("+ -", "- ") or "0"


@dataclass(frozen=True)
class Copies:
    """Nested loops around a C statement that copies `run` elements of `input` to `output`."""

    loops: tuple[ArrayLoop, ...]
    statement: str
    run: int

    @property
    def lines(self) -> tuple[str, ...]:
        """The C lines."""
        return in_loops(self.loops, (self.statement,))

    @property
    def summary(self) -> str:
        """One line for reports."""
        return f"{len(self.loops)} nested loops, {self.run} elements at a time"


def block_copies(
    shape: Sequence[int],
    source: Sequence[int],
    target: Sequence[int],
    element: int,
    read: str = "0",
    written: str = "0",
) -> Copies:
    """Return copies of the elements of `shape`, of `element` bytes each, between two arrays.

    `source` and `target` are the arrays' strides. `read` and `written` are C expressions of the
    offset of the first element.
    """
    loops = nest(shape, source, target, names=ALL_NAMES)
    run = loops[-1].size if loops and loops[-1].strides == (1, 1) else 1
    if run > 1:
        loops = loops[:-1]
    statement = copy(
        total((written, index(loops, 1))), total((read, index(loops, 0))), run, element
    )
    return Copies(loops, statement, run)


def copy(written: str, read: str, count: int, element: int) -> str:
    """Return the C statement that copies adjacent elements of `input` to `output`."""
    if count == 1:
        return f"output[{written}] = input[{read}];"
    target = "output" if written == "0" else f"output + {written}"
    source = "input" if read == "0" else f"input + {read}"
    return f"memcpy({target}, {source}, {count * element});"


def braced(head: str, body: Iterable[str]) -> list[str]:
    """Return the C lines of a loop or a block that `head` opens."""
    return [head, *(f"    {line}" for line in body), "}"]


@dataclass(frozen=True)
class NestedLoop:
    """A C loop: the line that opens it, and lines at the start of its body."""

    head: str
    lines: tuple[str, ...] = ()


def depth(loops: Sequence[ArrayLoop], array: int) -> int:
    """Return the number of loops that determine the array's element: 0 if it never changes."""
    return max((level + 1 for level, loop in enumerate(loops) if loop.strides[array]), default=0)


@dataclass(frozen=True)
class LaneBlock:
    """Adjacent elements from `begin` to `end`, which are computed `lanes` at a time."""

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
            return loop_head("c", self.end, self.begin, self.lanes)
        return "{"

    @property
    def position(self) -> str:
        """The C expression of the first lane's index."""
        return "c" if self.repeats else str(self.begin)

    def lane(self, number: int) -> str:
        """Return the C expression of a lane's index."""
        if self.repeats:
            return f"c + {number}" if number else "c"
        return str(self.begin + number)


def lane_blocks(size: int, lanes: int = LANES) -> tuple[LaneBlock, ...]:
    """Split a row of elements into blocks of `lanes`, and one for the remainder."""
    whole = size - size % lanes
    blocks = (LaneBlock(0, whole, lanes), LaneBlock(whole, size, size % lanes))
    return tuple(block for block in blocks if block.end > block.begin)


def in_blocks(blocks: Sequence[LaneBlock], lines: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the C lines of blocks around their own lines.

    A single block without a loop has no braces.
    """
    if len(blocks) == 1 and not blocks[0].repeats:
        return tuple(lines[0])
    parts = (nested((block.head,), ((), own)) for block, own in zip(blocks, lines, strict=True))
    return tuple(line for part in parts for line in part)

"""How pools walk over the pixels under a window, several channels at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt.codegen.lower.image_loops import PixelStrides
from smelt.codegen.lower.nested_loops import ArrayLoop, LaneBlock, nested, total
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.helpers import uses_in
from smelt.ops.core.pool import Pool2D

_UNROLLED = 8
"""Channels that compilers unroll a loop over unasked."""


@dataclass(frozen=True)
class PoolSpan:
    """The input rows (or columns) under a window, as C.

    Attributes:
        begin: name of the first one, `end` of the one after the last.
        first: the expression of the first one, which may be negative.
        window: from the first one under a window to just past the last.
        step: from one under a window to the next.
        clips_first, clips_last: whether some window reaches beyond the image there.
    """

    begin: str
    end: str
    first: str
    window: int
    step: int
    size: int
    clips_first: bool
    clips_last: bool

    @staticmethod
    def of(op: Pool2D, axis: int, size: int, outputs: int) -> PoolSpan:
        """The span of rows (`axis` 0) or columns (1)."""
        (before, _), stride, step = op.padding[axis], op.stride[axis], op.dilation[axis]
        window = (op.window[axis] - 1) * step + 1
        output, name = ("y", "iy") if axis == 0 else ("x", "ix")
        first = offset(output if stride == 1 else f"{output} * {stride}", -before)
        last = (outputs - 1) * stride - before + window
        clips = before > 0, last > size
        return PoolSpan(f"{name}_begin", f"{name}_end", first, window, step, size, *clips)

    def lines(self, *, ends: bool) -> tuple[str, ...]:
        """C lines that find the first one, and the one after the last where `ends`."""
        lines, first = [f"const int32_t {self.begin} = {self.first};"], self.begin
        if self.clips_first:
            first = "top" if self.begin == "iy_begin" else "left"
            begin = f"{first} > 0 ? {first} : 0"
            if self.step > 1:
                inside = f"({self.step} + {first} % {self.step}) % {self.step}"
                begin = f"{first} < 0 ? {inside} : {first}"
            lines = [
                f"const int32_t {first} = {self.first};",
                f"const int32_t {self.begin} = {begin};",
            ]
        end = f"{first} + {self.window}"
        if self.clips_last:
            end = f"{end} < {self.size} ? {end} : {self.size}"
        if self.clips_last or ends:
            lines.append(f"const int32_t {self.end} = {end};")
        return tuple(lines)

    @property
    def clips(self) -> bool:
        """Whether windows differ in size."""
        return self.clips_first or self.clips_last

    @property
    def count(self) -> str:
        """The C expression of how many there are."""
        if self.step == 1:
            return f"({self.end} - {self.begin})"
        return f"(({self.end} - {self.begin} + {self.step - 1}) / {self.step})"

    @property
    def advance(self) -> str:
        """The C expression that goes to the next one."""
        name = self.begin.removesuffix("_begin")
        return f"++{name}" if self.step == 1 else f"{name} += {self.step}"


@dataclass(frozen=True)
class PoolBlock:
    """Channels that are accumulated at a time.

    Attributes:
        head: the C line that opens their block.
        sums: lines that declare the accumulators.
        input: the expression of where the first channel of a row of the window stands.
        steps: lines that accumulate that row.
        results: lines that store the results.
    """

    head: str
    sums: tuple[str, ...]
    input: str
    steps: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def uses(self) -> frozenset[str]:
        """The helpers and headers that the lines use."""
        return uses_in((*self.sums, *self.steps, *self.results))


@dataclass(frozen=True, kw_only=True)
class WindowWalk:
    """How blocks of channels walk over a window.

    Attributes:
        kind: of pool.
        type: of the accumulators, in C.
        source: of the input's pixels.
        columns: those under a window.
        taps: how many these are if they are written out; 0 where they are looped over.
        centre: what is taken off every element.
        first: the C expression of what an accumulator starts from.
        result: that of what becomes of the one of a name.
    """

    kind: str
    type: str
    source: PixelStrides
    columns: PoolSpan
    taps: int
    centre: int
    first: str
    result: Callable[[str], str]

    def in_registers(self, block: LaneBlock) -> PoolBlock:
        """A block with a variable for each accumulator."""
        lanes = range(block.lanes)
        steps = [
            [self._step(f"acc{lane}", f"in[{lane + start}]") for lane in lanes]
            for start in self._starts
        ]
        return PoolBlock(
            block.head,
            tuple(f"{self.type} acc{lane} = {self.first};" for lane in lanes),
            self._input(block),
            self._steps(steps),
            tuple(f"out[{block.lane(lane)}] = {self.result(f'acc{lane}')};" for lane in lanes),
        )

    def in_vectors(self, block: LaneBlock) -> PoolBlock:
        """A block with an array of accumulators, which compilers keep in vector registers."""

        def each(statement: str) -> tuple[str, ...]:
            loop = ArrayLoop("j", block.lanes, ())
            unroll = "SMELT_UNROLL " if block.lanes > _UNROLLED else ""
            return nested((unroll + loop.head,), ((), (statement,)))

        steps = [each(self._step("acc[j]", f"in[{offset('j', start)}]")) for start in self._starts]
        result = self.result("acc[j]")
        return PoolBlock(
            block.head,
            (f"SMELT_ARRAY float acc[{block.lanes}];", *each(f"acc[j] = {self.first};")),
            self._input(block),
            self._steps(steps),
            each(f"out[{block.position} + j] = {result};"),
        )

    @property
    def _starts(self) -> list[int]:
        """Where the pixels that are written out stand."""
        return [tap * self.columns.step * self.source.pixel for tap in range(self.taps or 1)]

    def _input(self, block: LaneBlock) -> str:
        return total(("input", self.source.offset("iy", "ix_begin"), block.position))

    def _step(self, acc: str, element: str) -> str:
        if self.kind == "max":
            return f"{acc} = {element} > {acc} ? {element} : {acc};"
        return f"{acc} += {offset(element, -self.centre)};"

    def _steps(self, steps: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """C lines of the steps of columns that are written out, or of one step in a loop."""
        if self.taps:
            return tuple(line for column in steps for line in column)
        move = f"{self.columns.advance}, in += {self.source.pixel * self.columns.step}"
        head = f"for (int32_t ix = ix_begin; ix < ix_end; {move}) {{"
        return nested((head,), ((), steps[0]))

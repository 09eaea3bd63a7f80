"""The loops of pools over the pixels under a window, for several channels at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt.codegen.lower.image_loops import PixelStrides
from smelt.codegen.lower.nested_loops import ArrayLoop, LaneBlock, nested, total
from smelt.codegen.text.expressions import offset, times
from smelt.codegen.text.helpers import uses_in
from smelt.ops.core.pool import Pool2D

_UNROLLED = 8
"""Compilers unroll loops over up to this many channels without `SMELT_UNROLL`."""


@dataclass(frozen=True)
class PoolSpan:
    """The input rows (or columns) under a window; texts are C.

    Attributes:
        begin: variable with the index of the first row.
        end: variable with the index after the last row.
        first: expression of the window's first row, which is negative in the padding.
        window: rows from the window's first to its last, with the gaps of dilation.
        step: distance between rows of the window (the dilation).
        size: rows of the image.
        clips_first, clips_last: whether some window begins before or ends after the image.
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
        """Return the span of rows (`axis` 0) or columns (`axis` 1)."""
        (before, _), stride, step = op.padding[axis], op.stride[axis], op.dilation[axis]
        window = (op.window[axis] - 1) * step + 1
        output, name = ("y", "iy") if axis == 0 else ("x", "ix")
        first = offset(times(output, stride) if outputs > 1 else "0", -before)
        last = (outputs - 1) * stride - before + window
        clips = before > 0, last > size
        return PoolSpan(f"{name}_begin", f"{name}_end", first, window, step, size, *clips)

    def lines(self, *, ends: bool) -> tuple[str, ...]:
        """Return C lines that declare `begin`, and also `end` if it is clipped or `ends` is set."""
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
        """Whether some window reaches beyond the image, so that windows differ in size."""
        return self.clips_first or self.clips_last

    @property
    def count(self) -> str:
        """The C expression of the number of rows under a window."""
        if self.step == 1:
            return f"({self.end} - {self.begin})"
        return f"(({self.end} - {self.begin} + {self.step - 1}) / {self.step})"

    @property
    def advance(self) -> str:
        """The C expression that advances to the next row."""
        name = self.begin.removesuffix("_begin")
        return f"++{name}" if self.step == 1 else f"{name} += {self.step}"


@dataclass(frozen=True)
class PoolBlock:
    """Channels that are accumulated together; texts are C.

    Attributes:
        head: line that opens the block or the loop over blocks.
        sums: lines that declare the accumulators.
        input: expression of the pointer to the block's first channel in a row of the window.
        steps: lines that accumulate this row.
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
    """How blocks of channels are accumulated over a window; texts are C.

    Attributes:
        kind: kind of the pool.
        type: type of the accumulators.
        source: strides of the input's pixels.
        columns: the columns under a window.
        taps: number of columns if they are unrolled; 0 if there is a loop over them.
        center: number that is subtracted from every element.
        first: function from a channel's index to the initial value of its accumulator.
        result: function from an accumulator's name to the expression of the output.
    """

    kind: str
    type: str
    source: PixelStrides
    columns: PoolSpan
    taps: int
    center: int
    first: Callable[[str], str]
    result: Callable[[str], str]

    def in_registers(self, block: LaneBlock) -> PoolBlock:
        """Return a block with one variable per accumulator."""
        lanes = range(block.lanes)
        steps = [
            [self._step(f"acc{lane}", f"in[{lane + start}]") for lane in lanes]
            for start in self._starts
        ]
        return PoolBlock(
            block.head,
            tuple(f"{self.type} acc{lane} = {self.first(block.lane(lane))};" for lane in lanes),
            self._input(block),
            self._steps(steps),
            tuple(f"out[{block.lane(lane)}] = {self.result(f'acc{lane}')};" for lane in lanes),
        )

    def in_vectors(self, block: LaneBlock) -> PoolBlock:
        """Return a block with an array of accumulators; compilers keep it in vector registers."""

        def each(statement: str) -> tuple[str, ...]:
            loop = ArrayLoop("j", block.lanes, ())
            unroll = "SMELT_UNROLL " if block.lanes > _UNROLLED else ""
            return nested((unroll + loop.head,), ((), (statement,)))

        steps = [each(self._step("acc[j]", f"in[{offset('j', start)}]")) for start in self._starts]
        result, channel = self.result("acc[j]"), offset(block.position, "j")
        return PoolBlock(
            block.head,
            (f"SMELT_ARRAY float acc[{block.lanes}];", *each(f"acc[j] = {self.first(channel)};")),
            self._input(block),
            self._steps(steps),
            each(f"out[{channel}] = {result};"),
        )

    @property
    def _starts(self) -> list[int]:
        """The offsets of the unrolled columns; the first one only if there is a loop."""
        return [tap * self.columns.step * self.source.pixel for tap in range(self.taps or 1)]

    def _input(self, block: LaneBlock) -> str:
        return total(("input", self.source.offset("iy", "ix_begin"), block.position))

    def _step(self, acc: str, element: str) -> str:
        if self.kind == "max":
            return f"{acc} = {element} > {acc} ? {element} : {acc};"
        return f"{acc} += {offset(element, -self.center)};"

    def _steps(self, steps: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Return C lines for a row: the unrolled columns, or a loop over them.

        `steps` has the lines of each unrolled column, or those of the loop's body.
        """
        if self.taps:
            return tuple(line for column in steps for line in column)
        move = f"{self.columns.advance}, in += {self.source.pixel * self.columns.step}"
        head = f"for (int32_t ix = ix_begin; ix < ix_end; {move}) {{"
        return nested((head,), ((), steps[0]))

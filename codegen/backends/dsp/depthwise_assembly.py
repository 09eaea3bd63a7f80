"""Assembly of depthwise convolutions: columns of input pairs times columns of weight pairs.

One channel's inputs stand in working memory as words of two rows each, an even one and the one
below, column after column (see `depthwise_products`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from smelt.codegen.backends.dsp.assembly import add, word
from smelt.codegen.backends.dsp.depthwise_products import Batch, batches, input_words
from smelt.codegen.backends.dsp.scaling import DspScaling, OutputDefinition
from smelt.codegen.lower.window import Window
from smelt.ir import Array

SCRATCH_WORDS = 1024
"""What the inputs of four channels may take."""

_FARTHEST = 1020
"""The largest offset of LDRD, in bytes."""

_PIECE = 96
"""Instructions of one assembly statement."""


@dataclass(frozen=True)
class OutputGroup:
    """Outputs that are made at once.

    Attributes:
        alike: how many such groups follow each other.
        lines: instructions that make the outputs.
        move: those that move on to the next group.
        end: those that bring r9 from the first of the groups to the end of the last.
    """

    alike: int
    lines: list[str]
    move: list[str]
    end: list[str]


@dataclass(frozen=True)
class ChannelFunctionParameters:
    """The variables of the macro that writes the function for the outputs of a channel.

    Attributes:
        single: whether only the upper one of each two output rows is made.
        down: whether a turn is a column of outputs; else it is a strip of rows.
        stored: words of a column in working memory.
        statements: its instructions.
        places: see `ChannelWalk.places`.
        words: of a channel's weights.
        elements, rows: outputs (pairs of them) in a turn, and C of the rows of each.
        turn: words of inputs, and outputs, from one turn to the next.
        step: the same from one element to the next.
        row: outputs from one row to the next.
        factor: what sums are multiplied by before their bias is added.
        taps: of the window.
        columns: of the window.
        output: what makes outputs of sums.
    """

    single: bool
    down: bool
    stored: int
    statements: tuple[tuple[str, ...], ...]
    places: tuple[int, ...]
    words: int
    elements: int
    rows: str
    turn: tuple[int, int]
    step: tuple[int, int]
    row: int
    factor: int
    taps: int
    columns: int
    output: OutputDefinition


@dataclass(frozen=True)
class ChannelWalk:
    """How the outputs of one channel are gone through: groups along one axis, in an outer loop.

    Attributes:
        window: its geometry.
        scaling: how sums become outputs.
        size: height and width of the output.
        stored: words of a column in working memory.
        down: whether groups are vertical; else they are horizontal.
        most: outputs (pairs of outputs) in a group.
        single: whether only the first of every two output rows is made.
    """

    window: Window
    scaling: DspScaling
    size: tuple[int, int]
    stored: int
    down: bool
    most: int
    single: bool = False

    @property
    def rows(self) -> int:
        """Output rows that one column of inputs serves."""
        return 2 if self.window.stride[0] == 1 and self.size[0] > 1 else 1

    @property
    def advance(self) -> int:
        """Words of a column from one strip of outputs to the next."""
        return 1 if self.rows == 2 else self.window.stride[0] // 2

    @property
    def strips(self) -> int:
        """Strips of `rows` output rows each."""
        return -(-self.size[0] // self.rows)

    @property
    def step(self) -> int:
        """Words of inputs from one element of a group to the next."""
        return self.advance if self.down else self.window.stride[1] * self.stored

    @property
    def out_step(self) -> int:
        """Outputs from one element of a group to the next."""
        return self.rows * self.row_bytes if self.down else self.window.outputs

    @property
    def row_bytes(self) -> int:
        """Bytes of an output row."""
        return self.size[1] * self.window.outputs

    @property
    def groups(self) -> tuple[tuple[int, int, int], ...]:
        """Groups, each with: how many alike, elements, rows of outputs."""
        count = self.size[0] // self.rows if self.down else self.size[1]
        rows = 1 if self.single else self.rows
        found = [(count // self.most, self.most, rows), (1, count % self.most, rows)]
        if self.down and self.size[0] % self.rows:
            found.append((1, 1, 1))
        return tuple(group for group in found if group[0] and group[1])

    @property
    def fits(self) -> bool:
        """Whether all offsets fit into instructions."""
        reach = (self.most - 1) * self.step + (self.window.kernel[1] - 1) * self.stored
        words = input_words(self.window.kernel[0], self.rows)
        stores = (self.most - 1) * self.out_step
        weights = 4 * len(self.order) + 12
        return 4 * (reach + words) <= _FARTHEST and stores <= 4095 and weights <= _FARTHEST

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """How taps are multiplied."""
        return batches(self.window.kernel, self.rows)

    @property
    def order(self) -> tuple[tuple[int, int, int], ...]:
        """Column and taps of each word of a channel's weights."""
        return tuple((batch.column, *word) for batch in self.batches for word in batch.taps)

    @property
    def places(self) -> list[int]:
        """For each tap, row by row, the halfword of the channel's weights that holds it."""
        height, width = self.window.kernel
        found = {
            (t, c): 2 * i + h for i, (c, *taps) in enumerate(self.order) for h, t in enumerate(taps)
        }
        return [found[row, column] for row in range(height) for column in range(width)]

    @property
    def channel_words(self) -> int:
        """Words of weights and of what requantizes, of a channel."""
        return len(self.order) + self.scaling.rows.shape[1]

    @cached_property
    def body(self) -> tuple[OutputGroup, ...]:
        """The groups."""
        found: list[OutputGroup] = []
        for alike, count, rows in self.groups:
            size = 4 * count * self.step
            move = [*add("r8", count * self.out_step), "str r8, [sp]", *add("r11", size)]
            end = add("r9", alike * size, "r8")
            found.append(OutputGroup(alike, self._group(count, rows), move, end))
        return tuple(found)

    @property
    def elements(self) -> int:
        """Outputs (pairs of them) in a turn of the outer loop."""
        return sum(alike * count for alike, count, _ in self.groups)

    @property
    def rows_text(self) -> str:
        """C expression of the rows of outputs of element `i`."""
        rows = {rows for _, _, rows in self.groups}
        if len(rows) == 1:
            return str(rows.pop())
        return f"i < {self.elements - 1} ? 2 : 1"

    @property
    def turn(self) -> tuple[int, int]:
        """Words of inputs, and outputs, from one turn of the outer loop to the next."""
        if self.down:
            return self.window.stride[1] * self.stored, self.window.outputs
        return self.advance, self.rows * self.row_bytes

    @property
    def back(self) -> list[str]:
        """Instructions from the end of one turn of the outer loop to the start of the next."""
        by, out = self.turn
        inputs, outputs = self.elements * self.step, self.elements * self.out_step
        return [*add("r11", 4 * (by - inputs)), *add("r8", out - outputs), "str r8, [sp]"]

    @property
    def statements(self) -> tuple[tuple[str, ...], ...]:
        """The function's instructions in pieces: ISO C promises strings of 4095 characters."""
        lines = ["push {r4-r11, lr}", "sub sp, sp, #20", "mov r11, r0", "mov r10, r1"]
        lines += ["str r2, [sp]", "str r3, [sp, #8]"]
        if self.scaling.signed:
            lines += [*word("r0", self.scaling.addend), "str r0, [sp, #12]"]
        lines.append("1:")
        found: list[list[str]] = [lines]
        for group in self.body:
            alike = group.alike > 1
            if alike:
                found[-1] += ["mov r9, r11", *group.end, "str r9, [sp, #4]", "2:"]
            starts = range(0, len(group.lines), _PIECE)
            found += [group.lines[i : i + _PIECE] for i in starts]
            found.append([*group.move, *(["ldr r9, [sp, #4]", "cmp r11, r9", "bne 2b"] * alike)])
        found[-1] += [*self.back, "ldr r9, [sp, #8]", "subs r9, r9, #1", "str r9, [sp, #8]"]
        found[-1] += ["bne 1b", "add sp, sp, #20", "pop {r4-r11, pc}"]
        return tuple(map(tuple, found))

    @property
    def function(self) -> ChannelFunctionParameters:
        """What a template has of it."""
        return ChannelFunctionParameters(
            single=self.single,
            down=self.down,
            stored=self.stored,
            statements=self.statements,
            places=tuple(self.places),
            words=len(self.order),
            elements=self.elements,
            rows=self.rows_text,
            turn=self.turn,
            step=(self.step, self.out_step),
            row=self.row_bytes,
            factor=1 << self.scaling.left,
            taps=self.window.taps,
            columns=self.window.kernel[1],
            output=self.scaling.definition,
        )

    @property
    def cost(self) -> int:
        """Instructions of one channel, about."""
        turns = self.size[1] if self.down else self.strips
        body = sum(group.alike * (len(group.lines) + len(group.move) + 3) for group in self.body)
        return turns * (body + len(self.back) + 6)

    def _group(self, count: int, rows: int) -> list[str]:
        """Instructions that make `count` outputs, or `rows` rows of them."""
        lines: list[str] = []
        position = 0
        started: set[str] = set()
        for batch in self.batches:
            names = dict(zip(batch.taps, ("r12", "lr"), strict=False))
            lines.append(_load(list(names.values()), "r10", 4 * position))
            position += len(batch.taps)
            used = [(i, ops[:rows]) for i, ops in zip(batch.inputs, batch.operations, strict=True)]
            used = [(i, ops) for i, ops in used if any(op is not None for op in ops)]
            for j in range(count):
                at = 4 * (j * self.step + batch.column * self.stored + used[0][0])
                inputs = ["r8", "r9"][: len(used)]
                lines.append(_load(inputs, "r11", at))
                for (_, ops), x in zip(used, inputs, strict=True):
                    for row, op in enumerate(ops):
                        if op is not None:
                            total = f"r{row * count + j}"
                            lines.append(_product(op[0], total, x, names[op[1]], started))
        return [*lines, *self._finish(count, rows, 4 * position)]

    def _finish(self, count: int, rows: int, at: int) -> list[str]:
        """Instructions from sums to stored outputs."""
        s = self.scaling
        totals = [f"r{i}" for i in range(count * rows)]
        shift = f", lsl #{s.left}" if s.left else ""
        lines: list[str] = []
        if s.signed:
            lines += [f"ldr r8, [r10, #{at}]", f"ldr r12, [r10, #{at + 4}]"]
            lines += [f"ldr lr, [r10, #{at + 8}]"]
            lines += [f"add {r}, r8, {r}{shift}" for r in totals]
            lines += ["ldr r8, [sp, #12]"]
            multiplier = "r12"
        else:
            lines += [f"ldrd r12, lr, [r10, #{at}]"]
            lines += [f"add {r}, r12, {r}{shift}" for r in totals]
            multiplier = "lr"
        for r in totals:
            lines += s.product(r, multiplier, "lr", "r9", "r8")
        for r in totals:
            lines += s.saturated(r)
        lines.append("ldr r8, [sp]")
        lower = (count - 1) * self.out_step + self.row_bytes > 4095
        if rows == 2 and lower:
            lines += [*word("r9", self.row_bytes), "add r9, r9, r8"]
        for i, r in enumerate(totals):
            row, j = divmod(i, count)
            base = "r9" if row and lower else "r8"
            offset = j * self.out_step + (self.row_bytes if row and not lower else 0)
            lines.append(f"strb {r}, [{base}, #{offset}]")
        return lines

    def packed(self, weights: Array) -> Array:
        """int32: weights `[o, kh, kw]` and the scaling, channel after channel."""
        padded = np.concatenate([weights.astype(np.int64), np.zeros_like(weights[:, :1])], axis=1)
        low = np.stack([padded[:, a, c] for c, a, _ in self.order], axis=1)
        high = np.stack([padded[:, b, c] for c, _, b in self.order], axis=1)
        words = (low & 0xFFFF) | (high & 0xFFFF) << 16
        whole = np.concatenate([words, self.scaling.rows], axis=1)
        return whole.astype(np.uint64).astype(np.uint32).view(np.int32).ravel()


def _load(registers: Sequence[str], base: str, offset: int) -> str:
    if len(registers) == 1:
        return f"ldr {registers[0]}, [{base}, #{offset}]"
    return f"ldrd {registers[0]}, {registers[1]}, [{base}, #{offset}]"


def _product(halves: str, total: str, x: str, w: str, started: set[str]) -> str:
    """A product, which the first time starts a sum."""
    if total in started:
        return f"smla{'d' if halves == 'ad' else halves} {total}, {x}, {w}, {total}"
    started.add(total)
    return f"smu{'ad' if halves == 'ad' else 'l' + halves} {total}, {x}, {w}"

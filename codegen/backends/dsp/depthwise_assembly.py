"""Assembly of depthwise convolutions: the outputs of a channel, block by block.

The function takes all sizes of a layer as arguments, so that layers with equal window, stride,
shifts and limits share it. The inputs of a channel are in scratch, in rows of words (see
`depthwise_products`); each input is multiplied by 256. Weights are shifted to the left too, as far
as 16 bits permit. If that replaces the whole left shift of sums, a sum starts with the bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from smelt.codegen.backends.dsp.assembly import span
from smelt.codegen.backends.dsp.depthwise_products import BlockProduct, OutputBlock, neighbors
from smelt.codegen.backends.dsp.depthwise_registers import (
    OutputSums,
    WeightRegisters,
    loaded_or_stored,
)
from smelt.codegen.backends.dsp.scaling import DspScaling

INPUT_SHIFT = 8
"""Left shift of inputs in scratch; widening shifts them without an additional instruction."""

_HELD = 10
"""Number of registers for weights, two words of inputs and addresses; four more contain sums."""

_FARTHEST = 1020
"""The largest offset of LDRD, in bytes."""

_OUT, _ROW, _PIXEL, _END, _BIAS, _MULTIPLIER, _LOWER, _ADDEND = range(0, 32, 4)
_STRIPS, _SINGLE, _NEXT_OUT, _NEXT_INPUTS, _SPAN, _SPILLED = range(32, 56, 4)
_ALL_STRIPS, _FULL_ROW, _WEIGHTS, _PAIRS, _PLANE, _PAIR_ROW, _FIRST, _LEFT = range(64, 96, 4)
_FRAME = 96
"""Offsets of variables on the stack, and their size in bytes. LDRD and STRD access two of them.

A comment of the template says what they are.
"""


@dataclass(frozen=True)
class ChannelCode:
    """The function that computes the outputs of channels.

    Attributes:
        block: outputs that are computed together.
        scaling: the requantization; only its form, right shift and limits are used.
        rest: left shift (negative: right) of sums before the bias is added; if 0, sums start with
            the bias.
        vertical: whether the image has one column; the second column of a block is then the
            outputs two rows below the first.
    """

    block: OutputBlock
    scaling: DspScaling
    rest: int
    vertical: bool

    @property
    def fits(self) -> bool:
        """Whether all offsets fit into instructions."""
        reach = 2 * self.block.stride[1] + self.block.kernel[1]
        return 4 * max(reach, len(self.block.weights)) <= _FARTHEST

    @property
    def constants(self) -> int:
        """Words of a channel's requantization constants, which precede its weights."""
        return self.scaling.rows.shape[1]

    @property
    def held(self) -> bool:
        """Whether all weights stay in registers; otherwise, they are loaded when needed."""
        return len(self.block.weights) + 2 + self.block.pairs <= _HELD

    @cached_property
    def lines(self) -> list[str]:
        """The instructions of the function."""
        return [
            *self._prologue,
            "0:",
            *self._channel,
            "1:",
            *self._strip,
            "2:",
            *self._block(2),
            "beq 4f",
            "3:",
            *self._block(1),
            "4:",
            *self._next_strip,
            "5:",
            *self._single_row,
            "6:",
            f"ldr r0, [sp, #{_LEFT}]",
            "subs r0, r0, #1",
            f"str r0, [sp, #{_LEFT}]",
            "bne 0b",
            f"add sp, sp, #{_FRAME}",
            "pop {r4-r11, pc}",
        ]

    @property
    def registers(self) -> str:
        """The contents of registers while products are summed, for a comment."""
        inputs = f"{', '.join(self._inputs)}: inputs"
        if not self.held:
            rows = "r11: bytes to the next row of pairs; r12: row of pairs; lr: all weights"
            return f"r0-r3: sums; r4-r8: weights; {inputs}; {rows}"
        weights = span(4, len(self.block.weights))
        rows = f"{', '.join(self._rows)}: row{'s' * (self.block.pairs > 1)} of pairs"
        return f"r0-r3: sums; {weights}: weights; {inputs}; {rows}"

    def instructions(self, strips: int, columns: int) -> int:
        """Return approximately how many instructions are executed for a channel."""
        blocks = columns // 2 * len(self._block(2)) + columns % 2 * len(self._block(1))
        around = 1 + len(self._strip) + len(self._next_strip)
        once = len(self._prologue) // 4 + len(self._channel) + 8
        return once + strips * (blocks + around)

    @property
    def _inputs(self) -> tuple[str, str]:
        """Registers for two words of inputs."""
        first = 4 + len(self.block.weights) if self.held else 9
        return f"r{first}", f"r{first + 1}"

    @property
    def _rows(self) -> tuple[str, ...]:
        """Registers with the address of each row of pairs; if not `held`, one for all rows."""
        if not self.held:
            return ("r12",)
        return tuple(f"r{14 - i}" if i > 1 else "lr" for i in range(self.block.pairs, 0, -1))

    @cached_property
    def _prologue(self) -> list[str]:
        """Instructions at the start of the function that store variables on the stack."""
        lines = ["push {r4-r11, lr}", f"sub sp, sp, #{_FRAME}", f"add r12, sp, #{_FRAME + 36}"]
        lines += ["ldm r12, {r4-r6}", "ldm r3, {r7-r10}"]
        lines += ["ldr r3, [r3, #16]", f"str r3, [sp, #{_ADDEND}]"] if self.scaling.signed else []
        lines += ["lsl r7, r7, #1"] if self.vertical else []
        lines += [f"str r7, [sp, #{_PIXEL}]", f"strd r1, r0, [sp, #{_WEIGHTS}]"]
        lines += [f"strd r2, r6, [sp, #{_FIRST}]", "and r11, r5, #1", "lsr r5, r5, #1"]
        lines += ["mul r7, r7, r5", "sub r7, r10, r7", "lsl r7, r7, #1"]
        lines += _scaled("r5", "r5", 8 * self.block.stride[1])
        lines.append("lsl r8, r8, #2")
        if self.block.advance == 1:
            lines.append("sub r12, r8, r5")
        else:
            lines += [*_scaled("r12", "r8", self.block.advance), "sub r12, r12, r5"]
        lines.append("lsl r9, r9, #2")
        lines += [f"strd r7, r12, [sp, #{_NEXT_OUT}]", "sub r5, r5, r11", f"str r5, [sp, #{_SPAN}]"]
        lines += [f"strd r9, r8, [sp, #{_PLANE}]"]
        if self.block.rows == 2:
            lines += ["and r3, r4, #1", "rsb r3, r3, #0", f"str r3, [sp, #{_SINGLE}]"]
            lines.append("lsr r4, r4, #1")
        return [*lines, f"strd r4, r10, [sp, #{_ALL_STRIPS}]"]

    @cached_property
    def _channel(self) -> list[str]:
        """Instructions at the start of a channel."""
        lines = [f"ldrd r1, r0, [sp, #{_WEIGHTS}]", f"ldrd r2, r3, [sp, #{_PLANE}]"]
        lines.append("add r2, r0, r2")
        if self.scaling.signed:
            lines += ["ldm r1!, {r4-r6}", f"str r6, [sp, #{_LOWER}]"]
        else:
            lines.append("ldm r1!, {r4, r5}")
        lines.append(f"strd r4, r5, [sp, #{_BIAS}]")
        words = len(self.block.weights)
        if self.held:
            lines += [f"mov {self._rows[0]}, r0"]
            for before, register in zip(self._rows, self._rows[1:], strict=False):
                lines.append(f"add {register}, {before}, r3")
            lines.append(f"ldm r1!, {{r4-r{3 + words}}}" if words > 1 else "ldr r4, [r1], #4")
        else:
            lines += ["mov r12, r0", "mov r11, r3", "mov lr, r1", f"add r1, r1, #{4 * words}"]
        lines += [f"strd r1, r2, [sp, #{_WEIGHTS}]", f"ldrd r0, r1, [sp, #{_ALL_STRIPS}]"]
        lines += [f"ldr r2, [sp, #{_FIRST}]", "add r3, r2, #1", f"str r3, [sp, #{_FIRST}]"]
        lines += [f"strd r2, r1, [sp, #{_OUT}]", f"str r0, [sp, #{_STRIPS}]"]
        return [*lines, "cmp r0, #0", "beq 5f"] if self.block.rows == 2 else lines

    @property
    def _strip(self) -> list[str]:
        """Instructions at the start of a strip.

        They store `_END`: the address that the first row of pairs has after the last block of two
        columns, minus 1 if a last single column follows.
        """
        return [
            f"ldr r0, [sp, #{_SPAN}]",
            f"add r0, {self._rows[0]}, r0",
            f"str r0, [sp, #{_END}]",
            f"cmp {self._rows[0]}, r0",
            "bhi 3f",
        ]

    @property
    def _single_row(self) -> list[str]:
        """Instructions that compute the last output row if the number of rows is odd.

        The strip still computes two rows. Both are stored at the same address, because `_ROW`
        becomes 0: first the lower row, then the upper one, which is right.
        """
        if self.block.rows == 1:
            return []
        return [
            f"ldr r0, [sp, #{_SINGLE}]",
            f"ldr r1, [sp, #{_ROW}]",
            "ands r0, r0, r1",
            "beq 6f",
            "mov r0, #0",
            f"str r0, [sp, #{_ROW}]",
            "mov r0, #1",
            f"str r0, [sp, #{_STRIPS}]",
            "b 1b",
        ]

    @property
    def _next_strip(self) -> list[str]:
        """Instructions between two strips, and the branch back.

        The register of the first word of inputs contains the output address after the last block.
        """
        out = self._inputs[0]
        return [
            f"ldrd r0, r1, [sp, #{_NEXT_OUT}]",
            *(f"add {row}, {row}, r1" for row in self._rows),
            f"add {out}, {out}, r0",
            f"str {out}, [sp, #{_OUT}]",
            f"ldr r0, [sp, #{_STRIPS}]",
            "subs r0, r0, #1",
            f"str r0, [sp, #{_STRIPS}]",
            "bne 1b",
        ]

    def _block(self, columns: int) -> list[str]:
        """Return the instructions for a block of one column, or two with the branch back."""
        pairs = range(self.block.pairs)
        products = [self._ordered(pair, columns) for pair in pairs]
        starts = list(dict.fromkeys(p.output for row in products for p in row))
        sums = OutputSums(columns, None if self.rest else starts[-1])
        lines = [] if self.rest else [f"ldr {sums.register(starts[-1])}, [sp, #{_BIAS}]"]
        cache = WeightRegisters(self.block, self.held)
        for pair in pairs:
            if pair and not self.held:
                lines.append("add r12, r12, r11")
            lines += self._row_of_pairs(pair, products[pair], columns, sums, cache)
        if not self.held:
            back = self.block.pairs - 1
            lines += [f"sub r12, r12, r11, lsl #{i}" for i in range(8) if back >> i & 1]
            lines += [f"add r12, r12, #{8 * self.block.stride[1]}"] if columns == 2 else []
        return [*lines, *self._finish(columns), *self._store(columns)]

    def _ordered(self, pair: int, columns: int) -> list[BlockProduct]:
        """Return the products of a row of pairs, in the order of computation.

        If the row's address must advance, the first columns come last: their load has offset 0, so
        it can advance the address.
        """
        found = self.block.products(pair, columns)
        if not self.held or columns == 1 or not found:
            return found
        first = neighbors(sorted({p.column for p in found}))[0]
        return sorted(found, key=lambda p: (p.column in first, p.column))

    def _row_of_pairs(
        self,
        pair: int,
        products: Sequence[BlockProduct],
        columns: int,
        sums: OutputSums,
        cache: WeightRegisters,
    ) -> list[str]:
        """Return the instructions that load inputs of a row of pairs, and multiply them."""
        base = self._rows[pair] if self.held else "r12"
        moves = self.held and columns == 2
        step = 8 * self.block.stride[1]
        groups = neighbors(list(dict.fromkeys(p.column for p in products)))
        if not groups:
            return [f"add {base}, {base}, #{step}"] if moves else []
        lines: list[str] = []
        for group in groups:
            address = f"[{base}, #{4 * group[0]}]"
            if moves and group is groups[-1]:
                address = f"[{base}], #{step}"
            lines += loaded_or_stored("ldr", self._inputs[: len(group)], address)
            for column, x in zip(group, self._inputs, strict=False):
                here = [p for p in products if p.column == column]
                lines += cache.load([p.weights for p in here])
                lines += [sums.add(p, x, cache.registers[p.weights]) for p in here]
        return lines

    def _finish(self, columns: int) -> list[str]:
        """Return the instructions that requantize the sums of a block."""
        s, totals = self.scaling, [f"r{i}" for i in range(columns * self.block.rows)]
        x, y = self._inputs
        lines: list[str] = []
        if self.rest:
            shift = f"lsl #{self.rest}" if self.rest > 0 else f"asr #{-self.rest}"
            lines.append(f"ldr {x}, [sp, #{_BIAS}]")
            lines += [f"add {r}, {x}, {r}, {shift}" for r in totals]
        lines.append(f"ldr {x}, [sp, #{_MULTIPLIER}]")
        if s.signed:
            free = self._free(len(totals))
            spilled = self._rows[: max(2 - len(free), 0)]
            lower, spare = (*free, *spilled)[:2]
            lines += loaded_or_stored("str", spilled, f"[sp, #{_SPILLED}]")
            lines += loaded_or_stored("ldr", (lower, y), f"[sp, #{_LOWER}]")
            for r in totals:
                lines += s.product(r, x, lower, spare, y)
            lines += loaded_or_stored("ldr", spilled, f"[sp, #{_SPILLED}]")
        else:
            for r in totals:
                lines += s.product(r, x)
        for r in totals:
            lines += s.saturated(r)
        return lines

    def _free(self, totals: int) -> list[str]:
        """Return the registers that are free after the products of a block of `totals` sums."""
        weights = len(self.block.weights) if self.held else 0
        sums = {f"r{i}" for i in range(totals)} | {f"r{4 + i}" for i in range(weights)}
        fixed = {*self._inputs, *self._rows, *(() if self.held else ("r11", "lr"))}
        return [r for r in (*(f"r{i}" for i in range(13)), "lr") if r not in sums | fixed]

    def _store(self, columns: int) -> list[str]:
        """Return the instructions that store outputs, the lower row first (see `_single_row`)."""
        x, y = self._inputs
        pixel, end = ("r0", f"r{columns}") if self.block.rows == 2 else (y, "r0")
        lines = [f"ldrd {x}, {y}, [sp, #{_OUT}]"]
        if self.block.rows == 1:
            lines = [f"ldr {x}, [sp, #{_OUT}]"]
        for j in range(columns):
            lines += [f"strb r{columns + j}, [{x}, {y}]"] if self.block.rows == 2 else []
            lines.append(f"strb r{j}, [{x}]")
            if columns == 2:
                lines += [f"ldrd {pixel}, {end}, [sp, #{_PIXEL}]"] if j == 0 else []
                lines.append(f"add {x}, {x}, {pixel}")
        if columns == 2:
            lines += [f"str {x}, [sp, #{_OUT}]", f"cmp {self._rows[0]}, {end}", "blo 2b"]
        return lines


def _scaled(target: str, source: str, factor: int) -> list[str]:
    """Return the instructions that multiply a register by a number; they may change r3."""
    if factor & (factor - 1) == 0:
        return [f"lsl {target}, {source}, #{factor.bit_length() - 1}"]
    return [f"mov r3, #{factor}", f"mul {target}, {source}, r3"]

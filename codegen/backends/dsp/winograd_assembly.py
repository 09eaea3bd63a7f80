"""Assembly that computes outputs from transformed inputs (see `winograd`).

Registers while products are summed:
    r0-r3: sums; r4-r7: inputs; r8, r9, r12, lr: weights; r10, r11: next inputs and weights
Stack: end of the inputs, inputs, next output, end of the weights, addend
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.backends.dsp.assembly import add, repeated, two_products, word
from smelt.codegen.backends.dsp.scaling import DspScaling
from smelt.codegen.backends.dsp.tile_assembly import shifted
from smelt.codegen.backends.dsp.winograd_inputs import InputTransform

_WEIGHTS = ("r8", "r9", "r12", "lr")


@dataclass(frozen=True)
class TileOutputs:
    """Assembly for all outputs of the tiles whose transformed inputs are in scratch.

    Attributes:
        inputs: the transform of the inputs.
        scaling: the requantization.
        outputs: output channels.
        pair_words: words of weights and constants of two output channels.
        row_bytes: bytes of an output row.
    """

    inputs: InputTransform
    scaling: DspScaling
    outputs: int
    pair_words: int
    row_bytes: int

    @property
    def start(self) -> tuple[str, ...]:
        """Instructions before the first column of positions of two channels."""
        lines = ["push {r4-r11, lr}", "sub sp, sp, #20", "mov r11, r1", "str r2, [sp, #8]"]
        lines += ["str r0, [sp, #4]", *add("r0", 64 * self.inputs.stride), "str r0, [sp, #0]"]
        lines += [*add("r1", 2 * self.outputs * self.pair_words), "str r1, [sp, #12]"]
        if self.scaling.signed:
            lines += [*word("r0", self.scaling.addend), "str r0, [sp, #16]"]
        return (*lines, "1:", "ldr r10, [sp, #4]")

    @property
    def inner(self) -> tuple[str, ...]:
        """Instructions for rows 1 and 2 of a column of positions: they push m1, then m1 + m2.

        m0 to m3 are the sums of the products at the column's four positions.
        """
        push = f"push {{r0-r{self._sums - 1}}}"
        return ("2:", *self._position(start=True), push, *self._position(start=False), push)

    @property
    def outer(self) -> tuple[str, ...]:
        """Instructions for rows 0 and 3 of a column of positions, with the branch back.

        They replace m1 and m1 + m2 on the stack by the sums of both output rows:

            upper = m1 + m2 + m0
            lower = 2 * m1 - (m1 + m2) + m3 = m1 - m2 + m3
        """
        push = f"push {{r0-r{self._sums - 1}}}"
        both, first = ("r4", "r5", "r6", "r7"), _WEIGHTS
        loaded = "r4-r9, r12, lr" if self.inputs.tiles == 2 else "r4, r5, r8, r9"
        lines = [*self._position(start=False), f"pop {{{loaded}}}", push]
        lines += [f"rsb r{i}, {both[i]}, {first[i]}, lsl #1" for i in range(self._sums)]
        lines += [*self._position(start=False), push]
        lines += [f"ldr r4, [sp, #{self._column - 4}]", "cmp r10, r4", "str r4, [sp, #-4]!"]
        return (*lines, "bne 2b")

    def channel(self, o: int) -> tuple[str, ...]:
        """Return the instructions that compute the outputs of channel `o`, 0 or 1, of a pair."""
        tiles, scaling = self.inputs.tiles, self.scaling
        found = ("r0", "r1", "r4", "r5", "r2", "r3", "r8", "r9")[: 4 * tiles]
        lines = self._tile(o * tiles, ("r0", "r1", "r2", "r3"), ("r4", "r5", "r6", "r7"))
        if tiles == 2:
            lines += self._tile(o * tiles + 1, ("r2", "r3", "r6", "r7"), _WEIGHTS)
        if scaling.signed:
            lines += ["ldm r11!, {r6, r7, r12}", f"ldr lr, [sp, #{4 * self._column + 16}]"]
        else:
            lines.append("ldrd r6, r7, [r11], #8")
        for y in found:
            lines.append(f"add {y}, r6, {y}{shifted(scaling.left - 2)}")
            lines += [*scaling.product(y, "r7", "r12", "r10", "lr"), *scaling.saturated(y)]
        lines.append(f"ldr r10, [sp, #{4 * self._column + 8}]")
        near = self.row_bytes + 4 * self.outputs <= 4096
        if not near:
            lines += ["mov r6, r10", *add("r6", self.row_bytes, "r12")]
        for i, y in enumerate(found):
            row, at = i // 2 % 2, o + (i // 4 * 2 + i % 2) * self.outputs
            base = "r6" if row and not near else "r10"
            lines.append(f"strb {y}, [{base}, #{at + (row * self.row_bytes if near else 0)}]")
        return tuple(lines)

    @property
    def end(self) -> tuple[str, ...]:
        """Instructions that go on to the next two channels, or return."""
        lines = [f"add sp, sp, #{4 * self._column}", "add r10, r10, #2", "ldr r4, [sp, #12]"]
        lines += ["str r10, [sp, #8]", "cmp r11, r4", "bne 1b", "add sp, sp, #20"]
        return (*lines, "pop {r4-r11, pc}")

    @property
    def _sums(self) -> int:
        """Sums of a position: one for each tile and each of two output channels."""
        return 2 * self.inputs.tiles

    @property
    def _column(self) -> int:
        """Bytes of a column on the stack: the end of the inputs and the sums of two output rows."""
        return 4 + 8 * self._sums

    def _position(self, *, start: bool) -> list[str]:
        """Return the instructions that sum the products of one position.

        Args:
            start: whether the sums start with these products; otherwise, they are added.
        """
        rest = self.inputs.depth * self.inputs.tiles // 8 - start
        lines = self._products(first=True) if start else []
        more = self._products(first=False)
        return lines + (repeated(rest, more) if rest != 1 else more)

    def _products(self, *, first: bool) -> list[str]:
        """Return the instructions that load four words of inputs and add their products."""
        lines = ["ldm r10!, {r4-r7}"]
        weights = f"ldm r11!, {{{', '.join(_WEIGHTS)}}}"
        if self.inputs.tiles == 1:
            for o in range(2):
                lines.append(weights)
                for i, w in enumerate(_WEIGHTS):
                    lines.append(two_products(f"r{o}", w, f"r{4 + i}", first=first and i == 0))
            return lines
        lines.append(weights)
        for i in range(4):
            total, (a, b), x = f"r{i}", _WEIGHTS[i // 2 * 2 :][:2], 4 + i % 2 * 2
            lines.append(two_products(total, a, f"r{x}", first=first))
            lines.append(two_products(total, b, f"r{x + 1}", first=False))
        return lines

    def _tile(self, total: int, upper: Sequence[str], lower: Sequence[str]) -> list[str]:
        """Return the instructions that compute a tile's four sums from those of its columns.

        Args:
            total: number of the sum at each position.
            upper: four registers for the upper output row; its sums are then in the first two.
            lower: four registers for the lower output row, likewise.
        """
        lines: list[str] = []
        for row, names in enumerate((upper, lower)):
            for column, name in enumerate(names):
                # Each column pushed the sum of the upper output row first.
                at = (3 - column) * self._column + 4 + 4 * ((1 - row) * self._sums + total)
                lines.append(f"ldr {name}, [sp, #{at}]")
        for a, b, c, d in (upper, lower):
            lines += [f"add {a}, {b}, {a}, lsl #1", f"add {a}, {a}, {c}", f"sub {b}, {b}, {c}"]
            lines.append(f"sub {b}, {b}, {d}, lsl #1")
        return lines

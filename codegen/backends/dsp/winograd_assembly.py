"""Assembly that makes outputs of transformed inputs (see `winograd`).

While products are summed, r0-r3 hold sums, r4-r7 inputs, r8, r9, r12 and lr weights, r10 and r11
where inputs and weights are. On the stack: end of the inputs, inputs, output, end of the weights,
addend.
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
    """Assembly for all outputs of the tiles whose transformed inputs are in working memory.

    Attributes:
        inputs: how inputs are transformed.
        scaling: how sums become outputs.
        outputs: channels.
        pair_words: words of two output channels.
        row_bytes: bytes of an output row.
    """

    inputs: InputTransform
    scaling: DspScaling
    outputs: int
    pair_words: int
    row_bytes: int

    @property
    def start(self) -> tuple[str, ...]:
        """Instructions up to the first column of positions of two channels."""
        lines = ["push {r4-r11, lr}", "sub sp, sp, #20", "mov r11, r1", "str r2, [sp, #8]"]
        lines += ["str r0, [sp, #4]", *add("r0", 64 * self.inputs.stride), "str r0, [sp, #0]"]
        lines += [*add("r1", 2 * self.outputs * self.pair_words), "str r1, [sp, #12]"]
        if self.scaling.signed:
            lines += [*word("r0", self.scaling.addend), "str r0, [sp, #16]"]
        return (*lines, "1:", "ldr r10, [sp, #4]")

    @property
    def inner(self) -> tuple[str, ...]:
        """Instructions for the positions of a column that both rows of outputs need."""
        push = f"push {{r0-r{self._sums - 1}}}"
        return ("2:", *self._position(start=True), push, *self._position(start=False), push)

    @property
    def outer(self) -> tuple[str, ...]:
        """Instructions for the other positions, and from a column to the next.

        The upper sums are added up; the lower ones start with twice the first less that of both.
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
        """Instructions for the outputs of one of the two channels."""
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
        """Sums of a position: of two output channels of each tile."""
        return 2 * self.inputs.tiles

    @property
    def _column(self) -> int:
        """Bytes on the stack for a column: the end of inputs, the sums of both rows of outputs."""
        return 4 + 8 * self._sums

    def _position(self, *, start: bool) -> list[str]:
        """Instructions that add the products of one position, or begin the sums with them."""
        rest = self.inputs.depth * self.inputs.tiles // 8 - start
        lines = self._products(first=True) if start else []
        more = self._products(first=False)
        return lines + (repeated(rest, more) if rest != 1 else more)

    def _products(self, *, first: bool) -> list[str]:
        """Instructions that load four words of inputs, and add their products."""
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
        """Instructions for the four sums of a tile.

        They end up in the first two registers of either row of outputs.
        """
        lines: list[str] = []
        for row, names in enumerate((upper, lower)):
            for column, name in enumerate(names):
                # Every column pushed the upper row of outputs first.
                at = (3 - column) * self._column + 4 + 4 * ((1 - row) * self._sums + total)
                lines.append(f"ldr {name}, [sp, #{at}]")
        for a, b, c, d in (upper, lower):
            lines += [f"add {a}, {b}, {a}, lsl #1", f"add {a}, {a}, {c}", f"sub {b}, {b}, {c}"]
            lines.append(f"sub {b}, {b}, {d}, lsl #1")
        return lines

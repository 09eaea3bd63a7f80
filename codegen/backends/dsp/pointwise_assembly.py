"""Assembly of 1x1 convolutions that reads all sizes of a layer from a struct.

One function computes the whole layer. It widens the inputs of a few pixels, then computes all their
output channels (see `tile`). Code for the longest sum is written out without a loop. A computed
jump, which is one instruction, enters it as far before its end as the sums of the layer are long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smelt.codegen.backends.dsp.assembly import assembled, repeated, span
from smelt.codegen.backends.dsp.tile import DspTile
from smelt.codegen.backends.dsp.tile_assembly import accumulated, scaled_pair
from smelt.codegen.lower.kernel import BodyCost

FIELDS = {
    "pixels": "of all images",
    "depth": "channels of the input",
    "outputs": "channels of the output",
    "addend": "added to products before the last shift",
}
"""Fields of the struct and their meanings; the last one is for the signed form."""

_LONGEST = 20
"""Upper limit of the groups of three words that are written out without a loop."""

_LOOPED = {"speed": 6, "size": 1, "ram": 6}
"""Groups of three words in an iteration of the loop: of longer sums; without `speed`, of all."""

_WIDENED = {"speed": 3, "size": 0, "ram": 3}
"""Values of `PointwiseBody.log_widened`."""

_FRAME = 84
"""Bytes of variables on the stack; nine saved registers follow."""

_OUT, _END, _PATCH, _HEAD, _CHAIN, _PAIRS_END, _ALL_END = 0, 12, 16, 20, 24, 28, 32
_WEIGHTS, _DEPTH, _LAST_OUT, _OUT_END, _NEXT_IN = 36, 44, 52, 56, 60
_ITERATIONS, _WIDEN, _TAIL, _PATCH_END, ADDEND = 64, 68, 72, 76, 80
"""Offsets of variables on the stack. One instruction loads those from `_OUT` to `_HEAD`. The word
after `_WEIGHTS` is the patch again, the word after `_DEPTH` the number of output channels."""


@dataclass(frozen=True)
class PointwiseParts:
    """The instructions of a body, in order; the template puts a comment before each part.

    Attributes:
        setup: Instructions that compute sizes and addresses once for a layer.
        group: Instructions that widen the inputs of a group of pixels.
        heads: Instructions that start the sums of two channels with one, two or three words.
        chain: Instructions that add the products of all further words.
        finish: Instructions that requantize the sums and go on to the next two channels.
        end: Instructions after the last whole pair of channels, and after the last whole group.
    """

    setup: tuple[str, ...]
    group: tuple[str, ...]
    heads: tuple[str, ...]
    chain: tuple[str, ...]
    finish: tuple[str, ...]
    end: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """All instructions."""
        first = self.setup + self.group + self.heads
        return first + self.chain + self.finish + self.end


@dataclass(frozen=True)
class PointwiseBody:
    """A body for 1x1 convolutions with equal shifts and limits.

    Attributes:
        tile: the tile of one layer; its sizes are not in the instructions, except that its sum is
            the longest sum that the body can compute if it is not `looped`.
    """

    tile: DspTile

    @property
    def looped(self) -> bool:
        """Whether sums need a loop: they are too long to be written out, or flash is scarce."""
        return self.tile.optimize == "size" or self.tile.words > 3 * _LONGEST

    @property
    def triples(self) -> int:
        """Groups of three words that are written out, after the first words of a sum."""
        return _LOOPED[self.tile.optimize] if self.looped else (self.tile.words - 1) // 3

    @property
    def family(self) -> tuple[int | bool, ...]:
        """A key that is equal for bodies if the longest of them can compute all their layers."""
        t, s = self.tile, self.tile.scaling
        return t.pixels, s.signed, s.left, s.right, s.low, s.high, self.looped, self.log_widened

    @property
    def log_widened(self) -> int:
        """Binary logarithm of the words of inputs that an iteration of the widening loop reads."""
        return _WIDENED[self.tile.optimize]

    @property
    def parts(self) -> PointwiseParts:
        """The instructions."""
        return PointwiseParts(
            setup=tuple(self._setup),
            group=tuple(self._group),
            heads=tuple(self._heads),
            chain=tuple(self._chain),
            finish=tuple(self._finish),
            end=tuple(self._end),
        )

    def cost(self, pixels: int) -> BodyCost:
        """Return the cost for a layer of the tile's sizes with `pixels` pixels."""
        t, n = self.tile, self.tile.pixels
        count = assembled(self._setup)
        widened = t.quads * (3 * n + 1) + 2 * max(1, -(-t.quads >> self.log_widened))
        tail = (0, n + 3, 3 * n + 3, 4 * n + 2)[t.tail]
        head = accumulated(t, t.first, first=True)
        more = (t.words - t.first) // 3 * assembled(accumulated(t, 3))
        pair = assembled(head) + 1 + more + len(self._finish)
        if self.looped:
            pair += 3 * -(-(t.words - t.first) // 3 // self.triples)
        pairs = -(-t.outputs // 2)
        glue = 17 + 2 * n + (6 + n) * t.odd
        groups = -(-pixels // n)
        executed = count + groups * (glue + widened + tail + pairs * pair)
        return BodyCost(executed, _bytes(self.parts.all))

    @property
    def _setup(self) -> list[str]:
        """Instructions that compute sizes and addresses once for a layer.

        r0: inputs; r1: weights; r2: patch; r3: layer.
        ADR counts from the program counter rounded down to a word: the function must be aligned.
        """
        t, n = self.tile, self.tile.pixels
        beyond = {
            1: ["add r9, r8, r6"],
            2: ["add r9, r8, r6, lsl #1"],
            3: ["add r9, r6, r6, lsl #1", "add r9, r9, r8"],
        }
        addend = [f"ldr r7, [r3, #{4 * list(FIELDS).index('addend')}]", f"str r7, [sp, #{ADDEND}]"]
        return [
            ".balign 4",
            "push {r4-r11, lr}",
            f"sub sp, sp, #{_FRAME}",
            "ldm r3, {r4-r6}",
            *(addend if t.scaling.signed else []),
            f"ldr r3, [sp, #{_FRAME + 36}]",
            f"sub r4, r4, #{n}",
            "mla r8, r4, r6, r3",
            *beyond[n],
            f"strd r5, r6, [sp, #{_DEPTH}]",
            f"strd r8, r9, [sp, #{_LAST_OUT}]",
            f"strd r1, r2, [sp, #{_WEIGHTS}]",
            f"str r2, [sp, #{_PATCH}]",
            *self._measured,
            "mov r6, r3",
        ]

    @property
    def _measured(self) -> list[str]:
        """Instructions that compute ends of weights and destinations of jumps.

        r5: depth; r6: output channels.
        """
        t, n = self.tile, self.tile.pixels
        lines = ["and r7, r5, #3", "lsr r8, r5, #2", "add r9, r7, #1", "lsr r9, r9, #1"]
        lines += ["add r9, r9, r8, lsl #1", f"add r10, r9, #{2 * t.row}", "lsr r11, r6, #1"]
        lines += ["mul r11, r10, r11", "add r11, r1, r11, lsl #2", f"str r11, [sp, #{_PAIRS_END}]"]
        lines += ["tst r6, #1", "it ne", "addne r11, r11, r10, lsl #2"]
        lines.append(f"str r11, [sp, #{_ALL_END}]")
        if self.looped:
            lines += [f"mov r10, #{4 * n}", "mla r10, r9, r10, r2", f"str r10, [sp, #{_PATCH_END}]"]
        lines += ["sub r10, r9, #1", "mov r11, #3", "udiv r10, r10, r11"]
        lines += ["mls r9, r10, r11, r9"]
        if self.looped and self.triples > 1:
            lines += [f"mov r11, #{self.triples}", "udiv lr, r10, r11", "mls lr, lr, r11, r10"]
            lines += ["cmp lr, #0", "it eq", "moveq lr, r11", "cmp r10, #0", "it ne"]
            lines += ["movne r10, lr"]
        elif self.looped:
            lines += ["cmp r10, #0", "it ne", "movne r10, #1"]
        lines += _before("r10", 4 * assembled(accumulated(t, 3)), "14f", _CHAIN)
        lines += ["adr r11, 10f", "adr.w r4, 11f", "adr.w r5, 12f", "cmp r9, #2"]
        lines += ["it eq", "moveq r11, r4", "it hi", "movhi r11, r5"]
        lines += ["orr r11, r11, #1", f"str r11, [sp, #{_HEAD}]"]
        log = self.log_widened
        iterations = (
            [f"add r9, r8, #{(1 << log) - 1}", f"lsr r9, r9, #{log}"] if log else ["mov r9, r8"]
        )
        lines += [
            *iterations,
            "cmp r9, #0",
            "it eq",
            "moveq r9, #1",
            f"str r9, [sp, #{_ITERATIONS}]",
        ]
        lines += ["sub r9, r9, #1", f"sub r8, r8, r9, lsl #{log}" if log else "sub r8, r8, r9"]
        lines += _before("r8", 4 * (3 * n + 1), "4f", _WIDEN)
        lines += ["adr r11, 8f", "adr.w r4, 5f", "adr.w r5, 6f", "adr.w r9, 7f", "cmp r7, #2"]
        lines += ["it eq", "moveq r11, r5", "it hi", "movhi r11, r9", "cmp r7, #1", "it eq"]
        return [*lines, "moveq r11, r4", "orr r11, r11, #1", f"str r11, [sp, #{_TAIL}]"]

    @property
    def _group(self) -> list[str]:
        """Instructions that widen the inputs of a group of pixels. r0: inputs; r6: outputs.

        If fewer pixels than a group are left, the last of them is computed several times. So a
        group never reads inputs that the outputs of an earlier group may have overwritten.
        """
        n = self.tile.pixels
        lower, upper = [f"r{4 + p}" for p in range(n)], [f"r{4 + n + p}" for p in range(n)]
        iteration = [f"ldr {b}, [r{p}], #4" for p, b in enumerate(upper)]
        iteration += [f"sxtb16 {a}, {b}" for a, b in zip(lower, upper, strict=True)]
        iteration += [f"sxtb16 {b}, {b}, ror #8" for b in upper]
        iteration.append(f"stm.w r3!, {{r4-{upper[-1]}}}")
        lines = ["1:", f"ldr r9, [sp, #{_LAST_OUT}]", "cmp r6, r9", "bhi 17f"]
        lines.append(f"ldrd r4, r5, [sp, #{_DEPTH}]")
        for p in range(1, n):
            lines += [f"add r{p}, r{p - 1}, r4", f"add r{6 + p}, r{5 + p}, r5"]
        lines += ["2:"] * (n > 1)
        lines += [_store_targets(n), f"ldr r3, [sp, #{_PATCH}]", f"ldr r12, [sp, #{_ITERATIONS}]"]
        lines += [f"ldr pc, [sp, #{_WIDEN}]", "3:", *repeated(1 << self.log_widened, iteration)]
        lines += ["4:", "subs r12, r12, #1", "bne 3b", f"ldr pc, [sp, #{_TAIL}]"]
        both = [f"pkhbt {a}, {a}, {b}, lsl #16" for a, b in zip(lower, upper, strict=True)]
        one = [f"ldrsb {a}, [r{p}]" for p, a in enumerate(lower)]
        two = [f"ldrsb {b}, [r{p}, #1]" for p, b in enumerate(upper)]
        three = [f"ldrsb {b}, [r{p}, #2]" for p, b in enumerate(upper)]
        move = f"add r{n - 1}, r{n - 1}, #"
        lines += ["5:", *one, _store_widened(lower), f"{move}1", "b 8f"]
        lines += ["6:", *one, *two, *both, _store_widened(lower), f"{move}2", "b 8f"]
        lines += ["7:", *one, *three, *both, *two, _store_widened([*lower, *upper]), f"{move}3"]
        lines += ["8:", f"str r{n - 1}, [sp, #{_NEXT_IN}]", f"ldrd r10, r11, [sp, #{_WEIGHTS}]"]
        lines += [f"ldr r9, [sp, #{_PAIRS_END}]", f"str r9, [sp, #{_END}]"]
        return [*lines, f"ldr pc, [sp, #{_HEAD}]"]

    @property
    def _heads(self) -> list[str]:
        """Instructions that start the sums of two channels with one, two or three words."""
        jump = f"ldr pc, [sp, #{_CHAIN}]"
        lines: list[str] = []
        for count in (1, 2, 3):
            lines += [f"{9 + count}:", *accumulated(self.tile, count, first=True), jump]
        return lines

    @property
    def _chain(self) -> list[str]:
        """Instructions that add the products of all further words, three at a time."""
        lines = ["13:", *repeated(self.triples, accumulated(self.tile, 3)), "14:"]
        if self.looped:
            lines += [f"ldr r9, [sp, #{_PATCH_END}]", "cmp r11, r9", "bne 13b"]
        return lines

    @property
    def _finish(self) -> list[str]:
        """Instructions that requantize the sums of two channels and go on to the next two."""
        n = self.tile.pixels
        lines = [*scaled_pair(self.tile, ADDEND), "ldm sp, {r6-r9, r11, lr}"]
        for p in range(n):
            lines += [f"strb r{p}, [r{6 + p}], #1", f"strb r{3 + p}, [r{6 + p}], #1"]
        return [*lines, _store_targets(n), "cmp r10, r9", "beq 15f", "bx lr"]

    @property
    def _end(self) -> list[str]:
        """Instructions after the last whole pair of channels, and after the last whole group."""
        n = self.tile.pixels
        lines = ["15:", f"ldr r0, [sp, #{_ALL_END}]", "cmp r10, r0", "bne 16f"]
        lines += [f"mov r6, r{5 + n}"] * (n > 1)
        lines += [f"ldr r0, [sp, #{_NEXT_IN}]", "b 1b", "16:", f"str r0, [sp, #{_END}]"]
        lines += [f"sub r{6 + p}, r{6 + p}, #1" for p in range(n)]
        lines += [_store_targets(n), "bx lr", "17:", f"ldr r4, [sp, #{_OUT_END}]", "cmp r6, r4"]
        lines += ["beq 18f", *self._few]
        return [*lines, "18:", f"add sp, sp, #{_FRAME}", "pop {r4-r11, pc}"]

    @property
    def _few(self) -> list[str]:
        """Instructions that widen the inputs of the pixels that are left, fewer than a group.

        r0: inputs; r6: outputs; r9: outputs of the last whole group, which end with the last pixel.
        """
        n = self.tile.pixels
        if n == 1:
            return []
        lines = [f"ldrd r4, r5, [sp, #{_DEPTH}]"]
        if n == 3:
            lines += ["sub r9, r6, r9", "cmp r9, r5", "itt ne", "movne r4, #0", "movne r5, #0"]
        second = ["mov r1, r0", "mov r7, r6"] if n == 2 else ["add r1, r0, r4", "add r7, r6, r5"]
        return [*lines, *second, *["mov r2, r1", "mov r8, r7"] * (n == 3), "b 2b"]


def _before(count: str, size: int, end: str, place: int) -> list[str]:
    """Return the instructions that store a destination: `count` times `size` bytes before a label.

    Args:
        count: register of the number; overwritten.
        size: bytes of one repetition of the code before the label.
        end: the label.
        place: offset on the stack.
    """
    lines = [f"mov r11, #{size}", f"mul {count}, {count}, r11", f"adr r11, {end}"]
    return [*lines, f"sub r11, r11, {count}", "orr r11, r11, #1", f"str r11, [sp, #{place}]"]


def _store_targets(pixels: int) -> str:
    """Return the instruction that stores the addresses of the pixels' next outputs."""
    return "str r6, [sp]" if pixels == 1 else f"stm sp, {{{span(6, pixels)}}}"


def _store_widened(registers: Sequence[str]) -> str:
    """Return the instruction that stores widened inputs."""
    listed = ", ".join(registers)
    return f"str {listed}, [r3]" if len(registers) == 1 else f"stm r3, {{{listed}}}"


def _bytes(lines: Iterable[str]) -> int:
    """Return the approximate size of instructions: most have four bytes."""
    return 4 * assembled(lines)

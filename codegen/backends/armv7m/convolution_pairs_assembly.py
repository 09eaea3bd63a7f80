"""Armv7-M assembly: all channels of three pixels with inputs in pairs (`convolution_pairs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.backends.armv7m.assembly import UnrolledLoop, load_row, requantize, run_loop
from smelt.codegen.backends.armv7m.instructions import Armv7m, asr
from smelt.codegen.lower.assembly_builder import Label
from smelt.codegen.lower.registers import (
    LR,
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
    R11,
    R12,
    SP,
    Register,
)
from smelt.codegen.lower.requantization_32bit import ShortScaling

_PATCH, _END, _LEFT = 12, 16, 20
"""Offsets on the stack, after the addresses of the pixels' outputs."""

_REACH = 4096
"""Number of bytes that an immediate offset can address."""

STEP_INSTRUCTIONS = {True: 14, False: 19}
"""Instructions of a step, with weights in words or in bytes."""

REPAIR_INSTRUCTIONS = 5
"""Instructions for a pair of channels without repairs, in a layer where others have some."""

_REGISTERS = """\
r1: next constants; r2-r4: inputs of the three pixels
r5, r6: weights of channels 0 and 1; r7: next inputs; r8: product
r9-r11: sums of channel 0; r12, lr, r0: sums of channel 1
Stack: addresses of the pixels' outputs, `patch`, its end, pairs of channels left"""


@dataclass(frozen=True, kw_only=True)
class PairsOfTaps:
    """The sums that the function computes.

    Attributes:
        steps: number of pairs of taps.
        loop: the loop over all pairs but the first.
        in_words: whether weights are words; otherwise bytes, two pairs in a word.
        repaired: whether some output channel has repairs.
        outputs: number of output channels.
        together: whether the outputs of the three pixels are contiguous.
        scaling: requantization of the sums.
    """

    steps: int
    loop: UnrolledLoop
    in_words: bool
    repaired: bool
    outputs: int
    together: bool
    scaling: ShortScaling

    @property
    def base(self) -> Register | None:
        """The register for the outputs' address, if requantization does not use them all."""
        if not self.together or 3 * self.outputs > _REACH:
            return None
        if self.scaling.count < 3:
            return R7
        return R8 if self.scaling.nudges is None else None


def block(p: PairsOfTaps) -> Armv7m:
    """Return the code of the function."""
    a, s, base = Armv7m(), p.scaling, p.base
    first, second = (R9, R10, R11), (R12, LR, R0)
    a.describe(_REGISTERS)
    with a.function(28):
        a.ldm(R2, [R4, R5, R6]).mov(R7, R0).movw(R8, 12 * p.steps).add(R8, R8, R7)
        a.movw(R9, (p.outputs + 1) // 2)
        a.stm(SP, [R4, R5, R6, R7, R8, R9])
        pair, done = a.here(1), Label(5)
        a.ldr(R7, SP, _PATCH)
        a.ldmia(R1, [R9, R12])
        step(a, in_words=p.in_words, first=True)
        run_loop(a, p.loop, lambda: step(a, in_words=p.in_words, first=False), R7, R8, _END)
        if p.repaired:
            a.ldr(R8, SP, _PATCH)
            repair(a, first)
            repair(a, second)
        load_row(a, s, first, R1)
        if base:
            a.ldr(base, SP)
        _outputs(a, p, first, 0)
        if p.outputs % 2:
            a.ldr(R2, SP, _LEFT).cmp(R2, 1).b(done, "eq")
        load_row(a, s, second, R1)
        _outputs(a, p, second, 1)
        if base:
            a.add(base, base, 2).str_(base, SP)
        a.ldr(R2, SP, _LEFT).subs(R2, 1).str_(R2, SP, _LEFT)
        a.b(pair, "ne")
        if p.outputs % 2:
            a.place(done)
    return a


def step(a: Armv7m, *, in_words: bool, first: bool) -> None:
    """Add the products of a pair of taps to the sums; the `first` are added to the starts."""
    a.ldmia(R7, [R2, R3, R4])
    if in_words:
        a.ldmia(R1, [R5, R6])
    else:
        a.ldmia(R1, [R6]).and_(R5, R6, 0x00FF00FF).lsrs(R6, R6, 8)
        a.and_(R6, R6, 0x00FF00FF).sub(R5, R5, 0x00800080).sub(R6, R6, 0x00800080)
    for x, total in ((R3, R10), (R4, R11)):
        a.mul(R8, x, R5).add(total, R9 if first else total, asr(R8, 16))
    a.muls(R5, R2, R5).add(R9, R9, asr(R5, 16))
    for x, total in ((R3, LR), (R4, R0), (R2, R12)):
        a.muls(x, R6, x).add(total, R12 if first else total, asr(x, 16))


def repair(a: Armv7m, sums: Sequence[Register]) -> None:
    """Add the products of an output's repairs."""
    none = Label(4)
    a.ldmia(R1, [R5]).cbz(R5, none)
    repair = a.here(3)
    a.ldmia(R1, [R6, R7]).add(R6, R6, R8)
    a.ldmia_(R6, [R2, R3, R4])
    for x, total in zip((R2, R3, R4), sums, strict=True):
        a.muls(x, R7, x).add(total, total, asr(x, 16))
    a.subs(R5, R5, 1).b(repair, "ne")
    a.place(none)


def _outputs(a: Armv7m, p: PairsOfTaps, sums: Sequence[Register], at: int) -> None:
    """Store channel `at` (0 or 1) of the pair for each pixel."""
    for pixel, total in enumerate(sums):
        requantize(a, p.scaling, total)
        if p.base:
            a.strb(R3, p.base, pixel * p.outputs + at)
            continue
        a.ldr(R2, SP, 4 * pixel).strb(R3, R2, at)
        if at:
            a.adds(R2, 2).str_(R2, SP, 4 * pixel)


def own_instructions(p: PairsOfTaps) -> int:
    """Return the instructions that the function executes, without those of repairs."""
    channels = Armv7m(), Armv7m()
    for at, (a, sums) in enumerate(zip(channels, ((R9, R10, R11), (R12, LR, R0)), strict=True)):
        load_row(a, p.scaling, sums, R1)
        _outputs(a, p, sums, at)
    first, second = (a.count for a in channels)
    odd = p.outputs % 2
    pair = first + second + 6 + 3 * odd + 3 * bool(p.base) + REPAIR_INSTRUCTIONS * p.repaired
    pair += p.steps * STEP_INSTRUCTIONS[p.in_words] + 3 * p.loop.iterations
    return 10 + -(-p.outputs // 2) * pair - second * odd

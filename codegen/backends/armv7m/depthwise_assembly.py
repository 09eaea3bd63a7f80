"""Armv7-M assembly: one channel's plane of a depthwise convolution (`halfword_depthwise`)."""

from __future__ import annotations

from itertools import accumulate

from smelt.codegen.backends.armv7m.assembly import load_row, requantize
from smelt.codegen.backends.armv7m.instructions import Armv7m, asr, lsl
from smelt.codegen.lower.depthwise_plane import Plane
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
)
from smelt.codegen.lower.requantization_32bit import ShortScaling

_REGISTERS = """\
r0: words under the window; r1: weights, then requantization constants
r2-r4: words; r5-r7: weights
r8: total of words; r9: total of upper halves; r10: sum of a group of taps
r11: outputs; r12: 2^15 (rounding); lr: pairs of outputs left in this row
Stack: outputs left along the other axis%s"""


def pairs(p: Plane, s: ShortScaling, chunks: tuple[int, ...]) -> Armv7m:
    """Return the code of the function; `chunks` are the sizes of the groups of taps."""
    a, row_of_constants = Armv7m(), p.taps[0] * p.taps[1] + s.rows.shape[1]
    odd = ", distance between the outputs of a pair (0 for a last single one)"
    a.describe(_REGISTERS % (odd if p.odd else ""))
    with a.function(12):
        a.str_(R3, SP)
        a.mov(R11, R2).mov(R12, 1 << 15)
        row = a.here(1)
        if p.odd:
            a.movw(R3, p.target[0])
            a.ldr(R2, SP).cmp(R2, 1).it("eq").moveq(R3, 0).str_(R3, SP, 4)
        a.movw(LR, p.outputs[1])
        a.comment("Next pair of outputs.")
        pair = a.here(2)
        _products(a, p, chunks)
        a.comment("r10, r9: sums of the two outputs.")
        a.sub(R10, R8, lsl(R9, 16))
        load_row(a, s, [R10, R9], R1)
        a.advance(R1, -4 * row_of_constants, R2)
        requantize(a, s, R9)
        if p.odd:
            a.ldr(R2, SP, 4).strb(R3, R11, R2)
        elif p.target[0] < 4096:
            a.strb(R3, R11, p.target[0])
        else:
            a.movw(R2, p.target[0]).strb(R3, R11, R2)
        requantize(a, s, R10)
        a.strb(R3, R11)
        a.advance(R11, p.target[1], R2)
        a.advance(R0, p.to_next_pair, R2)
        a.subs(LR, LR, 1).b(pair, "ne")
        a.advance(R0, p.to_next_row, R2)
        a.advance(R11, p.to_next_outputs, R2)
        a.ldr(R2, SP).subs(R2, R2, 2).str_(R2, SP)
        a.b(row, "gt")
    return a


def _products(a: Armv7m, p: Plane, chunks: tuple[int, ...]) -> None:
    """Sum the products of a window: groups of taps in r10, then added to the totals r8 and r9."""
    ends = list(accumulate(chunks))
    for tap in range(p.lines * p.run):
        i = tap % p.run
        words, weights = (R2, R3, R4)[: p.run - i], (R5, R6, R7)[: p.run - i]
        if tap and not i:
            a.advance(R0, p.to_next_line, R2)
        if i % 3 == 0:
            a.ldmia(R0, words)
            a.ldmia(R1, weights)
        first = tap in (0, *ends)
        a.mla(R10, (R2, R3, R4)[i % 3], (R5, R6, R7)[i % 3], R12 if first else R10)
        if tap + 1 == ends[0]:
            a.sub(R8, R10, len(chunks) << 15).asr(R9, R10, 16)
        elif tap + 1 in ends:
            a.add(R8, R8, R10).add(R9, R9, asr(R10, 16))

"""Armv7-M assembly: one channel's plane of a depthwise convolution (`halfword_depthwise`)."""

from __future__ import annotations

from itertools import accumulate

from smelt.codegen.backends.armv7m.assembly import load_row, requantize
from smelt.codegen.backends.armv7m.instructions import Armv7m, asr, lsl
from smelt.codegen.lower.content_cache import cached_by_content
from smelt.codegen.lower.depthwise_walk import OWN, PlaneWalk, WalkCode
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

_LEFT, _APART, _WALK = 0, 4, 8
"""Offsets on the stack."""

_REGISTERS = """\
r0: words under the window; r1: weights, then requantization constants
r2-r4: words; r5-r7: weights
r8: total of words; r9: total of upper halves; r10: sum of a group of taps
r11: outputs; r12: 2^15 (rounding); lr: pairs of outputs left in this row
Stack: outputs left along the other axis%s%s"""


@cached_by_content
def pairs(walk: PlaneWalk, s: ShortScaling, groups: tuple[int, ...]) -> WalkCode:
    """Return the code of the function; `groups` are the sizes of the groups of taps."""
    a, p, row_of_constants = Armv7m(), walk.plane, walk.plane.taps[0] * walk.plane.taps[1]
    row_of_constants += s.rows.shape[1]
    code = WalkCode(a, walk)
    odd = ",\ndistance between the outputs of a pair (0 for a last single one)"
    a.describe(_REGISTERS % (odd if walk.odd else "", ", numbers of `layer`" if walk.read else ""))
    with a.function(_WALK + 4 * walk.read, fifth=R12 if walk.read else None):
        a.str_(R3, SP, _LEFT)
        a.mov(R11, R2)
        if walk.read:
            numbers = (R4, R5, R6, R7, R8, R9, R10)[: walk.read]
            a.ldm(R12, numbers).add(R3, SP, _WALK).stm(R3, numbers)
        a.mov(R12, 1 << 15)
        code.count()
        row = a.here(1)
        if walk.odd:
            _load(a, walk, R3, "across")
            a.ldr(R2, SP, _LEFT).cmp(R2, 1).it("eq").moveq(R3, 0).str_(R3, SP, _APART)
        _load(a, walk, LR, "outputs")
        a.comment("Next pair of outputs.")
        code.count()
        pair = a.here(2)
        _products(a, walk, groups)
        a.comment("r10, r9: sums of the two outputs.")
        a.sub(R10, R8, lsl(R9, 16))
        load_row(a, s, [R10, R9], R1)
        a.advance(R1, -4 * row_of_constants, R2)
        requantize(a, s, R9)
        if walk.odd:
            a.ldr(R2, SP, _APART).strb(R3, R11, R2)
        elif walk.read == OWN and p.target[0] < 4096:
            a.strb(R3, R11, p.target[0])
        else:
            _load(a, walk, R2, "across")
            a.strb(R3, R11, R2)
        requantize(a, s, R10)
        a.strb(R3, R11)
        _advance(a, walk, R11, "along")
        _advance(a, walk, R0, "to_window")
        a.subs(LR, LR, 1).b(pair, "ne")
        code.count()
        _advance(a, walk, R0, "to_windows")
        _advance(a, walk, R11, "to_outputs")
        a.ldr(R2, SP, _LEFT).subs(R2, R2, 2).str_(R2, SP, _LEFT)
        a.b(row, "gt")
        code.count()
    code.count()
    return code


def _load(a: Armv7m, walk: PlaneWalk, d: Register, name: str) -> None:
    """Load a number of the walk."""
    at = walk.at(name)
    if at is None:
        a.movw(d, walk.numbers[name])
    else:
        a.ldr(d, SP, _WALK + at)


def _advance(a: Armv7m, walk: PlaneWalk, d: Register, name: str) -> None:
    """Advance an address by a number of the walk; r2 changes."""
    if walk.at(name) is None:
        a.advance(d, walk.numbers[name], R2)
    else:
        _load(a, walk, R2, name)
        a.add(d, d, R2)


def _products(a: Armv7m, walk: PlaneWalk, groups: tuple[int, ...]) -> None:
    """Sum the products of a window: groups of taps in r10, then added to the totals r8 and r9."""
    p = walk.plane
    ends = list(accumulate(groups))
    for tap in range(p.lines * p.run):
        i = tap % p.run
        words, weights = (R2, R3, R4)[: p.run - i], (R5, R6, R7)[: p.run - i]
        if tap and not i:
            _advance(a, walk, R0, "to_taps")
        if i % 3 == 0:
            a.ldmia(R0, words)
            a.ldmia(R1, weights)
        first = tap in (0, *ends)
        a.mla(R10, (R2, R3, R4)[i % 3], (R5, R6, R7)[i % 3], R12 if first else R10)
        if tap + 1 == ends[0]:
            a.sub(R8, R10, len(groups) << 15).asr(R9, R10, 16)
        elif tap + 1 in ends:
            a.add(R8, R8, R10).add(R9, R9, asr(R10, 16))

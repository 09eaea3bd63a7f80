"""Armv7-M assembly: all outputs of a row whose inputs are packed in pairs (`dense`)."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.armv7m.assembly import (
    UnrolledLoop,
    load_row,
    requantize,
    run_loop,
    scaled_by,
)
from smelt.codegen.backends.armv7m.instructions import Armv7m, lsr
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

_LEFT, _WIDE, _END, _TOTAL, _OUTPUT, _COMMON = 0, 4, 8, 12, 16, 20
"""Offsets on the stack."""

_SUMS = R9, R10, R11, R12

_REGISTERS = """\
r0: next inputs; r1: next constants; r2, r3: inputs
r4-r7: weights of the four outputs; r8: weights of a pair, then product
r9-r12: sums of the four outputs; lr: mask 0x00ff00ff
Stack: groups of four outputs left, `wide`, its end, %d * `total`,
address of the next output%s"""


@dataclass(frozen=True, kw_only=True)
class RowSums:
    """The sums that the function computes.

    Attributes:
        outputs: outputs of a row.
        blocks: groups of four inputs.
        loop: the loop over `blocks`.
        offset: number added to weights.
        repaired: whether some output has repairs.
        common: words of requantization constants that all outputs share; they come first.
        scaling: requantization of the sums.
    """

    outputs: int
    blocks: int
    loop: UnrolledLoop
    offset: int
    repaired: bool
    common: int
    scaling: ShortScaling


def row(r: RowSums) -> Armv7m:
    """Return the code of the function."""
    a, s, rest, end = Armv7m(), r.scaling, r.outputs % 4, Label(5)
    shared = ", address of the shared constants" if r.common else ""
    a.describe(_REGISTERS % (r.offset, shared))
    with a.function(28):
        a.mov(R7, R2).movw(R4, -(-r.outputs // 4)).mov(R5, R0)
        a.movw(R6, 8 * r.blocks).add(R6, R6, R0)
        a.stm(SP, [R4, R5, R6])
        a.mov(R4, r.offset).mul(R3, R4, R3).str_(R3, SP, _TOTAL)
        a.str_(R7, SP, _OUTPUT)
        if r.common:
            a.str_(R1, SP, _COMMON)
            a.adds(R1, 4 * r.common)
        a.mov(LR, 0x00FF00FF)
        four = a.here(1)
        a.ldr(R0, SP, _WIDE)
        a.ldr(R8, SP, _TOTAL)
        a.ldmia(R1, _SUMS)
        for total in _SUMS:
            a.sub(total, total, R8)
        run_loop(a, r.loop, lambda: _block(a), R0, R8, _END)
        if r.repaired:
            _repair(a)
        a.ldr(R0, SP, _OUTPUT)
        if r.common:
            a.ldr(R8, SP, _COMMON)
            a.ldm(R8, scaled_by(s))
        for number, total in enumerate(_SUMS):
            if r.common:
                _load_own(a, s, total)
            else:
                load_row(a, s, [total], R1)
            requantize(a, s, total)
            a.strb_then(R3, R0, 1)
            if rest == number + 1:
                a.ldr(R2, SP).cmp(R2, 1).b(end, "eq")
        a.str_(R0, SP, _OUTPUT)
        a.ldr(R2, SP).subs(R2, 1).str_(R2, SP)
        a.b(four, "ne")
        if rest:
            a.place(end)
    return a


def _block(a: Armv7m) -> None:
    """Add the products of four inputs to the sums of four outputs."""
    a.ldmia(R0, [R2, R3])
    a.ldmia(R1, [R4, R5, R6, R7])
    for total, weights in zip(_SUMS, (R4, R5, R6, R7), strict=True):
        a.and_(R8, LR, weights).mul(R8, R2, R8).add(total, total, lsr(R8, 16))
        a.and_(weights, LR, lsr(weights, 8)).muls(weights, R3, weights)
        a.add(total, total, lsr(weights, 16))


def _repair(a: Armv7m) -> None:
    """Add the products of the outputs' repairs."""
    none = Label(4)
    a.ldmia(R1, [R5]).cbz(R5, none)
    a.ldr(R8, SP, _WIDE)
    for total in _SUMS:
        done = Label(3)
        a.ldmia(R1, [R5]).cbz(R5, done)
        repair = a.here(6)
        a.ldmia(R1, [R6, R7]).ldrh(R2, R8, R6).mla(total, R2, R7, total)
        a.subs(R5, R5, 1).b(repair, "ne")
        a.place(done)
    a.place(none)


def _load_own(a: Armv7m, s: ShortScaling, total: Register) -> None:
    """Load an output's own constants: add its bias (if any) to the sum, load its offset to r4."""
    if s.biases is not None:
        a.ldr_then(R3, R1, 4).add(total, total, R3)
    a.ldr_then(R4, R1, 4)

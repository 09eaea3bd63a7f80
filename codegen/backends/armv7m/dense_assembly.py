"""Armv7-M: all outputs of a row whose inputs are in words of two (`dense`)."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.armv7m.assembly import Turns, load_row, requantize, run_turns, scaled_by
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
"""Where on the stack numbers stand."""

_SUMS = R9, R10, R11, R12

_REGISTERS = """\
r0: next inputs, r1: constants, r2 and r3: inputs, r4 to r7: weights of the outputs, r8: weights
of a pair, product, r9 to r12: sums, lr: mask. On the stack: fours of outputs left, `wide`, its
end, %d times `total`, next output%s."""


@dataclass(frozen=True, kw_only=True)
class RowSums:
    """What the function sums.

    Attributes:
        outputs: of a row.
        blocks: fours of inputs.
        turns: of them.
        offset: what weights are counted from.
        repaired: whether some output has repairs.
        common: words of constants before all others that requantize all outputs.
        scaling: of sums.
    """

    outputs: int
    blocks: int
    turns: Turns
    offset: int
    repaired: bool
    common: int
    scaling: ShortScaling


def row(r: RowSums) -> Armv7m:
    """The function's code."""
    a, s, rest, end = Armv7m(), r.scaling, r.outputs % 4, Label(5)
    a.describe(_REGISTERS % (r.offset, ", what outputs have in common" if r.common else ""))
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
        run_turns(a, r.turns, lambda: _block(a), R0, R8, _END)
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
    """Four inputs and their weights of four outputs."""
    a.ldmia(R0, [R2, R3])
    a.ldmia(R1, [R4, R5, R6, R7])
    for total, weights in zip(_SUMS, (R4, R5, R6, R7), strict=True):
        a.and_(R8, LR, weights).mul(R8, R2, R8).add(total, total, lsr(R8, 16))
        a.and_(weights, LR, lsr(weights, 8)).muls(weights, R3, weights)
        a.add(total, total, lsr(weights, 16))


def _repair(a: Armv7m) -> None:
    """Adds the products that the outputs' weights lack."""
    none = Label(4)
    a.ldmia(R1, [R5]).cbz(R5, none)
    a.ldr(R8, SP, _WIDE)
    for total in _SUMS:
        done = Label(3)
        a.ldmia(R1, [R5]).cbz(R5, done)
        again = a.here(6)
        a.ldmia(R1, [R6, R7]).ldrh(R2, R8, R6).mla(total, R2, R7, total)
        a.subs(R5, R5, 1).b(again, "ne")
        a.place(done)
    a.place(none)


def _load_own(a: Armv7m, s: ShortScaling, total: Register) -> None:
    """Loads what outputs do not have in common: a bias, which is added, and the offset."""
    if s.biases is not None:
        a.ldr_then(R3, R1, 4).add(total, total, R3)
    a.ldr_then(R4, R1, 4)

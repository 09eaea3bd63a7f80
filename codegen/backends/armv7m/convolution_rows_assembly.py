"""Armv7-M: outputs of a channel and a row, four at a time, of widened rows (`convolution_rows`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.backends.armv7m.assembly import Turns, load_row, requantize, run_turns
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
    Low,
    Register,
)
from smelt.codegen.lower.requantization_32bit import ShortScaling

_LINE, _ROW, _OUT, _END, _BLOCKS = 0, 8, 12, 16, 20
"""Where on the stack numbers stand."""

_FARTHEST = 255
"""Bytes that a load may move its base on by."""

_SUMS = R9, R10, R11, R12

_REGISTERS = """\
r0: inputs, r1: weights, r2 to r5: inputs of four columns, r6 to r8: weights of three, r9 to r12:
sums, lr: product. On the stack: `line`, `weights`, `row`, `out`, end of the weights, `blocks`."""


@dataclass(frozen=True, kw_only=True)
class LineSums:
    """What the function sums.

    Attributes:
        stride: 1 or 2.
        pitch: words of a line.
        even: words of it before the odd columns, for a stride of 2.
        weights: words of a channel's weights, with the one that sums start from.
        turns: of steps, but for the first one.
        repaired: whether some output has repairs.
        outputs: channels.
        blocks: of four outputs in a row.
        scaling: of sums.
    """

    stride: int
    pitch: int
    even: int
    weights: int
    turns: Turns
    repaired: bool
    outputs: int
    blocks: int
    scaling: ShortScaling


def outputs_of_row(r: LineSums) -> Armv7m:
    """The function's code."""
    a, s = Armv7m(), r.scaling
    a.describe(_REGISTERS)
    with a.function(28, fifth=R5):
        a.movw(R4, 4 * r.weights).add(R4, R4, R1)
        a.stm(SP, [R0, R1, R2, R3, R4, R5])
        four = a.here(1)
        a.ldm(SP, [R0, R1])
        _step(a, r, first=True)
        run_turns(a, r.turns, lambda: _step(a, r, first=False), R1, LR, _END)
        a.ldr(R1, SP, _ROW)
        if r.repaired:
            _repair(a)
        load_row(a, s, _SUMS, R1)
        a.ldr(R0, SP, _OUT)
        for number, total in enumerate(_SUMS):
            requantize(a, s, total)
            a.strb(R3, R0, number * r.outputs)
        if r.blocks > 1:
            a.ldr(R2, SP)
            a.ldr(R3, SP, _BLOCKS).adds(R2, 16).str_(R2, SP)
            a.addw(R0, R0, 4 * r.outputs).str_(R0, SP, _OUT)
            a.subs(R3, 1).str_(R3, SP, _BLOCKS)
            a.b(four, "ne")
        a.mov(R0, R1)
    return a


def _step(a: Armv7m, r: LineSums, *, first: bool) -> None:
    """A row of the window and two channels: three columns of four outputs."""
    a.ldmia(R1, [R6, R7, R8])
    a.ldmia(R0, [R2, R3, R4, R5])
    if first:
        _column(a, (R2, R3, R4, R5), R7, start=R6)
        a.ldr_then(R6, R1, 4)
        second, third = R8, R6
    else:
        _column(a, (R2, R3, R4, R5), R6)
        second, third = R7, R8
    if r.stride == 1:
        _load(a, R2, 4)
        _column(a, (R3, R4, R5, R2), second)
        _load(a, R3, 4 * r.pitch - 20)
        _column(a, (R4, R5, R2, R3), third)
    else:
        _load(a, R2, 4 * r.even - 16)
        _column(a, (R3, R4, R5, R2), second)
        a.ldmia(R0, [R2, R3, R4, R5])
        _move(a, 4 * (r.pitch - r.even) - 16)
        _column(a, (R2, R3, R4, R5), third)


def _load(a: Armv7m, x: Low, distance: int) -> None:
    """Loads a column, and goes on to the next one."""
    if 0 < distance <= _FARTHEST:
        a.ldr_then(x, R0, distance)
    else:
        a.ldr(x, R0)
        _move(a, distance)


def _move(a: Armv7m, distance: int) -> None:
    if distance:
        a.advance(R0, distance, LR)


def _column(
    a: Armv7m, columns: Sequence[Low], weight: Register, *, start: Register | None = None
) -> None:
    """Products of four columns with a weight, added to the sums, or to what they start from."""
    for x, total in zip(columns, _SUMS, strict=True):
        a.mul(LR, x, weight).add(total, start or total, asr(LR, 16))


def _repair(a: Armv7m) -> None:
    """Adds the products that the channel's weights lack."""
    none = Label(4)
    a.ldr(R8, SP)
    a.ldr_then(R5, R1, 4).cbz(R5, none)
    again = a.here(3)
    a.ldmia(R1, [R6, R7]).add(R6, R6, R8)
    a.ldm(R6, [R0, R2, R3, R4])
    for x, total in zip((R0, R2, R3, R4), _SUMS, strict=True):
        a.muls(x, R7, x).add(total, total, asr(x, 16))
    a.subs(R5, R5, 1).b(again, "ne")
    a.place(none)

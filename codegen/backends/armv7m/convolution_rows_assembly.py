"""Armv7-M assembly: outputs of a channel in a row, from widened rows (`convolution_rows`)."""

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
    Low,
    Register,
)
from smelt.codegen.lower.requantization_32bit import ShortScaling

_LINE, _ROW, _OUT, _END, _BLOCKS = 0, 8, 12, 16, 20
"""Offsets on the stack."""

_FARTHEST = 255
"""Largest distance, in bytes, by which a load can advance its base register."""

_SUMS = R9, R10, R11, R12

_REGISTERS = """\
r0: next inputs; r1: next weights; r2-r5: inputs of four columns
r6-r8: weights of three columns; r9-r12: sums of four outputs; lr: product
Stack: `line`, `weights`, `row`, `out`, end of the weights, `blocks`"""


@dataclass(frozen=True, kw_only=True)
class LineSums:
    """The sums that the function computes.

    Attributes:
        stride: horizontal stride, 1 or 2.
        pitch: words of a line.
        even: words of a line before the odd columns, with stride 2.
        weights: words of a channel's weights, including the start of its sums.
        loop: the loop over all steps but the first.
        repaired: whether some output channel has repairs.
        outputs: number of output channels.
        blocks: blocks of four outputs in a row.
        scaling: requantization of the sums.
    """

    stride: int
    pitch: int
    even: int
    weights: int
    loop: UnrolledLoop
    repaired: bool
    outputs: int
    blocks: int
    scaling: ShortScaling


def outputs_of_row(r: LineSums) -> Armv7m:
    """Return the code of the function."""
    a, s = Armv7m(), r.scaling
    a.describe(_REGISTERS)
    with a.function(28, fifth=R5):
        a.movw(R4, 4 * r.weights).add(R4, R4, R1)
        a.stm(SP, [R0, R1, R2, R3, R4, R5])
        four = a.here(1)
        a.ldm(SP, [R0, R1])
        _step(a, r, first=True)
        run_loop(a, r.loop, lambda: _step(a, r, first=False), R1, LR, _END)
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
    """Add the products of a row of the window and a pair of channels to the sums."""
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
    """Load a column and advance r0 by `distance` bytes."""
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
    """Add the products of four columns with a weight to the sums, or to the register `start`."""
    for x, total in zip(columns, _SUMS, strict=True):
        a.mul(LR, x, weight).add(total, start or total, asr(LR, 16))


def _repair(a: Armv7m) -> None:
    """Add the products of the channel's repairs."""
    none = Label(4)
    a.ldr(R8, SP)
    a.ldr_then(R5, R1, 4).cbz(R5, none)
    repair = a.here(3)
    a.ldmia(R1, [R6, R7]).add(R6, R6, R8)
    a.ldm(R6, [R0, R2, R3, R4])
    for x, total in zip((R0, R2, R3, R4), _SUMS, strict=True):
        a.muls(x, R7, x).add(total, total, asr(x, 16))
    a.subs(R5, R5, 1).b(repair, "ne")
    a.place(none)

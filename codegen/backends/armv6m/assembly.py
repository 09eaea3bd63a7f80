"""Assembly shared by the functions for Armv6-M: requantization."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.backends.armv6m.instructions import Armv6m
from smelt.codegen.lower.assembly_builder import Label
from smelt.codegen.lower.registers import LR, R0, R2, R3, R4, R5, R6, R7, R10, SP, Low, Register
from smelt.codegen.lower.requantization_32bit import ShortScaling


def load_row(
    a: Armv6m, s: ShortScaling, others: Sequence[Register], *, lift: int | None = None
) -> None:
    """Load the row of constants of a channel from r2, and add the bias to r4 and `others`.

    r3: changed; lr: offset; r5: highest part of the multiplier; r7, r10: its lower parts (if any);
    r0: nudge (if any); r6: with a nudge, the zero point minus `base`,
    which is on the stack at offset `lift` unless that is None.
    """
    if s.biases is not None:
        a.ldmia(R2, [R3]).adds(R4, R4, R3)
        for register in others:
            a.add(register, R3)
    a.ldmia(R2, [R3, R5] if s.count == 1 else [R3, R5, R7]).mov(LR, R3)
    if s.count == 3:
        a.ldmia(R2, [R3]).mov(R10, R3)
    if s.nudges is not None:
        a.ldmia(R2, [R0])
        if lift is None:
            a.movs(R6, s.lift)
        else:
            a.ldr(R6, SP, lift)


def scale(a: Armv6m, s: ShortScaling, drop: Low | int) -> None:
    """Scale the sum in r4 and add its offset; r2 and r3 may change.

    Args:
        a: The assembly to append to.
        s: The requantization.
        drop: The bits that the total loses before each further product, or a register with them.
    """
    if s.count == 1:
        a.muls(R4, R5)
    else:
        a.movs(R3, R4).muls(R3, R7)
        _drop(a, drop)
        if s.count == 3:
            a.mov(R2, R10).muls(R2, R4).adds(R3, R3, R2)
            _drop(a, drop)
        a.muls(R4, R5).adds(R4, R4, R3)
    a.add(R4, LR)


def _drop(a: Armv6m, bits: Low | int) -> None:
    if isinstance(bits, int):
        a.asrs(R3, R3, bits)
    else:
        a.asrs(R3, bits)


def requantize(a: Armv6m, s: ShortScaling) -> None:
    """Compute the stored output of the sum in r4 in r3; r2 and r4 may change."""
    scale(a, s, s.drop)
    if s.nudges is not None:
        a.asrs(R3, R4, 31).ands(R3, R0).subs(R4, R4, R3).asrs(R3, R4, s.shift)
        a.adcs(R3, R6)
    else:
        a.asrs(R3, R4, s.shift)
    clamp(a, s, R3)


def clamp(a: Armv6m, s: ShortScaling, total: Low) -> None:
    """Clamp a scaled sum to the stored output; r2 may change."""
    inside = Label(9)
    a.cmp(total, s.span).b(inside, "ls")
    a.asrs(total, total, 31).mvns(total, total)
    if s.span < 255:
        a.movs(R2, s.span).ands(total, R2)
    a.place(inside)
    if s.low < 0:
        a.subs(total, -s.low)
    elif s.low:
        a.adds(total, s.low)

"""What functions for Armv7-M have in common: from sums of products to outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt.codegen.backends.armv7m.instructions import Armv7m, asr
from smelt.codegen.lower.registers import R2, R3, R4, R5, R6, R7, R8, SP, Register
from smelt.codegen.lower.requantization_32bit import ShortScaling


def load_row(a: Armv7m, s: ShortScaling, sums: Sequence[Register], at: Register = R2) -> None:
    """Loads a channel's row from where a register points to, and adds a bias to the sums.

    The offset goes to r4, the highest part to r5, lower ones to r6 and r7, the nudge to r8.
    """
    if s.biases is not None:
        a.ldr_then(R3, at, 4)
        for total in sums:
            a.add(total, total, R3)
    a.ldmia(at, [R4, *scaled_by(s)])


def scaled_by(s: ShortScaling) -> list[Register]:
    """The registers of parts and nudge."""
    return [*(R5, R6, R7)[: s.count], *([] if s.nudges is None else [R8])]


def requantize(a: Armv7m, s: ShortScaling, total: Register) -> None:
    """Makes the stored output of the sum in a register, in r3; r2 is lost."""
    if s.count == 1:
        a.mla(R3, total, R5, R4)
    else:
        a.mul(R3, total, R6)
        if s.count == 3:
            a.asrs(R3, R3, s.drop).mla(R3, total, R7, R3)
        a.add(R3, R4, asr(R3, s.drop)).mla(R3, total, R5, R3)
    if s.nudges is not None:
        a.and_(R2, R8, asr(R3, 31))
        lower(a, s, R3, R2)
    saturate(a, s, R3)


def lower(a: Armv7m, s: ShortScaling, total: Register, nudge: Register) -> None:
    """Lowers a scaled sum by the nudge, and centres it."""
    a.subs(total, total, nudge)
    if s.centre >= 0:
        a.add(total, total, s.centre)
    else:
        a.sub(total, total, -s.centre)


def saturate(a: Armv7m, s: ShortScaling, total: Register) -> None:
    """Makes the stored output of a scaled sum."""
    a.ssat(total, 8, asr(total, s.shift))
    if s.high < 127:
        a.at_most(total, s.high)
    if s.low > -128:
        a.at_least(total, s.low)


@dataclass(frozen=True)
class Turns:
    """How assembly goes over steps of its work: some of them, and then turns of a loop.

    Attributes:
        rest: steps before the loop.
        unrolled: steps in a turn.
        count: of turns.
    """

    rest: int
    unrolled: int
    count: int

    @staticmethod
    def of(steps: int, unrolled: int) -> Turns:
        """The turns over so many steps."""
        count = -(-steps // unrolled)
        if count <= 1:
            return Turns(steps, 0, 0)
        each = steps // count
        return Turns(steps - each * count, each, count)


def run_turns(
    a: Armv7m, turns: Turns, step: Callable[[], None], next_: Register, end: Register, at: int
) -> None:
    """All steps, until `next_` is what stands on the stack; `end` is lost."""
    if turns.rest:
        with a.repeat(turns.rest):
            step()
    if turns.count:
        turn = a.here(2)
        with a.repeat(turns.unrolled):
            step()
        a.ldr(end, SP, at).cmp(next_, end).b(turn, "ne")

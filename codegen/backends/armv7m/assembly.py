"""Assembly shared by the functions for Armv7-M: requantization and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt.codegen.backends.armv7m.instructions import Armv7m, asr
from smelt.codegen.lower.registers import R2, R3, R4, R5, R6, R7, R8, SP, Register
from smelt.codegen.lower.requantization_32bit import ShortScaling


def load_row(a: Armv7m, s: ShortScaling, sums: Sequence[Register], at: Register = R2) -> None:
    """Load the row of constants of a channel from `at`, and add the bias to the sums.

    r3: bias (if any); r4: offset; r5: highest part of the multiplier; r6, r7: its lower parts (if
    any); r8: nudge (if any).
    """
    if s.biases is not None:
        a.ldr_then(R3, at, 4)
        for total in sums:
            a.add(total, total, R3)
    a.ldmia(at, [R4, *scaled_by(s)])


def scaled_by(s: ShortScaling) -> list[Register]:
    """Return the registers of the multiplier's parts and the nudge."""
    return [*(R5, R6, R7)[: s.count], *([] if s.nudges is None else [R8])]


def requantize(a: Armv7m, s: ShortScaling, total: Register) -> None:
    """Compute the stored output of a sum in r3; r2 may change."""
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
    """Subtract the nudge from a scaled sum, and add the constant `center`."""
    a.subs(total, total, nudge)
    if s.center >= 0:
        a.add(total, total, s.center)
    else:
        a.sub(total, total, -s.center)


def saturate(a: Armv7m, s: ShortScaling, total: Register) -> None:
    """Shift, saturate and clamp a scaled sum to the stored output."""
    a.ssat(total, 8, asr(total, s.shift))
    if s.high < 127:
        a.at_most(total, s.high)
    if s.low > -128:
        a.at_least(total, s.low)


@dataclass(frozen=True)
class UnrolledLoop:
    """A sequence of equal steps: some before a loop, then a loop with several per iteration.

    Attributes:
        before: steps before the loop.
        unrolled: steps of an iteration; 0 without a loop.
        iterations: iterations of the loop; 0 without a loop.
    """

    before: int
    unrolled: int
    iterations: int

    @staticmethod
    def of(steps: int, most: int) -> UnrolledLoop:
        """Return the loop for `steps` steps, with at most `most` steps per iteration."""
        iterations = -(-steps // most)
        if iterations <= 1:
            return UnrolledLoop(steps, 0, 0)
        unrolled = steps // iterations
        return UnrolledLoop(steps - unrolled * iterations, unrolled, iterations)


def run_loop(
    a: Armv7m, loop: UnrolledLoop, step: Callable[[], None], next_: Register, end: Register, at: int
) -> None:
    """Append all steps.

    Args:
        a: the assembly to append to.
        loop: the number of steps.
        step: appends one step.
        next_: the register with the address that each step advances.
        end: a register that is changed: the loop ends if `next_` equals the word at `sp + at`.
        at: offset of the end address on the stack.
    """
    if loop.before:
        with a.repeat(loop.before):
            step()
    if loop.iterations:
        start = a.here(2)
        with a.repeat(loop.unrolled):
            step()
        a.ldr(end, SP, at).cmp(next_, end).b(start, "ne")

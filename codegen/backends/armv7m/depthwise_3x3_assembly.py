"""Armv7-M assembly: lines of outputs of a channel; 3x3 taps slide along them (`depthwise_3x3`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from smelt.codegen.backends.armv7m.assembly import lower, saturate
from smelt.codegen.backends.armv7m.instructions import Armv7m, asr, lsl
from smelt.codegen.lower.content_cache import cached_by_content
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

_FIRST, _LAST = (R5, R6, R7), (R8, R9, R10)
"""Weights of a column's first two inputs and of its last two."""

_REGISTERS = """\
r0: words of the column; r1: next output
r2: the column's first two inputs; r3: its last two inputs; r4: product
r5-r7: weights of the first two inputs; r8-r10: weights of the last two
r11, r12, lr: sums of three outputs
Stack: requantization constants%s, lines left, iterations left%s"""


@dataclass(frozen=True, kw_only=True)
class SlidingLines:
    """The computation of lines of outputs.

    Attributes:
        pitch: words of a line.
        outputs: outputs of a line.
        triples: groups of three outputs per iteration of the loop.
        iterations: iterations of the loop.
        step: bytes from an output to the next; None if they are an argument.
        line_step: bytes from a line of outputs to the next; None if arguments say how far that is.
        held: words of a channel's constants on the stack, with repairs if some channel has any.
        repaired: whether this function adds repairs.
        scaling: requantization of the sums.
        any_length: whether an argument says how many groups of three outputs a line has.
    """

    pitch: int
    outputs: int
    triples: int
    iterations: int
    step: int | None
    line_step: int | None
    held: int
    repaired: bool
    scaling: ShortScaling
    any_length: bool = False

    def shared(self, *, any_length: bool) -> SlidingLines:
        """Return the same for any distances between outputs and, if wanted, lines of any length.

        Lines of fewer than three outputs, and unrolled loops, keep their length.
        """
        any_length = any_length and self.triples == 1 and self.iterations > 0
        return replace(self, step=None, line_step=None, any_length=any_length)

    @property
    def passed(self) -> int:
        """Outputs that the register for the next output has passed at the end of a line."""
        return self.outputs if self.step is not None else self.outputs - self.outputs % 3

    def back(self, step: int, line_step: int) -> int:
        """Return the bytes from the position at the end of a line to the next line of outputs."""
        return line_step - step * self.passed

    @property
    def at_step(self) -> int:
        """Offset of the arguments `step` and `back` on the stack."""
        return 4 * self.held + 8

    @property
    def constants(self) -> int:
        """Words of requantization constants; the repairs follow them."""
        return self.scaling.rows.shape[1]

    @property
    def more(self) -> tuple[str, ...]:
        """What the stack contains behind the iterations left."""
        if self.step is not None:
            return ()
        return ("step", "back", "groups", "pitch") if self.any_length else ("step", "back")


@cached_by_content
def lines(p: SlidingLines) -> Armv7m:
    """Return the code of the function."""
    a, rest, left, iterations_left = Armv7m(), p.outputs % 3, 4 * p.held, 4 * p.held + 4
    more = "".join(f", `{name}`" for name in p.more)
    a.describe(_REGISTERS % (", repairs" if p.repaired else "", more))
    fifth = R12 if p.any_length else (R12, LR) if p.more else None
    with a.function(4 * (p.held + 2 + len(p.more)), fifth=fifth):
        a.mov(R11, R2).str_(R3, SP, left)
        if p.any_length:
            _store_walk(a, p)
        elif p.more:
            a.str_(R12, SP, p.at_step).str_(LR, SP, p.at_step + 4)
        a.ldmia(R1, (*_FIRST, *_LAST))
        for i in range(p.held):
            a.ldr(R4, R1, 4 * i).str_(R4, SP, 4 * i)
        a.mov(R1, R11)
        line = a.here(1)
        _column(a, p, 0, [R11])
        _column(a, p, 1, [R12, R11])
        _pass(a, p, 2)
        if p.iterations:
            start = None
            if p.any_length or p.iterations > 1:
                if p.any_length:
                    a.ldr(R4, SP, p.at_step + 8)
                else:
                    a.movs(R4, p.iterations)
                start = a.here(2)
                a.str_(R4, SP, iterations_left)
            with a.repeat(p.triples):
                _column(a, p, 0, [LR, R12, R11])
                _column(a, p, 1, [R11, LR, R12])
                _column(a, p, 2, [R12, R11, LR])
                _pass(a, p, 3)
            if start:
                a.ldr(R4, SP, iterations_left).subs(R4, R4, 1).b(start, "ne")
        if rest > 0:
            _column(a, p, 0, [LR, R12, R11])
        if rest > 1:
            _column(a, p, 1, [R11, LR, R12])
        if not p.any_length:
            a.advance(R0, 4 * (p.pitch - 2 - p.outputs + rest), R4)
        if p.step is None or p.line_step is None:
            a.ldr(R4, SP, p.at_step + 4).add(R1, R1, R4)
        else:
            a.advance(R1, p.back(p.step, p.line_step), R4)
        a.ldr(R4, SP, left).subs(R4, R4, 1).str_(R4, SP, left)
        a.b(line, "ne")
    return a


def _store_walk(a: Armv7m, p: SlidingLines) -> None:
    """Store `step`, `back` and `groups`, to which r12 points, and the bytes of a line of words."""
    a.ldm(R12, [R4, R5, R6]).str_(R4, SP, p.at_step).str_(R5, SP, p.at_step + 4)
    a.str_(R6, SP, p.at_step + 8).add(R6, R6, lsl(R6, 1)).movs(R4, 4 * (p.outputs % 3 + 2))
    a.add(R4, R4, lsl(R6, 2)).str_(R4, SP, p.at_step + 12)


def _pass(a: Armv7m, p: SlidingLines, columns: int) -> None:
    """Advance r0 by columns; in lines of any length, each column has advanced it already."""
    if not p.any_length:
        a.adds(R0, 4 * columns)


def _column(a: Armv7m, p: SlidingLines, at: int, sums: list[Register]) -> None:
    """Add a column to the sums of outputs whose windows contain it, the newest output first.

    The third sum is then complete, and its output is stored.
    """
    if p.any_length:
        a.ldr(R3, SP, p.at_step + 12).ldr(R3, R0, R3).ldr_then(R2, R0, 4)
    else:
        a.ldr(R2, R0, 4 * at)
        a.ldr(R3, R0, 4 * (at + p.pitch))
    for tap in reversed(range(len(sums))):
        _add(a, p, sums[tap], tap)
    if len(sums) > 2:
        _finish(a, p, sums[2], at)


def _add(a: Armv7m, p: SlidingLines, total: Register, tap: int) -> None:
    """Add the products of a column that is column `tap` of the output's window."""
    a.mul(R4, R2, _FIRST[tap])
    if tap == 0:
        a.asr(total, R4, 16)
    else:
        a.add(total, total, asr(R4, 16))
    a.mul(R4, R3, _LAST[tap]).add(total, total, asr(R4, 16))
    if p.repaired:
        a.ldr(R4, SP, 4 * (p.constants + tap)).mul(R4, R2, R4)
        a.add(total, total, asr(R4, 16))


def _finish(a: Armv7m, p: SlidingLines, total: Register, at: int) -> None:
    """Store the output of a sum; `at` is its index among three outputs.

    The constants on the stack: offset, parts of the multiplier from the highest, nudge, bias.
    """
    s = p.scaling
    if s.biases is not None:
        a.ldr(R2, SP, 4 * (p.constants - 1)).add(total, total, R2)
    if s.count == 1:
        a.ldrd(R2, R3, SP).mla(R4, total, R3, R2)
    else:
        if s.count == 3:
            a.ldrd(R4, R3, SP, 8).mul(R4, total, R4).asr(R4, R4, s.drop)
            a.mla(R4, total, R3, R4)
            a.ldrd(R2, R3, SP)
        else:
            a.ldm(SP, [R2, R3, R4]).mul(R4, total, R4)
        a.add(R4, R2, asr(R4, s.drop)).mla(R4, total, R3, R4)
    if s.nudges is not None:
        a.ldr(R2, SP, 4 * (1 + s.count)).and_(R2, R2, asr(R4, 31))
        lower(a, s, R4, R2)
    saturate(a, s, R4)
    if p.step is None:
        _store(a, p, at)
    elif p.step < 256:
        a.strb_then(R4, R1, p.step)
    else:
        a.strb(R4, R1)
        a.advance(R1, p.step, R4)


def _store(a: Armv7m, p: SlidingLines, at: int) -> None:
    """Store an output at the distance `step`; the register advances once for three outputs."""
    if at == 0:
        a.strb(R4, R1)
        return
    a.ldr(R2, SP, p.at_step)
    a.strb(R4, R1, R2 if at == 1 else lsl(R2, 1))
    if at == 2:
        a.add(R1, R1, R2).add(R1, R1, lsl(R2, 1))


def executed(p: SlidingLines, count: int) -> int:
    """Return the instructions that the function executes for `count` lines."""
    code, once = lines(p).count, 8 + 2 * p.held + 3 * len(p.more) // 2
    iteration = Armv7m()
    with iteration.repeat(p.triples):
        for at in range(3):
            _column(iteration, p, at, [LR, R12, R11])
        _pass(iteration, p, 3)
    iterations = max(p.iterations - 1, 0) * (iteration.count + 4)
    return once + count * (code - once + iterations)

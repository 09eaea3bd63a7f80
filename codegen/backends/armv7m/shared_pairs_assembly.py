"""Armv7-M assembly: three pixels, in pairs of taps, of layers of all sizes (`shared_pairs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.backends.armv7m.assembly import load_row, requantize
from smelt.codegen.backends.armv7m.convolution_pairs_assembly import (
    REPAIR_INSTRUCTIONS,
    STEP_INSTRUCTIONS,
    PairsOfTaps,
    repair,
    step,
)
from smelt.codegen.backends.armv7m.instructions import Armv7m, lsl
from smelt.codegen.lower.assembly_builder import Label
from smelt.codegen.lower.registers import (
    LR,
    PC,
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
from smelt.codegen.lower.requantization_32bit import ScalingSteps, ShortScaling

_OUTPUTS, _OUT, _END, _ENTRY, _TAIL, _PATCH, _PATCH_END = range(0, 28, 4)
"""Offsets on the stack."""

_FIRST_TAIL = 10
"""Number of the label of the first tail; the others follow."""

STEP_BYTES = {True: 44, False: 62}
"""Bytes of the code of a step, with weights in words or in bytes; a layer enters the chain as many
steps before its end as it needs."""

LONGEST_CHAIN = 56
"""Largest number of steps in a chain: ADR reaches its end."""

_REGISTERS = """\
r1: next constants; r2-r4: inputs of the three pixels
r5, r6: weights of channels 0 and 1; r7: next inputs; r8: product
r9-r11: sums of channel 0; r12, lr, r0: sums of channel 1
Stack: number of channels, next output of the first pixel, end of that pixel's outputs,
first step in the chain, %s, `patch`%s"""


@dataclass(frozen=True)
class Tail:
    """The code that stores the outputs of a pair of channels.

    Attributes:
        scaling: the requantization of the sums.
        odd: whether the last pair of channels may have one channel only.
    """

    scaling: ShortScaling
    odd: bool

    @property
    def key(self) -> tuple[ScalingSteps, bool]:
        """A key that is equal for tails with equal code."""
        return self.scaling.steps, self.odd

    @property
    def base(self) -> Register | None:
        """The register for the outputs' address, if requantization does not use them all."""
        if self.scaling.count < 3:
            return R7
        return R8 if self.scaling.nudges is None else None


@dataclass(frozen=True)
class JointSums:
    """The sums that a shared function computes.

    Attributes:
        in_words: whether weights are words; otherwise bytes, two pairs in a word.
        repaired: whether layers have repairs.
        chain: steps after a layer's first one, of all layers or of an iteration.
        looped: whether the chain is a loop.
        tails: the tails.
    """

    in_words: bool
    repaired: bool
    chain: int
    looped: bool
    tails: tuple[Tail, ...]

    @property
    def step_bytes(self) -> int:
        """Bytes of the code of a step."""
        return STEP_BYTES[self.in_words]

    def entry(self, steps: int) -> int:
        """Return the bytes from a layer's first step in the chain to the end of the chain.

        One less is subtracted from the end, because bit 0 of an address to jump to must be 1.
        """
        left = (steps - 2) % self.chain + 1 if self.looped else steps - 1
        return left * self.step_bytes - 1

    def tail(self, tail: Tail) -> int:
        """Return the offset of a tail in the table of tails."""
        return 4 * [other.key for other in self.tails].index(tail.key)


def joint_block(b: JointSums) -> Armv7m:
    """Return the code of the function."""
    a, several, chain, end = Armv7m(), len(b.tails) > 1, Label(2), Label(3)
    labels = [Label(_FIRST_TAIL + i) for i in range(len(b.tails))]
    end_of_patch = ", its end" if b.looped else ""
    a.describe(_REGISTERS % ("tail" if several else "unused", end_of_patch))
    with a.function(28):
        table = _prologue(a, end, looped=b.looped, several=several)
        pair = a.here(1)
        a.ldr(R7, SP, _PATCH)
        a.ldmia(R1, [R9, R12])
        step(a, in_words=b.in_words, first=True)
        a.ldr(PC, SP, _ENTRY)
        if several:
            a.table(table, labels)
        if b.looped:
            a.place(chain)
        with a.repeat(b.chain):
            step(a, in_words=b.in_words, first=False)
        a.place(end)
        if b.looped:
            a.ldr(R8, SP, _PATCH_END).cmp(R7, R8).b(chain, "ne")
        if b.repaired:
            a.ldr(R8, SP, _PATCH)
            repair(a, (R9, R10, R11))
            repair(a, (R12, LR, R0))
        if several:
            a.ldr(PC, SP, _TAIL)
        for i, (tail, label) in enumerate(zip(b.tails, labels, strict=True)):
            if i:
                a.leave(28)
            if several:
                a.place(label)
            _tail(a, tail, pair)
    return a


def _prologue(a: Armv7m, end: Label, *, looped: bool, several: bool) -> Label:
    """Store arguments and addresses on the stack; return the label of the table of tails.

    r0: `patch`; r1: constants; r2: `layer`, which begins with the number of outputs, the distance
    of the entry, the offset of the tail and the bytes of inputs; r3: `out`.
    """
    table = Label(4)
    a.ldm(R2, [R2, R5, R6, R7] if looped else [R2, R5, R6])
    a.add(R4, R3, R2)
    a.adr(R8, end).sub(R5, R8, R5)
    if several:
        a.adr(R8, table).ldr(R6, R8, R6).add(R6, R6, R8)
    if looped:
        a.add(R8, R0, R7)
    a.mov(R7, R0)
    a.stm(SP, [R2, R3, R4, R5, R6, R7, *([R8] if looped else [])])
    return table


def _tail(a: Armv7m, t: Tail, pair: Label) -> None:
    """Store the outputs of a pair of channels; return after the last one."""
    s, done = t.scaling, Label(5)
    base, first, second = t.base, (R9, R10, R11), (R12, LR, R0)
    if base is None:
        raise ValueError("requantization leaves no register for the address of outputs")
    free = s.nudges is None
    end = R8 if free and base is R7 else R9
    load_row(a, s, first, R1)
    if end is R8:
        a.ldm(SP, [R2, R7, R8])
    elif free:
        a.ldm(SP, [R2, base])
    else:
        a.ldr(base, SP, _OUT)
    _store(a, s, first, base)
    if t.odd:
        if end is R9:
            a.ldr(end, SP, _END)
        a.cmp(base, end).b(done, "eq")
    load_row(a, s, second, R1)
    _store(a, s, second, base)
    a.str_(base, SP, _OUT)
    if end is R9 and not t.odd:
        a.ldr(end, SP, _END)
    a.cmp(base, end).b(pair, "ne")
    if t.odd:
        a.place(done)


def _store(a: Armv7m, s: ShortScaling, sums: Sequence[Register], base: Register) -> None:
    """Store a channel's outputs of the three pixels, the last one first; `base` is advanced by 1.

    r2 has the number of channels if there are no nudges; otherwise the last pixel's sum gets it.
    """
    outputs = R2 if s.nudges is None else sums[2]
    for pixel, total in reversed(tuple(enumerate(sums))):
        requantize(a, s, total)
        if pixel == 2 and outputs is total:
            a.ldr(outputs, SP, _OUTPUTS)
        if pixel:
            a.strb(R3, base, lsl(outputs, 1) if pixel == 2 else outputs)
        else:
            a.strb_then(R3, base, 1)


def joint_instructions(b: JointSums, layer: PairsOfTaps, tail: Tail) -> int:
    """Return the instructions that the function executes for a layer, without repairs."""
    a, second, several = Armv7m(), Armv7m(), len(b.tails) > 1
    _tail(a, tail, Label(1))
    load_row(second, tail.scaling, (R12, LR, R0), R1)
    _store(second, tail.scaling, (R12, LR, R0), tail.base or R7)
    once, chain = 10 + b.looped + 3 * several, layer.steps - 1
    iterations = -(-chain // b.chain) if b.looped else 0
    steps = (chain + 1) * STEP_INSTRUCTIONS[b.in_words] + 3 * iterations
    pair = 3 + steps + several + REPAIR_INSTRUCTIONS * b.repaired + a.count
    absent = second.count * (layer.outputs % 2)
    return once + -(-layer.outputs // 2) * pair - absent

"""Text of Helium functions that pool neighboring windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.backends.helium.assembly import HeliumAssembly
from smelt.codegen.lower.exact_division import Quotients
from smelt.codegen.lower.pool_loops import PoolLoops
from smelt.codegen.lower.pooling import Pooling
from smelt.ir import Array

_REACH = 127
"""Largest immediate offset of a load of bytes."""


@dataclass(frozen=True)
class SumNarrowing:
    """Averages `(sum * factor + start)`, narrowed by two rounding right shifts.

    `start` is the addend of `quotients` minus `rounding`, so that the results equal `quotients`.
    VQSHRN would not round, but binutils 2.40 encodes it as VQRSHRN.
    """

    quotients: Quotients

    @property
    def shifts(self) -> tuple[int, int]:
        """The shifts of the two narrowing instructions."""
        return self.quotients.shift - 8, 8

    @property
    def rounding(self) -> int:
        """The number that the two narrowing instructions add to round."""
        return (1 << (self.quotients.shift - 9)) + (1 << (self.quotients.shift - 1))

    @property
    def table(self) -> Array:
        """int32 `[2 * kinds]`: factors and starts, alternating."""
        q = self.quotients
        return np.stack([q.factors, q.addends - self.rounding], axis=1).astype(np.int32).ravel()


@dataclass(frozen=True)
class RoundingSteps:
    """gemmlowp's two roundings of a sum: a doubling high multiply, then a right shift.

    Attributes:
        center: number added to the sum for the input's zero point.
        multiplier: fixed-point multiplier.
        shift: right shift.
        zero_point: zero point of the output.
    """

    center: int
    multiplier: int
    shift: int
    zero_point: int


@dataclass
class _PoolWriter:
    """Writes the body of a pooling function; `registers` lists its registers."""

    p: Pooling
    walk: PoolLoops
    scaling: SumNarrowing | RoundingSteps | None
    lanes: int
    asm: HeliumAssembly

    @property
    def predicated(self) -> bool:
        """Whether loads and stores are predicated: there are fewer channels than lanes."""
        return self.p.channels < self.lanes

    def access(self, text: str) -> None:
        """Append a load or store, predicated if necessary; `{}` marks where its `t` goes."""
        if self.predicated:
            self.asm("vpst")
        self.asm(text.format("t" if self.predicated else ""))

    def function(self) -> None:
        """Append the whole body."""
        asm, p = self.asm, self.p
        asm.enter(arguments=4)
        self.constants()
        for text in self.registers():
            asm.note(text)
        asm("3:", "mov r5, r0")
        groups = self.groups
        if groups > 1:
            exact = p.channels % self.lanes == 0
            asm.constant("r9", groups if exact else p.channels - self.lanes)
        asm("4:")
        self.window()
        self.finish()
        self.next_group(groups)
        asm.add("r0", "r0", p.columns.stride * p.channels, "r5")
        asm("subs r2, #1", "bne 3b")
        asm.leave()

    @property
    def groups(self) -> int:
        """Groups of channels of a pixel."""
        return -(-self.p.channels // self.lanes)

    def registers(self) -> tuple[str, ...]:
        """Return the comments that list the registers."""
        w, p = self.walk, self.p
        addresses = ["r0: window", "r1: outputs", "r5: the group's window", "r7: input"]
        counts = ["r2: pixels left", "r10: channels"]
        if w.rows != 1:
            addresses.append("r6: next row of the window")
            counts += ["r8: rows left", "r11: bytes of a row"]
        if self.groups > 1:
            whole = p.channels % self.lanes == 0
            counts.append("r9: groups left" if whole else "r9: channels after this group")
        if w.rows is None:
            counts.append("r3: rows of the window")
        if w.columns is None:
            counts.append("r4: columns of the window")
        vectors = [f"{'q0, q1' if self.lanes == 16 else 'q0'}: sums"]
        if isinstance(self.scaling, RoundingSteps):
            vectors.append("r12, r3, r4, r8: addend, multiplier, shift, zero point")
        elif self.scaling is not None:
            vectors.append("q3: factor; r12: addend")
        else:
            vectors = ["q0: maxima"]
        if p.limits[0] > -128:
            vectors.append("q4: lower limit")
        if p.limits[1] < 127:
            vectors.append("q5: upper limit")
        return "; ".join(addresses), "; ".join(counts), "; ".join(vectors)

    def constants(self) -> None:
        """Load everything that stays the same for all windows."""
        asm, p, index = self.asm, self.p, 3
        rows, columns = self.walk.rows, self.walk.columns
        for register, passed in (("r3", rows is None), ("r4", columns is None)):
            if passed:
                asm(f"ldr {register}, {asm.argument(index)}")
                index += 1
        scaling = self.scaling
        if isinstance(scaling, RoundingSteps):
            # A reduction's window is one whole row, so r3, r4, r6 and r8 are free.
            asm.constant("r12", scaling.center)
            asm.constant("r3", scaling.multiplier)
            asm.constant("r4", -scaling.shift)
            asm.constant("r8", scaling.zero_point)
        elif scaling is not None:
            if p.varies:
                asm(f"ldr r12, {asm.argument(index)}", "ldrd r5, r12, [r12]")
            else:
                factor, start = scaling.table.tolist()
                asm.constant("r5", factor)
                asm.constant("r12", start)
            asm("vdup.32 q3, r5")
        for limit, extreme, vector in zip(p.limits, (-128, 127), ("q4", "q5"), strict=True):
            if limit != extreme:
                asm.constant("r5", limit)
                asm(f"vdup.8 {vector}, r5")
        asm.constant("r10", p.channels)
        if self.walk.rows != 1:
            asm.constant("r11", p.row)
        if self.predicated:
            asm(f"vctp.{8 if p.is_max else 16} r10")

    def window(self) -> None:
        """Compute the sums or maxima of a group of channels over its window."""
        asm, w = self.asm, self.walk
        if self.p.is_max:
            asm("vmov.i8 q0, #128")
        else:
            asm("vmov.i16 q0, #0")
            if self.lanes == 16:
                asm("vmov.i16 q1, #0")
        if w.rows == 1:
            asm("mov r7, r5")
            self.row()
            return
        if w.rows is None:
            asm("mov r8, r3")
        else:
            asm.constant("r8", w.rows)
        asm("mov r6, r5", "5:", "mov r7, r6", "add r6, r11")
        self.row()
        asm("subs r8, #1", "bne 5b")

    def row(self) -> None:
        """Add the pixels of a row of the window (or take their maxima)."""
        asm, w = self.asm, self.walk
        if w.columns is None or w.iterations > 1:
            if w.columns is not None:
                asm.constant("lr", w.iterations)
            asm(f"dls lr, {'r4' if w.columns is None else 'lr'}", "6:")
            self.advance(self.columns(w.unrolled))
            asm("le lr, 6b")
        else:
            self.advance(self.columns(w.unrolled), last=not w.rest)
        self.columns(w.rest)

    def columns(self, count: int) -> int:
        """Add `count` neighboring pixels; return the bytes that r7 lags behind the next pixel."""
        behind = 0
        for i in range(count):
            if behind + (8 if self.lanes == 16 else 0) > _REACH:
                self.advance(behind)
                behind = 0
            if self.p.is_max:
                vector = ("q1", "q2")[i % 2]
                self.access(f"vldrb{{}}.8 {vector}, [r7, #{behind}]")
                self.asm(f"vmax.s8 q0, q0, {vector}")
            elif self.lanes == 8:
                vector = ("q2", "q6")[i % 2]
                self.access(f"vldrb{{}}.s16 {vector}, [r7, #{behind}]")
                self.asm(f"vadd.i16 q0, q0, {vector}")
            else:
                for half, vector in enumerate(("q2", "q6")):
                    self.asm(f"vldrb.s16 {vector}, [r7, #{behind + 8 * half}]")
                    self.asm(f"vadd.i16 q{half}, q{half}, {vector}")
            behind += self.p.channels
        return behind

    def advance(self, behind: int, *, last: bool = False) -> None:
        """Advance r7 to the next pixel, unless the `last` pixel was read."""
        if behind == self.p.channels and not last:
            self.asm("add r7, r10")
        elif not last:
            self.asm.add("r7", "r7", behind, "")

    def finish(self) -> None:
        """Scale, clamp and store the outputs of a group."""
        asm, limits = self.asm, self.p.limits
        clamps = [
            f"{step}.s8 {{0}}, {{0}}, {vector}"
            for step, vector, narrow in (
                ("vmax", "q4", limits[0] > -128),
                ("vmin", "q5", limits[1] < 127),
            )
            if narrow
        ]
        if self.scaling is None:
            asm(*(clamp.format("q0") for clamp in clamps))
            self.access("vstrb{}.8 q0, [r1]")
            return
        for half in range(self.lanes // 8):
            sums = f"q{half}"
            asm(f"vmovlb.s16 q2, {sums}", f"vmovlt.s16 q6, {sums}")
            if isinstance(self.scaling, RoundingSteps):
                for vector in ("q2", "q6"):
                    self.steps(vector, self.scaling)
                asm(f"vqmovnb.s32 {sums}, q2", f"vqmovnt.s32 {sums}, q6")
                asm(f"vqmovnb.s16 {sums}, {sums}")
            else:
                first, second = self.scaling.shifts
                asm("vmlas.s32 q2, q3, r12", "vmlas.s32 q6, q3, r12")
                asm(f"vqrshrnb.s32 {sums}, q2, #{first}", f"vqrshrnt.s32 {sums}, q6, #{first}")
                asm(f"vqrshrnb.s16 {sums}, {sums}, #{second}")
            asm(*(clamp.format(sums) for clamp in clamps))
            self.access(f"vstrb{{}}.16 {sums}, [r1, #{8 * half}]")

    def steps(self, vector: str, steps: RoundingSteps) -> None:
        """Append gemmlowp's steps for four sums.

        The shift rounds ties away from zero, but VRSHL rounds them up; therefore negative numbers
        are decremented before the shift.
        """
        self.asm(f"vadd.i32 {vector}, {vector}, r12", f"vqrdmulh.s32 {vector}, {vector}, r3")
        if steps.shift:
            self.asm(f"vshr.s32 q7, {vector}, #31", f"vadd.i32 {vector}, {vector}, q7")
            self.asm(f"vrshl.s32 {vector}, r4")
        self.asm(f"vadd.i32 {vector}, {vector}, r8")

    def next_group(self, groups: int) -> None:
        """Advance to the next group; the last group may repeat channels of the one before."""
        asm, lanes, channels = self.asm, self.lanes, self.p.channels
        if groups == 1:
            asm(f"adds r1, #{channels}")
        elif channels % lanes == 0:
            asm(f"adds r5, #{lanes}", f"adds r1, #{lanes}", "subs r9, #1", "bne 4b")
        else:
            asm("cmp r9, #0", "beq 7f")
            asm(f"movs r7, #{lanes}", f"cmp r9, #{lanes}", "it lo", "movlo r7, r9")
            asm("add r5, r7", "add r1, r7", "sub r9, r7", "b 4b")
            asm("7:", f"adds r1, #{lanes}")


def assembly(
    p: Pooling, walk: PoolLoops, scaling: SumNarrowing | RoundingSteps | None, lanes: int
) -> HeliumAssembly:
    """Return the body of a pooling function."""
    writer = _PoolWriter(p, walk, scaling, lanes, HeliumAssembly())
    writer.function()
    return writer.asm

"""Text of Helium functions that pool pixels side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.backends.helium.assembly import HeliumAssembly
from smelt.codegen.lower.exact_division import Quotients
from smelt.codegen.lower.pool_loops import PoolLoops
from smelt.codegen.lower.pooling import Pooling
from smelt.ir import Array

_REACH = 127
"""The largest offset of a load of bytes."""


@dataclass(frozen=True)
class SumNarrowing:
    """A sum's `(sum * factor + start)`, narrowed twice to nearest; `quotients` say the same.

    VQSHRN would not round, but binutils 2.40 encodes it as VQRSHRN: so starts lack what rounding
    adds.
    """

    quotients: Quotients

    @property
    def shifts(self) -> tuple[int, int]:
        """Of both narrowings."""
        return self.quotients.shift - 8, 8

    @property
    def rounding(self) -> int:
        """What both narrowings add."""
        return (1 << (self.quotients.shift - 9)) + (1 << (self.quotients.shift - 1))

    @property
    def table(self) -> Array:
        """int32 `[2 * kinds]`: factors and starts in turn."""
        q = self.quotients
        return np.stack([q.factors, q.addends - self.rounding], axis=1).astype(np.int32).ravel()


@dataclass(frozen=True)
class RoundingSteps:
    """gemmlowp's two roundings of a sum: the doubling high product, and a shift.

    Attributes:
        centre: what is added to the sum.
        multiplier: of the product.
        shift: to the right.
        zero_point: of the output.
    """

    centre: int
    multiplier: int
    shift: int
    zero_point: int


@dataclass
class _PoolWriter:
    """Writes a function's body.

    Registers: r0 window, r1 output, r2 pixels left, r3 rows, r4 columns, r5 window of the group,
    r6 its row, r7 its pixel, r8 rows left, r9 groups or channels left, r10 channels, r11 row of the
    image, r12 start; q0, q1 sums or largest, q3 factor, q4, q5 limits.
    """

    p: Pooling
    walk: PoolLoops
    scaling: SumNarrowing | RoundingSteps | None
    lanes: int
    asm: HeliumAssembly

    @property
    def predicated(self) -> bool:
        """Whether there are fewer channels than lanes."""
        return self.p.channels < self.lanes

    def access(self, text: str) -> None:
        """A load or a store; its name's `{}` takes the mark of a predicate."""
        if self.predicated:
            self.asm("vpst")
        self.asm(text.format("t" if self.predicated else ""))

    def function(self) -> None:
        """All of it."""
        asm, p = self.asm, self.p
        asm.enter()
        self.arguments()
        asm.note("a pixel")
        asm("3:", "mov r5, r0")
        groups = -(-p.channels // self.lanes)
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

    def arguments(self) -> None:
        """Loads what does not change."""
        asm, p, index = self.asm, self.p, 3
        for register, told in (("r3", self.walk.rows is None), ("r4", self.walk.columns is None)):
            if told:
                asm(f"ldr {register}, {asm.argument(index)}")
                index += 1
        scaling = self.scaling
        if isinstance(scaling, RoundingSteps):
            # Reductions are whole rows: r3, r4, r6, r8 are not needed.
            asm.constant("r12", scaling.centre)
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
            asm(f"vctp.{8 if p.largest else 16} r10")

    def window(self) -> None:
        """The sums or maxima of a group's window."""
        asm, w = self.asm, self.walk
        if self.p.largest:
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
        """Takes in the pixels of a row."""
        asm, w = self.asm, self.walk
        if w.columns is None or w.turns > 1:
            if w.columns is not None:
                asm.constant("lr", w.turns)
            asm(f"dls lr, {'r4' if w.columns is None else 'lr'}", "6:")
            self.advance(self.columns(w.unrolled))
            asm("le lr, 6b")
        else:
            self.advance(self.columns(w.unrolled), last=not w.rest)
        self.columns(w.rest)

    def columns(self, count: int) -> int:
        """Takes in pixels side by side; how far r7 lags behind the next one."""
        behind = 0
        for i in range(count):
            if behind + (8 if self.lanes == 16 else 0) > _REACH:
                self.advance(behind)
                behind = 0
            if self.p.largest:
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
        """Brings r7 to the next pixel, if there is one."""
        if behind == self.p.channels and not last:
            self.asm("add r7, r10")
        elif not last:
            self.asm.add("r7", "r7", behind, "")

    def finish(self) -> None:
        """Stores a group's outputs."""
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
        """gemmlowp's, of four sums; ties go away from zero, as VRSHL's do not."""
        self.asm(f"vadd.i32 {vector}, {vector}, r12", f"vqrdmulh.s32 {vector}, {vector}, r3")
        if steps.shift:
            self.asm(f"vshr.s32 q7, {vector}, #31", f"vadd.i32 {vector}, {vector}, q7")
            self.asm(f"vrshl.s32 {vector}, r4")
        self.asm(f"vadd.i32 {vector}, {vector}, r8")

    def next_group(self, groups: int) -> None:
        """Goes on; the last group may repeat channels of the one before."""
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
    """The body of a function."""
    writer = _PoolWriter(p, walk, scaling, lanes, HeliumAssembly())
    writer.function()
    return writer.asm

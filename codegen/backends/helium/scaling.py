"""From int32 sums to int8 outputs on Helium: the roundings of the reference, step by step.

VQRDMULH is the doubling high multiply, to nearest with ties upwards, that is gemmlowp's first step.
VRSHL shifts right to nearest with ties upwards, where gemmlowp's second step rounds ties away from
zero. The two differ for negative numbers only, and not if they are lowered by one first:
`(x - 1 + 2^(e-1)) >> e` rounds ties of negative x down, for shifts e of one or more. Where the
output is clamped at its zero point, negative numbers end up there either way. So both forms are
exact by construction; what is left to check is that no channel shifts left.

ONNX's rounding, a product in float32 and ties to even, is VCVT, VMUL and VCVTN.

Narrowing packs pairs: VQMOVNB fills even halfwords, VQMOVNT odd ones. Four vectors of four channels
make sixteen bytes, of which byte 4 l + (0, 2, 1, 3)[v] is lane l of vector v; two make eight, with
byte 2 l + v. Constants, weights and biases are permuted accordingly, so that outputs come in order.

Sources: gemmlowp's fixedpoint.h; Armv8-M Architecture Reference Manual, C2.4 (VQRDMULH, VRSHL).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.backends.helium.assembly import HeliumAssembly
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.helpers import when
from smelt.ir import Array

_ORDER = {1: (0,), 2: (0, 1), 4: (0, 2, 1, 3)}
"""By vectors in a group, the first channel of each."""

CONSTANT, LOW, HIGH, ONE = "r9", "r0", "r2", "r12"


@dataclass(frozen=True)
class LaneGroup:
    """Output channels that are narrowed together.

    Attributes:
        first: its first channel.
        vectors: of four channels each: 1, 2 or 4.
        channels: those that exist.
    """

    first: int
    vectors: int
    channels: int

    @property
    def lanes(self) -> Array:
        """int64 `[vectors, 4]`: the channel in each lane; too large where it does not exist."""
        order = np.asarray(_ORDER[self.vectors])[:, None]
        return self.first + np.arange(4) * self.vectors + order

    @property
    def size(self) -> int:
        """Bits of an element of the store that puts four, eight or sixteen bytes in a row."""
        return 32 // self.vectors


def groups(channels: int) -> tuple[LaneGroup, ...]:
    """Channels in groups of sixteen, and what is left over in the fewest vectors."""
    found = [LaneGroup(first, 4, 16) for first in range(0, channels - 15, 16)]
    first = len(found) * 16
    while first < channels:
        left = channels - first
        vectors = 4 if left > 12 else 2 if left > 4 else 1
        found.append(LaneGroup(first, vectors, min(left, 4 * vectors)))
        first += 4 * vectors
    return tuple(found)


@dataclass(frozen=True)
class GroupRun:
    """Groups of equal size in a row, as the plain C definition loops over them."""

    first: int
    end: int
    vectors: int

    @property
    def width(self) -> int:
        """Channels of a group."""
        return 4 * self.vectors

    @property
    def order(self) -> tuple[int, ...]:
        """The first channel of each vector of a group."""
        return _ORDER[self.vectors]


def runs(parts: tuple[LaneGroup, ...]) -> tuple[GroupRun, ...]:
    """The groups, those of equal size together."""
    found: list[GroupRun] = []
    for part in parts:
        end = part.first + part.channels
        if found and found[-1].vectors == part.vectors:
            found[-1] = GroupRun(found[-1].first, end, part.vectors)
        else:
            found.append(GroupRun(part.first, end, part.vectors))
    return tuple(found)


def permuted(parts: tuple[LaneGroup, ...], values: Array) -> Array:
    """`[vectors, 4, ...]`: values `[o, ...]` in the order of lanes, zeros where none exist."""
    order = np.concatenate([group.lanes for group in parts])
    padded = np.zeros((order.max() + 1, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    return padded[order]


@dataclass(frozen=True)
class ScaledDefinition:
    """The C function that scales one sum.

    Attributes:
        single: whether it multiplies floats.
        away: whether ties of integers are rounded away from zero.
        low, high: limits of the result, of floats before the zero point is added.
        plus: C that adds it.
    """

    single: bool
    away: bool
    low: int
    high: int
    plus: str


@dataclass(frozen=True)
class HeliumScaling:
    """The steps that turn a group's sums of products into outputs.

    Attributes:
        biases: int64 `[o]`, the input's zero point folded in.
        factors: int64 `[o]`: multipliers, or floats as their bits.
        shifts: int64 `[o]`, to the right.
        zero_point, low, high: of the output.
        single: whether factors are floats.
    """

    biases: Array
    factors: Array
    shifts: Array
    zero_point: int
    low: int
    high: int
    single: bool = False

    @staticmethod
    def of(requantization: Requantization, biases: Array) -> HeliumScaling | None:
        """The steps; None where sums would have to be shifted left."""
        r = requantization
        if r.reals is not None:
            factors = r.reals.view(np.int32).astype(np.int64)
            shifts = np.zeros(len(factors), np.int64)
            return HeliumScaling(biases, factors, shifts, r.zero_point, r.low, r.high, single=True)
        shifts = np.where(r.multipliers != 0, -r.shifts, 1)
        if shifts.min() < (r.low < r.zero_point) or shifts.max() > 31:
            return None
        return HeliumScaling(biases, r.multipliers, shifts, r.zero_point, r.low, r.high)

    @property
    def away(self) -> bool:
        """Whether ties of negative numbers must be rounded away from zero."""
        return not self.single and self.low < self.zero_point

    @property
    def definition(self) -> ScaledDefinition:
        """What plain C has of it."""
        zero = self.zero_point if self.single else 0
        plus = offset("", self.zero_point)
        return ScaledDefinition(self.single, self.away, self.low - zero, self.high - zero, plus)

    @property
    def fields(self) -> int:
        """Vectors of constants for a vector of channels: biases, factors, and shifts."""
        return 2 if self.single else 3

    @property
    def uses(self) -> frozenset[str]:
        """The helpers that the plain C definition uses."""
        return when(self.single, "rounded", "float_from_bits")

    @property
    def unsigned(self) -> bool:
        """Whether saturation to 0 ... 255 is the clamp, so that 128 is all there is to subtract."""
        return self.zero_point == self.low == -128 and self.high == 127

    def part(self, first: int, end: int) -> HeliumScaling:
        """The same for some of the channels."""
        return replace(
            self,
            biases=self.biases[first:end],
            factors=self.factors[first:end],
            shifts=self.shifts[first:end],
        )

    def constants(self, parts: tuple[LaneGroup, ...]) -> Array:
        """int32 `[vectors, fields, 4]`: for each vector of channels its constants."""
        fields = (self.biases, self.factors, -self.shifts)[: self.fields]
        columns = [permuted(parts, np.asarray(values, np.int64)) for values in fields]
        return np.stack(columns, axis=1).astype(np.int32)

    def prepare(self, asm: HeliumAssembly) -> None:
        """Load what `group` keeps in registers: one, the zero point, limits."""
        asm(f"mov {ONE}, #1")
        asm.constant(CONSTANT, 128 if self.unsigned else self.zero_point)
        if not self.unsigned:
            for limit, register, extreme in ((self.low, LOW, -128), (self.high, HIGH, 127)):
                if limit != extreme:
                    asm.constant(register, limit)

    def group(
        self,
        asm: HeliumAssembly,
        group: LaneGroup,
        load: Callable[[int, int], str],
        constants: Callable[[int], str],
        pixels: tuple[str, ...],
        spare: str = "q2",
    ) -> None:
        """Scale and store a group for one pixel or two.

        Args:
            asm: where to.
            group: which channels.
            load: of a vector and a pixel, the instruction's text that loads its sums, with %s for
                the register.
            constants: of a vector of constants, its address.
            pixels: the addresses of the outputs.
            spare: a register besides q0, q1, q2 and q4 ... q7, if there is one.
        """
        with asm.overlapping():
            results = self._bytes(asm, group, load, constants, len(pixels), spare)
            self._clamp(asm, results)
        size, count = group.size, len(pixels)
        if group.channels < 4 * group.vectors:
            asm(f"movs r4, #{group.channels}", f"vctp.{size} r4", "vps" + "t" * count)
            asm(*(f"vstrbt.{size} {q}, {at}" for q, at in zip(results, pixels, strict=True)))
        else:
            asm(*(f"vstrb.{size} {q}, {at}" for q, at in zip(results, pixels, strict=True)))

    def _bytes(
        self,
        asm: HeliumAssembly,
        group: LaneGroup,
        load: Callable[[int, int], str],
        constants: Callable[[int], str],
        count: int,
        spare: str,
    ) -> tuple[str, ...]:
        """The registers that hold a group's outputs, not clamped, one a pixel."""
        for v in range(group.vectors):
            # The later halves' registers are free at first.
            halves = ("q6", "q7") if v > 1 else ("q4", "q5")
            shifts, biases = (spare, spare) if v > 1 else ("q6", "q7")
            at = self.fields * v
            for p in range(count):
                asm(load(v, p) % f"q{p}")
            # VMLA by one is an addition beside the unit that the other steps need.
            asm(f"vldrw.32 {biases}, {constants(at)}")
            asm(*(f"vmla.s32 q{p}, {biases}, {ONE}" for p in range(count)))
            asm(f"vldrw.32 q2, {constants(at + 1)}")
            if self.single:
                for p in range(count):
                    asm(f"vcvt.f32.s32 q{p}, q{p}", f"vmul.f32 q{p}, q{p}, q2")
                    asm(f"vcvtn.s32.f32 q{p}, q{p}")
            else:
                asm(*(f"vqrdmulh.s32 q{p}, q{p}, q2" for p in range(count)))
                if self.away:
                    for p in range(count):
                        asm(f"vshr.s32 q2, q{p}, #31", f"vadd.i32 q{p}, q{p}, q2")
                asm(f"vldrw.32 {shifts}, {constants(at + 2)}")
                asm(*(f"vrshl.s32 q{p}, q{p}, {shifts}" for p in range(count)))
            for p in range(count):
                asm(f"vqmovn{'t' if v % 2 else 'b'}.s32 {halves[p]}, q{p}")
            if v % 2 or group.vectors == 1:
                for p in range(count):
                    self._narrow(asm, "t" if v > 1 else "b", halves[p], f"q{4 + p}")
        return ("q4", "q5")[:count]

    def _narrow(self, asm: HeliumAssembly, half: str, halves: str, result: str) -> None:
        if self.unsigned:
            asm(f"vqmovun{half}.s16 {result}, {halves}")
            return
        if self.zero_point:
            asm(f"vqadd.s16 {halves}, {halves}, {CONSTANT}")
        asm(f"vqmovn{half}.s16 {result}, {halves}")

    def _clamp(self, asm: HeliumAssembly, results: tuple[str, ...]) -> None:
        if self.unsigned:
            asm(*(f"vadd.i8 {q}, {q}, {CONSTANT}" for q in results))
            return
        for limit, register, extreme, step in (
            (self.low, LOW, -128, "vmax"),
            (self.high, HIGH, 127, "vmin"),
        ):
            if limit != extreme:
                asm(f"vdup.8 q2, {register}", *(f"{step}.s8 {q}, {q}, q2" for q in results))

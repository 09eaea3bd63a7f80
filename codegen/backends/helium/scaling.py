"""Requantization from int32 sums to int8 outputs on Helium, step by step like the reference.

gemmlowp's first step is a doubling high multiply that rounds to nearest, ties upwards: VQRDMULH.
Its second step is a right shift that rounds to nearest, ties away from zero. VRSHL rounds ties
upwards, which differs for negative numbers only. Decrementing negative numbers first gives the
correct result: `(x - 1 + 2^(e-1)) >> e` rounds ties of negative x down, for shifts e >= 1. If the
output is clamped at its zero point, this is not needed, since negative numbers are clamped anyway.
Both forms are exact if no channel shifts left, which `HeliumScaling.of` checks.

ONNX's rounding, a float32 product with ties to even, is VCVT, VMUL and VCVTN.

Narrowing packs pairs: VQMOVNB writes even halfwords, VQMOVNT odd ones. Four vectors of four
channels make 16 bytes: byte 4 l + (0, 2, 1, 3)[v] is lane l of vector v. Two vectors make 8 bytes:
byte 2 l + v. Weights, biases and scales are permuted accordingly, so that outputs are in order.

Sources: gemmlowp's fixedpoint.h; Armv8-M Architecture Reference Manual, C2.4 (VQRDMULH, VRSHL).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.backends.helium.assembly import HeliumAssembly
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.text.helpers import when
from smelt.ir import Array

_ORDER = {1: (0,), 2: (0, 1), 4: (0, 2, 1, 3)}
"""For 1, 2 or 4 vectors in a group: the channel in lane 0 of each vector."""

CONSTANT, LOW, HIGH, ONE = "r9", "r0", "r2", "r12"
"""Registers of the zero point (or 128), the lower limit, the upper limit and 1."""


@dataclass(frozen=True)
class LaneGroup:
    """Output channels that are narrowed together.

    Attributes:
        first: the first channel.
        vectors: number of vectors of four channels: 1, 2 or 4.
        channels: number of channels; the remaining lanes are unused.
    """

    first: int
    vectors: int
    channels: int

    @property
    def lanes(self) -> Array:
        """int64 `[vectors, 4]`: the channel in each lane; unused lanes get numbers past the end."""
        order = np.asarray(_ORDER[self.vectors])[:, None]
        return self.first + np.arange(4) * self.vectors + order

    @property
    def size(self) -> int:
        """Element size, in bits, of the store that writes 4, 8 or 16 contiguous bytes."""
        return 32 // self.vectors


def groups(channels: int) -> tuple[LaneGroup, ...]:
    """Split channels into groups of 16; the remaining channels take as few vectors as possible."""
    found = [LaneGroup(first, 4, 16) for first in range(0, channels - 15, 16)]
    first = len(found) * 16
    while first < channels:
        left = channels - first
        vectors = 4 if left > 12 else 2 if left > 4 else 1
        found.append(LaneGroup(first, vectors, min(left, 4 * vectors)))
        first += 4 * vectors
    return tuple(found)


def span(channels: int) -> str:
    """Return the numbers of channels up to 15 with the same groups as `channels`, as "9to12"."""
    vectors = [part.vectors for part in groups(channels)]
    equal = [n for n in range(1, 16) if [part.vectors for part in groups(n)] == vectors]
    return f"{equal[0]}to{equal[-1]}"


def permuted(parts: tuple[LaneGroup, ...], values: Array) -> Array:
    """Return values `[o, ...]` as `[vectors, 4, ...]` in the order of lanes; unused lanes are 0."""
    order = np.concatenate([group.lanes for group in parts])
    padded = np.zeros((order.max() + 1, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    return padded[order]


@dataclass(frozen=True)
class HeliumScaling:
    """The requantization of sums of products to outputs.

    Attributes:
        biases: int64 `[o]`, with the input's zero point folded in.
        factors: int64 `[o]`: fixed-point multipliers, or the bits of float32 factors.
        shifts: int64 `[o]`, right shifts.
        zero_point: zero point of the output.
        low, high: smallest and largest output.
        single: whether factors are float32.
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
        """Return the scaling, or None.

        It is None if a shift is to the left or above 31, or if it is 0 where ties must be rounded
        away from zero.
        """
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
    def details(self) -> dict[str, str]:
        """What the names of functions that differ only in this scaling say; see `KernelCall`."""
        return {"ties": "ties_away" if self.away else "ties_up"}

    @property
    def fields(self) -> int:
        """Vectors of constants for each vector of channels: biases, factors and perhaps shifts."""
        return 2 if self.single else 3

    @property
    def uses(self) -> frozenset[str]:
        """Helpers that the definition in plain C uses."""
        return when(self.single, "rounded", "float_from_bits")

    @property
    def kind(self) -> str:
        """What the code of the scaling depends on, as the end of a function's name.

        `u8`: sums saturate to 0..255, minus 128; `i8`: to int8. `zero`: a zero point is added;
        `low`, `high`: outputs are clamped; `away`: ties round away from zero; `float`: factors are
        float32.
        """
        parts = {
            "float": self.single,
            "u8": self.unsigned,
            "i8": not self.unsigned,
            "away": self.away,
            "zero": not self.unsigned and self.zero_point != 0,
            "low": self.clamps[0],
            "high": self.clamps[1],
        }
        return "_".join(name for name, holds in parts.items() if holds)

    @property
    def narrowing(self) -> str:
        """A sentence for comments: what `kind` says about saturation."""
        if self.unsigned:
            return "u8: outputs are saturated to 0..255, then 128 is subtracted."
        zero = ", with the zero point added" if self.zero_point else ""
        limits = " and clamped" if any(self.clamps) else ""
        return f"i8: outputs are saturated to int8{zero}{limits}."

    @property
    def unsigned(self) -> bool:
        """Whether sums are saturated to 0..255, and 128 is then subtracted."""
        return self.zero_point == self.low == -128 and self.high == 127

    @property
    def clamps(self) -> tuple[bool, bool]:
        """Whether outputs are clamped at the lower and the upper limit after they are narrowed."""
        return (not self.unsigned and self.low != -128, not self.unsigned and self.high != 127)

    def part(self, first: int, end: int) -> HeliumScaling:
        """Return the scaling of the channels from `first` to before `end`."""
        return replace(
            self,
            biases=self.biases[first:end],
            factors=self.factors[first:end],
            shifts=self.shifts[first:end],
        )

    def constants(self, parts: tuple[LaneGroup, ...], *, biased: bool = True) -> Array:
        """Return int32 `[vectors, fields, 4]`: the constants of each vector of channels.

        Without `biased`, the sums contain the biases, and the first field is missing.
        """
        fields = (self.biases, self.factors, -self.shifts)[: self.fields]
        chosen = fields if biased else fields[1:]
        columns = [permuted(parts, np.asarray(values, np.int64)) for values in chosen]
        return np.stack(columns, axis=1).astype(np.int32)

    def outputs(
        self,
        asm: HeliumAssembly,
        vectors: int,
        load: Callable[[int, int], str],
        constants: Callable[[int], str],
        count: int,
        spare: str,
        *,
        biased: bool = True,
    ) -> tuple[str, ...]:
        """Scale a group's sums; return the register with the outputs of each pixel.

        Args:
            asm: the assembly to append to.
            vectors: vectors of four channels.
            load: returns the instruction that loads the sums of (vector, pixel); %s is the
                register.
            constants: returns the address of a vector of constants, given its index.
            count: number of pixels.
            spare: a register besides q0-q2 and q4-q7 that may be changed; q2 if there is none.
            biased: see `constants`.
        """
        with asm.overlapping():
            results = self._bytes(asm, vectors, load, constants, count, spare, biased=biased)
            self._clamp(asm, results)
        return results

    def _bytes(
        self,
        asm: HeliumAssembly,
        vectors: int,
        load: Callable[[int, int], str],
        constants: Callable[[int], str],
        count: int,
        spare: str,
        *,
        biased: bool,
    ) -> tuple[str, ...]:
        """Scale and narrow a group; return the register with each pixel's unclamped outputs."""
        for v in range(vectors):
            # q6 and q7 hold the narrowed vectors 2 and 3; before those, they are free.
            halves = ("q6", "q7") if v > 1 else ("q4", "q5")
            shifts, biases = (spare, spare) if v > 1 else ("q6", "q7")
            at = self.fields * v if biased else (self.fields - 1) * v - 1
            for p in range(count):
                asm(load(v, p) % f"q{p}")
            if biased:
                # VMLA by 1 adds in the product unit; VADD would use the unit of most other steps.
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
            if v % 2 or vectors == 1:
                for p in range(count):
                    self._narrow(asm, "t" if v > 1 else "b", halves[p], f"q{4 + p}")
        return ("q4", "q5")[:count]

    def _narrow(self, asm: HeliumAssembly, half: str, halves: str, result: str) -> None:
        """Add the zero point to halfwords and narrow them to the `half` ("b", "t") of `result`."""
        if self.unsigned:
            asm(f"vqmovun{half}.s16 {result}, {halves}")
            return
        if self.zero_point:
            asm(f"vqadd.s16 {halves}, {halves}, {CONSTANT}")
        asm(f"vqmovn{half}.s16 {result}, {halves}")

    def _clamp(self, asm: HeliumAssembly, results: tuple[str, ...]) -> None:
        """Clamp the bytes in registers to the output's limits."""
        if self.unsigned:
            asm(*(f"vadd.i8 {q}, {q}, {CONSTANT}" for q in results))
            return
        steps = (LOW, "vmax"), (HIGH, "vmin")
        for clamped, (register, step) in zip(self.clamps, steps, strict=True):
            if clamped:
                asm(f"vdup.8 q2, {register}", *(f"{step}.s8 {q}, {q}, q2" for q in results))

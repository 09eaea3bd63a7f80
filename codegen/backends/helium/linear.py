"""Functions of one or two small integers as `(a * x + b * y + c) >> shift`, proved exact.

Quantized additions and averages round several times, but their inputs are few: all of them are
tried. For given factors every input confines `c` to an interval; the form is exact if, and only if,
these intervals have a common point. Where the nearest factors leave none, their neighbours may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from smelt.codegen.backends.helium.assembly import HeliumAssembly
from smelt.ir import Array

_NEIGHBOURS = 6
_SHIFTS = range(24, 8, -1)
"""A shift by up to 16 that narrows to halfwords, then one by 8 that narrows to bytes."""


@dataclass(frozen=True)
class Linear:
    """`(sum of factors times inputs, plus offset) >> shift`, then clamped."""

    factors: tuple[int, ...]
    offset: int
    shift: int

    def text(self, names: tuple[str, ...]) -> str:
        """The form as C, given the inputs' names."""
        terms = (f"{name} * {factor}" for name, factor in zip(names, self.factors, strict=True))
        return f"({' + '.join(terms)} + {self.offset}) >> {self.shift}".replace("+ -", "- ")

    @property
    def narrowing(self) -> tuple[int, int]:
        """The shift in two parts, one for each narrowing (VQRSHRN)."""
        return self.shift - 8, 8

    @property
    def start(self) -> int:
        """The offset less what the two narrowings add in order to round.

        VQSHRN would not round, but binutils 2.40 encodes it as VQRSHRN.
        """
        return self.offset - (1 << (self.shift - 9)) - (1 << (self.shift - 1))


def linear(
    inputs: Sequence[Array], outputs: Array, slopes: Sequence[float], limits: tuple[int, int]
) -> Linear | None:
    """The form that has the given outputs, or None if none was found.

    Args:
        inputs: int64 `[n]` each: all combinations of inputs.
        outputs: int64 `[n]`, clamped to `limits`.
        slopes: roughly the outputs' slopes along each input.
        limits: of the clamp.
    """
    shift = next((s for s in _SHIFTS if _fits(inputs, slopes, s)), None)
    if shift is None:
        return None
    nearest = [round(slope * 2.0**shift) for slope in slopes]
    low, high = limits
    above, below = outputs > low, outputs < high
    steps = sorted(
        product(range(-_NEIGHBOURS, _NEIGHBOURS + 1), repeat=len(slopes)),
        key=lambda step: sum(map(abs, step)),
    )
    for step in steps:
        factors = tuple(f + s for f, s in zip(nearest, step, strict=True))
        total = sum(f * x for f, x in zip(factors, inputs, strict=True))
        least = ((outputs << shift) - total)[above].max(initial=-(2**31))
        most = (((outputs + 1) << shift) - total)[below].min(initial=2**31) - 1
        if least <= most:
            offset = int(least + most) // 2
            found = Linear(factors, offset, shift)
            if int(np.abs(total).max()) + max(abs(offset), abs(found.start)) < 2**31:
                return found
    return None


def _fits(inputs: Sequence[Array], slopes: Sequence[float], shift: int) -> bool:
    """Whether 32 bits hold what the form computes, with room for the offset."""
    largest = sum(
        abs(slope) * float(np.abs(x).max()) for slope, x in zip(slopes, inputs, strict=True)
    )
    return (2 * largest + 256) * 2.0**shift < 2.0**31


def clamp(
    asm: HeliumAssembly, limits: tuple[int, int], register: str, spare: str, vector: str
) -> None:
    """Clamp bytes that saturation left within -128 ... 127 to narrower limits."""
    for limit, extreme, step in zip(limits, (-128, 127), ("vmax", "vmin"), strict=True):
        if limit != extreme:
            asm.constant(spare, limit)
            asm(f"vdup.8 {vector}, {spare}", f"{step}.s8 {register}, {register}, {vector}")

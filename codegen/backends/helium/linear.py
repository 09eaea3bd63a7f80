"""Functions of one or two small integers as `(a * x + b * y + c) >> shift`, proved exact.

A quantized addition rounds several times, but has few different inputs, so all are tried. For given
factors, each input confines `c` to an interval. The form is exact if, and only if, all these
intervals have a common point. If they have none for the nearest factors, neighboring factors are
tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from smelt.codegen.backends.helium.assembly import HeliumAssembly
from smelt.ir import Array

_NEIGHBORS = 6
"""Largest difference between a tried factor and the nearest one."""
_SHIFTS = range(24, 8, -1)
"""Shifts to try: a first one by up to 16 narrows to halfwords, one by 8 narrows to bytes."""


@dataclass(frozen=True)
class Linear:
    """`(factors[0] * inputs[0] + factors[1] * inputs[1] + offset) >> shift`, then clamped."""

    factors: tuple[int, ...]
    offset: int
    shift: int

    def text(self, names: tuple[str, ...]) -> str:
        """Return the formula as C, for inputs with these names."""
        terms = (f"{name} * {factor}" for name, factor in zip(names, self.factors, strict=True))
        return f"({' + '.join(terms)} + {self.offset}) >> {self.shift}".replace("+ -", "- ")

    @property
    def narrowing(self) -> tuple[int, int]:
        """The shifts of the two narrowing instructions (VQRSHRN)."""
        return self.shift - 8, 8

    @property
    def start(self) -> int:
        """The offset, minus what the two narrowing instructions add to round.

        VQSHRN would not round, but binutils 2.40 encodes it as VQRSHRN.
        """
        return self.offset - (1 << (self.shift - 9)) - (1 << (self.shift - 1))


def linear(
    inputs: Sequence[Array], outputs: Array, slopes: Sequence[float], limits: tuple[int, int]
) -> Linear | None:
    """Return the form with exactly these outputs, or None if none was found.

    Args:
        inputs: int64 `[n]` each: all combinations of inputs.
        outputs: int64 `[n]`, clamped to `limits`.
        slopes: approximate slope of the output along each input.
        limits: smallest and largest output.
    """
    shift = next((s for s in _SHIFTS if _fits(inputs, slopes, s)), None)
    if shift is None:
        return None
    nearest = [round(slope * 2.0**shift) for slope in slopes]
    low, high = limits
    above, below = outputs > low, outputs < high
    steps = sorted(
        product(range(-_NEIGHBORS, _NEIGHBORS + 1), repeat=len(slopes)),
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
    """Return whether all intermediate results fit into 32 bits, with a margin for the offset."""
    largest = sum(
        abs(slope) * float(np.abs(x).max()) for slope, x in zip(slopes, inputs, strict=True)
    )
    return (2 * largest + 256) * 2.0**shift < 2.0**31


def clamp(
    asm: HeliumAssembly, limits: tuple[int, int], register: str, spare: str, vector: str
) -> None:
    """Clamp saturated int8 results to the limits that are narrower than int8's range."""
    for limit, extreme, step in zip(limits, (-128, 127), ("vmax", "vmin"), strict=True):
        if limit != extreme:
            asm.constant(spare, limit)
            asm(f"vdup.8 {vector}, {spare}", f"{step}.s8 {register}, {register}, {vector}")

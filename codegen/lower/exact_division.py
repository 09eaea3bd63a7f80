"""Functions of sums as one product: `(sum * factor + addend) >> shift`, for all sums.

For a given factor each sum bounds the addend from either side. Ties away from zero want a factor
slightly too large.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array

_FAR = 1 << 62
_ERRORS = (0.0, *(sign * 2.0**-bits for bits in range(30, 5, -1) for sign in (1, -1)))
_STEPS = sorted(range(-4, 5), key=abs)


@dataclass(frozen=True)
class Quotients:
    """`(sum * factor + addend) >> shift` for windows of each number of pixels.

    Attributes:
        shift: of all.
        factors: int64 `[kinds]`.
        addends: int64 `[kinds]`, in units.
        saturates: whether some result leaves int8.
    """

    shift: int
    factors: Array
    addends: Array
    saturates: bool

    @property
    def word_shift(self) -> int:
        """The shift of what the upper 32 bits of 48 hold."""
        return self.shift - 16

    @property
    def table(self) -> Array:
        """int32 `[2 * kinds]`: factors and addends in turn, their low 32 bits."""
        pairs = np.stack([self.factors, self.addends], axis=1) & 0xFFFFFFFF
        return pairs.astype(np.uint32).view(np.int32).ravel()


@dataclass(frozen=True)
class Stairs:
    """A function that rises with the sum: int64 `[steps]` each.

    Attributes:
        first: the first sum of each output.
        last: the last one.
        outputs: what is stored.
        slope: nearly how much outputs rise with the sum.
    """

    first: Array
    last: Array
    outputs: Array
    slope: float


def fitted(
    stairs: Sequence[Stairs],
    limits: tuple[int, int],
    shifts: Iterable[int],
    *,
    unit: int = 1,
    wraps: bool = False,
) -> Quotients | None:
    """Exact factors and addends for all functions; None if none were found.

    Args:
        stairs: the functions.
        limits: of the outputs, to which results are clamped.
        shifts: in the order in which they are tried.
        unit: what addends are multiples of; the products' fractions of it may be dropped.
        wraps: whether the result's low 8 bits are all that counts, and must be right; else 32 bits
            must hold what is shifted.
    """
    limits = (-_FAR, _FAR) if wraps else limits
    for shift in shifts:
        found: list[tuple[int, int]] = []
        for stair in stairs:
            quotient = _AddendConstraints(stair, limits, shift, unit, wraps).quotient()
            if quotient is None:
                break
            found.append(quotient)
        else:
            factors, addends = (np.asarray(part, np.int64) for part in zip(*found, strict=True))
            ends = np.asarray([(stair.first[0], stair.last[-1]) for stair in stairs])
            results = (ends * factors[:, None] + addends[:, None]) >> shift
            saturates = bool(results.min() < -128 or results.max() > 127)
            return Quotients(shift, factors, addends // unit, saturates)
    return None


@dataclass(frozen=True)
class _AddendConstraints:
    """What the steps of a function ask of an addend; see `fitted`."""

    stairs: Stairs
    limits: tuple[int, int]
    shift: int
    unit: int
    wraps: bool

    def quotient(self) -> tuple[int, int] | None:
        """A factor and an addend that give each sum what is stored for it."""
        exact = self.stairs.slope * 2.0**self.shift
        reach = exact * float(max(-self.stairs.first[0], self.stairs.last[-1]))
        if not self.wraps and reach > 2.0**31 * self.unit:
            return None
        tried = [round(exact * (1 + error)) + step for error in _ERRORS for step in _STEPS]
        for factor in dict.fromkeys(tried):
            if 0 < factor < 2**31:
                addend = self._addend(factor)
                if addend is not None:
                    return factor, addend
        return None

    def _addend(self, factor: int) -> int | None:
        first, last, outputs = self.stairs.first, self.stairs.last, self.stairs.outputs
        above, below = outputs > self.limits[0], outputs < self.limits[1]
        least = ((outputs << self.shift) - first * factor)[above].max(initial=-_FAR)
        most = ((outputs + 1 << self.shift) - 1 - last * factor)[below].min(initial=_FAR)
        limit = 2**31 * self.unit
        least, most = max(int(least), -limit), min(int(most), limit - 1)
        addend = -(-(least + most >> 1) // self.unit) * self.unit
        if addend > most:
            addend -= self.unit
        ends = [int(sums) * factor + addend for sums in (first[0], last[-1])]
        small = self.wraps or max(map(abs, ends)) < limit
        return addend if least <= addend <= most and small else None

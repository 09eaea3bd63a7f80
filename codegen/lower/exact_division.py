"""Exact replacement of a function of sums by `(sum * factor + addend) >> shift`.

For a given factor, each sum gives a lower or an upper bound of the addend. Rounding ties away from
zero requires a factor that is slightly too large.
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
        shift: The common shift.
        factors: int64 `[kinds]`.
        addends: int64 `[kinds]`, in multiples of the unit; see `fitted`.
        saturates: Whether some result is outside of int8.
    """

    shift: int
    factors: Array
    addends: Array
    saturates: bool

    @property
    def word_shift(self) -> int:
        """The remaining shift if only the upper 32 of 48 bits are kept."""
        return self.shift - 16

    @property
    def table(self) -> Array:
        """int32 `[2 * kinds]`: the low 32 bits of factors and addends, alternating."""
        pairs = np.stack([self.factors, self.addends], axis=1) & 0xFFFFFFFF
        return pairs.astype(np.uint32).view(np.int32).ravel()


@dataclass(frozen=True)
class StepFunction:
    """A step function that rises with the sum: int64 `[steps]` each.

    Attributes:
        first: The first sum of each step.
        last: The last sum of each step.
        outputs: The stored output of each step.
        slope: The approximate slope of the output.
    """

    first: Array
    last: Array
    outputs: Array
    slope: float


def fitted(
    stairs: Sequence[StepFunction],
    limits: tuple[int, int],
    shifts: Iterable[int],
    *,
    unit: int = 1,
    wraps: bool = False,
) -> Quotients | None:
    """Return exact factors and addends for all functions; None if none were found.

    Args:
        stairs: The functions.
        limits: Limits of the outputs, to which results are clamped.
        shifts: Shifts, in the order in which they are tried.
        unit: Addends are multiples of this; bits of the products below it may be dropped.
        wraps: Whether only the low 8 bits of the result are used and must be right; otherwise the
            sum before the shift must fit into 32 bits (times `unit`).
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
    """The bounds of an addend that the steps of a function imply; see `fitted`."""

    stairs: StepFunction
    limits: tuple[int, int]
    shift: int
    unit: int
    wraps: bool

    def quotient(self) -> tuple[int, int] | None:
        """Return a factor and an addend that give the stored output for each sum, or None."""
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

"""Exact replacement of a function of sums by `(sum * factor + addend) >> shift`.

For a given factor, each sum bounds the addend from below or from above. The search tries factors
near the exact slope. Rounding ties away from zero requires a factor slightly larger than the slope.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array

_FAR = 1 << 62
"""Stands for an infinite bound."""
_ERRORS = (0.0, *(sign * 2.0**-bits for bits in range(30, 5, -1) for sign in (1, -1)))
"""Relative differences between the slope and the factors that are tried."""
_NEIGHBORS = sorted(range(-4, 5), key=abs)
"""Integers that are added to each rounded factor."""


@dataclass(frozen=True)
class Quotients:
    """`(sum * factor + addend) >> shift` for windows of each number of pixels.

    Attributes:
        shift: The common shift.
        factors: int64 `[n]`, for n different numbers of pixels.
        addends: int64 `[n]`, divided by `unit`; see `fitted`.
        saturates: Whether some result is outside the range of int8.
    """

    shift: int
    factors: Array
    addends: Array
    saturates: bool

    @property
    def word_shift(self) -> int:
        """The shift that remains if only the upper 32 of 48 bits of the sum are kept."""
        return self.shift - 16

    @property
    def table(self) -> Array:
        """int32 `[2 * n]`: the low 32 bits of factors and addends, alternating."""
        pairs = np.stack([self.factors, self.addends], axis=1) & 0xFFFFFFFF
        return pairs.astype(np.uint32).view(np.int32).ravel()


@dataclass(frozen=True)
class StepFunction:
    """A step function that rises with the sum; its arrays are int64 `[steps]`.

    Attributes:
        first: The first sum of each step.
        last: The last sum of each step.
        outputs: The stored output of each step.
        slope: The approximate slope of the output as a function of the sum.
    """

    first: Array
    last: Array
    outputs: Array
    slope: float


def fitted(
    functions: Sequence[StepFunction],
    limits: tuple[int, int],
    shifts: Iterable[int],
    *,
    unit: int = 1,
    wraps: bool = False,
) -> Quotients | None:
    """Return exact factors and addends for all functions; None if none were found.

    Args:
        functions: The functions of the sum, one for each number of pixels.
        limits: Smallest and largest output, to which results are clamped.
        shifts: Shifts, in the order in which they are tried.
        unit: A power of two of which addends are multiples, so that the code may drop the bits of
            products and addends below it.
        wraps: Whether only the low 8 bits of the result are used, and only they must be right. If
            not, the number before the shift, divided by `unit`, must fit into 32 bits.
    """
    limits = (-_FAR, _FAR) if wraps else limits
    for shift in shifts:
        found: list[tuple[int, int]] = []
        for function in functions:
            quotient = _AddendConstraints(function, limits, shift, unit, wraps).quotient()
            if quotient is None:
                break
            found.append(quotient)
        else:
            factors, addends = (np.asarray(part, np.int64) for part in zip(*found, strict=True))
            ends = np.asarray([(function.first[0], function.last[-1]) for function in functions])
            results = (ends * factors[:, None] + addends[:, None]) >> shift
            saturates = bool(results.min() < -128 or results.max() > 127)
            return Quotients(shift, factors, addends // unit, saturates)
    return None


@dataclass(frozen=True)
class _AddendConstraints:
    """The bounds of an addend that the steps of a function imply; see `fitted`."""

    function: StepFunction
    limits: tuple[int, int]
    shift: int
    unit: int
    wraps: bool

    def quotient(self) -> tuple[int, int] | None:
        """Return a factor and an addend that give the stored output for each sum, or None."""
        scale = self.function.slope * 2.0**self.shift
        largest = scale * float(max(-self.function.first[0], self.function.last[-1]))
        if not self.wraps and largest > 2.0**31 * self.unit:
            return None
        tried = [
            round(scale * (1 + error)) + neighbor for error in _ERRORS for neighbor in _NEIGHBORS
        ]
        for factor in dict.fromkeys(tried):
            if 0 < factor < 2**31:
                addend = self._addend(factor)
                if addend is not None:
                    return factor, addend
        return None

    def _addend(self, factor: int) -> int | None:
        first, last, outputs = self.function.first, self.function.last, self.function.outputs
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

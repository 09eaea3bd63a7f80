"""From sums to int8 on cores with the DSP extension: one high multiply and one saturating shift.

The forms, for a sum that still lacks its bias (shifting it costs nothing, that rides in the
addition of the bias), `>> 32` rounding to nearest:

    plain:   a = (sum << left) + bias;  output = ssat8((a * multiplier >> 32) >> right)
    signed:  a likewise;  h = (a * multiplier >> 32) + addend;
             output = ssat8((h - (lower & (a >> 31))) >> right)

Both rise with the sum, so each is exact if, and only if, every stored value is first reached by the
same sum as by the rounding of the model (`Requantization.thresholds`). For a given multiplier
either side of a threshold bounds the bias, which counts in fractions (2^-left) of a sum: the bias
is right if it lies within all these bounds. The signed form lowers negative numbers by one unit of
gemmlowp's first product, which turns its ties away from zero into ties upwards; the plain form does
without wherever few enough sums lie at a tie, which is so for most layers behind a ReLU, and where
the zero point, counted in sums, is a number of 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.text.literals import c_int
from smelt.ir import Array

_PREFERRED = 12, 11, 10, 13, 14, 9, 15
"""Right shifts in the order in which they are tried: layers of equal shifts share functions."""

_MOST_RIGHT = 20
"""Numerators of thresholds stay within int64."""

_LEFT = 10
"""The same for the shift of sums. Thresholds of 255 values leave a bias 1/255 of a sum or less."""

_NEIGHBOURS = 24
"""How far from the nearest multiplier others are tried: where sums are too large to be shifted far,
the biases that are right for one may lie between two integers, and for the next one not."""

_FAR = np.int64(1) << 62


@dataclass(frozen=True)
class ScalingStruct:
    """The struct from which plain C reads how sums become outputs (see `plain_pairs`).

    Attributes:
        left: Shift of the sums.
        right: Shift of the products.
        low: Smallest output.
        high: Largest output.
        addend: C of the signed form's addend; 0 in the plain form.
        constants: Words of a channel's constants: 3 in the signed form, 2 in the plain one.
    """

    left: int
    right: int
    low: int
    high: int
    addend: str
    constants: int


@dataclass(frozen=True, kw_only=True)
class DspScaling:
    """A requantization in one of the forms above.

    Attributes:
        left: shift of the sums.
        right: shift of the products, 1 to 20.
        multipliers: int64 `[o]`, within int32.
        biases: int64 `[o]`, within int32; they hold the zero point in the plain form.
        lowers: int64 `[o]`, the signed form's; None in the plain one.
        addend: the signed form's, from the zero point; 0 in the plain one.
        low: smallest stored output; -128 needs no instruction.
        high: largest stored output; 127 needs none either.
    """

    left: int
    right: int
    multipliers: Array
    biases: Array
    lowers: Array | None
    addend: int
    low: int
    high: int

    @property
    def signed(self) -> bool:
        """Whether negative sums are lowered."""
        return self.lowers is not None

    @property
    def rows(self) -> Array:
        """int64 `[o, 2 or 3]`: bias, multiplier and what negative sums are lowered by."""
        columns = [self.biases, self.multipliers]
        return np.stack(columns if self.lowers is None else [*columns, self.lowers], axis=1)

    def product(
        self, register: str, multiplier: str, lower: str = "", spare: str = "", addend: str = ""
    ) -> list[str]:
        """Instructions that multiply a shifted sum with its bias, and keep the upper half.

        Args:
            register: of the sum and of the result.
            multiplier: the register that holds it.
            lower: the register of what negative sums are lowered by, in the signed form.
            spare: what may be changed in that form.
            addend: the register of that form's addend.
        """
        if not self.signed:
            return [f"smmulr {register}, {register}, {multiplier}"]
        return [
            f"and {spare}, {lower}, {register}, asr #31",
            f"smmlar {register}, {register}, {multiplier}, {addend}",
            f"sub {register}, {register}, {spare}",
        ]

    def saturated(self, register: str) -> list[str]:
        """Instructions that shift a product and bring it within the limits of outputs."""
        return saturated(register, self.right, self.low, self.high)

    @property
    def struct(self) -> ScalingStruct:
        """The struct for plain C."""
        addend = c_int(self.addend) if self.signed else "0"
        return ScalingStruct(
            left=self.left,
            right=self.right,
            low=self.low,
            high=self.high,
            addend=addend,
            constants=self.rows.shape[1],
        )

    @property
    def note(self) -> str:
        """How results are rounded, for a function's comment."""
        return "Results: one rounding, proved equal to the model's for every sum that can occur."


def saturated(register: str, right: int, low: int, high: int) -> list[str]:
    """Instructions that shift a number in a register to the right, and clamp it."""
    lines = [f"ssat {register}, #8, {register}, asr #{right}"]
    for limit, condition, narrower in ((low, "lt", low > -128), (high, "gt", high < 127)):
        if narrower:
            lines += [f"cmp {register}, #{limit}", f"it {condition}"]
            lines += [f"mov{condition} {register}, #{limit}"]
    return lines


def dsp_scaling(requantization: Requantization, bias: Array) -> DspScaling | None:
    """The cheapest exact form; None where neither is.

    Args:
        requantization: its sums hold the bias.
        bias: int64 `[o]`, what the form adds to sums.
    """
    q = requantization
    ends = np.abs(np.stack([q.lowest, q.highest, q.lowest - bias, q.highest - bias]))
    most = 31 - int(ends.max()).bit_length()
    if most < 1:
        return None
    thresholds = _thresholds(q)
    real = _real(q)
    reach = float(((ends[:2].max(axis=0) + 2) * real).max()) + 260
    down = int((-q.shifts).max())
    lefts = [left for left in (_LEFT, most, most - 1) if 1 <= left <= most]
    for signed in (False, True):
        tried = [(left, right) for right in _PREFERRED for left in lefts]
        for left in lefts:
            # The largest right shift uses every bit of the multipliers.
            widest = np.ldexp(real.max(initial=2.0**-40), 32 - left)
            largest = min(_MOST_RIGHT, int(np.floor(np.log2((2.0**31 - 2) / widest))))
            tried += [(left, largest), (left, largest - 1)]
        tried += [(1, down)] if signed else []
        for left, right in dict.fromkeys(tried):
            if 1 <= right <= _MOST_RIGHT and reach * 2.0**right < 2.0**31:
                found = _fit(q, bias, thresholds, (left, right), signed=signed)
                if found is not None:
                    return found
    return None


def _fit(
    q: Requantization, bias: Array, thresholds: Array, shifts: tuple[int, int], *, signed: bool
) -> DspScaling | None:
    """The form with these shifts, if there are multipliers and biases for every channel."""
    left, right = shifts
    exact = np.ldexp(_real(q), 32 + right - left)
    if (exact >= 2.0**31 - 4).any():
        return None
    lowers = np.zeros(len(bias), np.int64)
    if signed and q.reals is None:
        unit = right + q.shifts
        lowers = np.where((q.multipliers == 0) | (unit < 0), 0, np.int64(1) << unit.clip(0, 30))
    if not signed:
        # A channel without a scale is a constant: any multiplier does that makes its bias small.
        exact = np.where(q.highest == q.lowest, np.maximum(exact, 2.0**30), exact)
    goals = _goals(q, right, lowers, signed=signed)
    multipliers, biases = np.zeros_like(lowers), np.zeros_like(lowers)
    missing = np.arange(len(bias))
    for step in sorted(range(-_NEIGHBOURS, _NEIGHBOURS + 1), key=abs):
        lowest, highest = q.lowest[missing], q.highest[missing]
        candidate = np.maximum(np.rint(exact[missing]).astype(np.int64) + step, not signed)
        limits = lowest, highest, thresholds[missing], goals[missing]
        least, most = _bounds(*limits, candidate, left)
        total = np.clip(0, least, most) if signed else (least + most) >> 1
        total = np.where(candidate == 0, 0, total) + (bias[missing] << left)
        ends = [(end - bias[missing]) * (1 << left) + total for end in (lowest, highest)]
        small = (np.abs(np.stack([total, *ends])) < 2**31).all(axis=0)
        fits = (least <= most) & (candidate < 2**31) & small
        multipliers[missing[fits]], biases[missing[fits]] = candidate[fits], total[fits]
        missing = missing[~fits]
        if not missing.size:
            addend = (q.zero_point << right) + (1 << right >> 1) if signed else 0
            rest = lowers if signed else None
            return DspScaling(
                left=left,
                right=right,
                multipliers=multipliers,
                biases=biases,
                lowers=rest,
                addend=addend,
                low=q.low,
                high=q.high,
            )
        if abs(step) > 2 and missing.size > len(bias) // 2:
            return None
    return None


def _goals(q: Requantization, right: int, lowers: Array, *, signed: bool) -> Array:
    """int64 `[o, values]`: what `a * multiplier` must reach for each stored value above `low`."""
    values = np.arange(q.low + 1, q.high + 1)
    if not signed:
        return np.broadcast_to((values << (right + 32)) - (1 << 31), (len(lowers), len(values)))
    centred = values - q.zero_point
    heights = (centred << right) - (1 << right >> 1)
    # Up to the zero point sums below zero are to reach the value less what they are lowered by.
    lowered = np.minimum(heights + lowers[:, None], 0)
    return (np.where(centred <= 0, lowered, heights) << 32) - (1 << 31)


def _bounds(
    lowest: Array, highest: Array, thresholds: Array, goals: Array, multipliers: Array, left: int
) -> tuple[Array, Array]:
    """int64 `[o]` each: least and largest right bias, beside that which the sums hold."""
    lowest, highest = lowest[:, None], highest[:, None]
    divisor = np.maximum(multipliers, 1)[:, None]
    needed = -(-goals // divisor)
    still = multipliers[:, None] == 0
    # A product that is always 0 reaches every goal that is not above 0, at once.
    needed = np.where(still, np.where(goals <= 0, -_FAR >> 1, _FAR >> 1), needed)
    reached = np.clip(thresholds, lowest, highest + 1)
    least = np.where(thresholds <= highest, needed - (reached << left), -_FAR)
    most = np.where(thresholds > lowest, needed - 1 - ((reached - 1) << left), _FAR)
    return least.max(axis=1, initial=-_FAR), most.min(axis=1, initial=_FAR)


def _thresholds(q: Requantization) -> Array:
    """int64 `[o, values]`: `Requantization.thresholds`, also of channels that are constants."""
    first = q.outputs(q.lowest)
    moves = first != q.outputs(q.highest)
    values = np.arange(q.low + 1, q.high + 1)
    found = np.where(values <= first[:, None], q.lowest[:, None], q.highest[:, None] + 1)
    if moves.any():
        found[moves] = q.thresholds(moves)
    return found


def _real(q: Requantization) -> Array:
    """float64 `[o]`: what sums are multiplied by."""
    if q.reals is not None:
        return q.reals.astype(np.float64)
    return np.ldexp(q.multipliers.astype(np.float64), (q.shifts - 31).astype(np.int32))

"""Requantization to int8 on cores with the DSP extension: a high multiply and a saturating shift.

The sum does not include its bias yet. There are two forms, in which `>> 32` rounds to nearest:

    plain:   a = (sum << left) + bias;  output = ssat8((a * multiplier >> 32) >> right)
    signed:  a as above;  h = (a * multiplier >> 32) + addend;
             output = ssat8((h - (lower & (a >> 31))) >> right)

The left shift is free: the instruction that adds the bias also shifts the sum.

In both forms, outputs rise with the sum. A form is therefore exact if, and only if, it first
reaches every stored value at the same sum as the model's rounding (`Requantization.thresholds`).
For a given multiplier, the sums on both sides of each threshold bound the bias, whose unit is
2^-left of a sum. A bias within all these bounds is exact.

gemmlowp rounds ties away from zero. The signed form subtracts one unit of gemmlowp's first product
from negative numbers, after which ties must round up, as for positive numbers. The plain form has
fewer instructions. It is exact if few enough sums are ties, as in most layers with a ReLU, and if
the zero point, in units of a sum, fits into 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.lower.content_cache import cached_by_content
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.text.literals import c_int
from smelt.ir import Array

_PREFERRED = 12, 11, 10, 13, 14, 9, 15
"""Right shifts in the order in which they are tried: layers of equal shifts share functions."""

_MOST_RIGHT = 20
"""Largest right shift: numerators of thresholds must fit into int64."""

_LEFT = 10
"""Preferred left shift. The thresholds of 255 values leave an interval of 1/255 of a sum or less
for the bias, so the bias needs a unit much smaller than a sum."""

_NEIGHBORS = 24
"""Multipliers at most this far from the nearest one are tried. If sums are too large to be shifted
far, the interval of exact biases may contain an integer for only some multipliers."""

_FAR = np.int64(1) << 62
"""A bound that is larger than any bias."""


@dataclass(frozen=True)
class ScalingStruct:
    """The struct from which plain C reads the requantization (see `plain_pairs`).

    Attributes:
        left: Shift of the sums.
        right: Shift of the products.
        low: Smallest output.
        high: Largest output.
        addend: C expression of the signed form's addend; 0 in the plain form.
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
        left: left shift of the sums.
        right: right shift of the products, 1 to 20.
        multipliers: int64 `[o]`, values within int32.
        biases: int64 `[o]`, values within int32; they include the zero point in the plain form.
        lowers: int64 `[o]`, numbers subtracted if `a` is negative; None in the plain form.
        addend: zero point and rounding of the signed form; 0 in the plain form.
        low: smallest stored output; -128 needs no instruction.
        high: largest stored output; 127 needs no instruction.
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
        """Whether this is the signed form."""
        return self.lowers is not None

    @property
    def rows(self) -> Array:
        """Constants of the channels, int64 `[o, 2 or 3]`: bias, multiplier, `lower` if signed."""
        columns = [self.biases, self.multipliers]
        return np.stack(columns if self.lowers is None else [*columns, self.lowers], axis=1)

    def product(
        self, register: str, multiplier: str, lower: str = "", spare: str = "", addend: str = ""
    ) -> list[str]:
        """Return the instructions that turn `a` into the number before `>> right`.

        The last three arguments are for the signed form only.

        Args:
            register: register of `a` (the shifted sum plus the bias) and of the result.
            multiplier: register of the multiplier.
            lower: register of the number to subtract if `a` is negative.
            spare: a register that may be overwritten; may be that of `lower`.
            addend: register of the addend.
        """
        if not self.signed:
            return [f"smmulr {register}, {register}, {multiplier}"]
        return [
            f"and {spare}, {lower}, {register}, asr #31",
            f"smmlar {register}, {register}, {multiplier}, {addend}",
            f"sub {register}, {register}, {spare}",
        ]

    def saturated(self, register: str) -> list[str]:
        """Return the instructions that shift a product and clamp it to the limits of outputs."""
        return saturated(register, self.right, self.low, self.high)

    @property
    def struct(self) -> ScalingStruct:
        """The same requantization for plain C."""
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
    def details(self) -> dict[str, str]:
        """What functions' names say about it if they differ in nothing else; see `KernelCall`."""
        limits = f"{self.low}to{self.high}".replace("-", "m")
        form = "signed" if self.signed else "plain"
        return {
            "form": form,
            "left": f"left{self.left}",
            "right": f"right{self.right}",
            "limits": limits,
        }

    @property
    def note(self) -> str:
        """The rounding, for a function's comment."""
        return "Results: one rounding, proved equal to the model's for every sum that can occur."


def saturated(register: str, right: int, low: int, high: int) -> list[str]:
    """Return the instructions that shift a register right and clamp it to `low` ... `high`."""
    lines = [f"ssat {register}, #8, {register}, asr #{right}"]
    for limit, condition, narrower in ((low, "lt", low > -128), (high, "gt", high < 127)):
        if narrower:
            lines += [f"cmp {register}, #{limit}", f"it {condition}"]
            lines += [f"mov{condition} {register}, #{limit}"]
    return lines


@cached_by_content
def dsp_scaling(requantization: Requantization, bias: Array) -> DspScaling | None:
    """Return the cheapest exact form; None if none is found.

    Args:
        requantization: the model's rounding, for sums that include the bias.
        bias: int64 `[o]`: the part of these sums that the form adds.
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
    """Return the form with the given shifts, if every channel has an exact multiplier and bias."""
    left, right = shifts
    exact = np.ldexp(_real(q), 32 + right - left)
    if (exact >= 2.0**31 - 4).any():
        return None
    lowers = np.zeros(len(bias), np.int64)
    if signed and q.reals is None:
        unit = right + q.shifts
        lowers = np.where((q.multipliers == 0) | (unit < 0), 0, np.int64(1) << unit.clip(0, 30))
    if not signed:
        # A channel with only one possible sum: any multiplier works; large ones have a small bias.
        exact = np.where(q.highest == q.lowest, np.maximum(exact, 2.0**30), exact)
    goals = _goals(q, right, lowers, signed=signed)
    multipliers, biases = np.zeros_like(lowers), np.zeros_like(lowers)
    missing = np.arange(len(bias))
    for step in sorted(range(-_NEIGHBORS, _NEIGHBORS + 1), key=abs):
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
    """Return the least `a * multiplier` for each stored value above `low`: int64 `[o, values]`."""
    values = np.arange(q.low + 1, q.high + 1)
    if not signed:
        return np.broadcast_to((values << (right + 32)) - (1 << 31), (len(lowers), len(values)))
    centered = values - q.zero_point
    heights = (centered << right) - (1 << right >> 1)
    # Negative sums reach values up to the zero point; `lowers` is subtracted from them afterwards.
    lowered = np.minimum(heights + lowers[:, None], 0)
    return (np.where(centered <= 0, lowered, heights) << 32) - (1 << 31)


def _bounds(
    lowest: Array, highest: Array, thresholds: Array, goals: Array, multipliers: Array, left: int
) -> tuple[Array, Array]:
    """Return the least and the largest exact bias, int64 `[o]` each.

    They are in addition to the bias that the sums include, and in units of 2^-left of a sum.
    """
    lowest, highest = lowest[:, None], highest[:, None]
    divisor = np.maximum(multipliers, 1)[:, None]
    needed = -(-goals // divisor)
    still = multipliers[:, None] == 0
    # With multiplier 0, the product is always 0: every sum reaches goals up to 0, none the others.
    needed = np.where(still, np.where(goals <= 0, -_FAR >> 1, _FAR >> 1), needed)
    reached = np.clip(thresholds, lowest, highest + 1)
    least = np.where(thresholds <= highest, needed - (reached << left), -_FAR)
    most = np.where(thresholds > lowest, needed - 1 - ((reached - 1) << left), _FAR)
    return least.max(axis=1, initial=-_FAR), most.min(axis=1, initial=_FAR)


def _thresholds(q: Requantization) -> Array:
    """Return `Requantization.thresholds`, int64 `[o, values]`, also for constant channels."""
    first = q.outputs(q.lowest)
    moves = first != q.outputs(q.highest)
    values = np.arange(q.low + 1, q.high + 1)
    found = np.where(values <= first[:, None], q.lowest[:, None], q.highest[:, None] + 1)
    if moves.any():
        found[moves] = q.thresholds(moves)
    return found


def _real(q: Requantization) -> Array:
    """Return the real factors of the sums, float64 `[o]`."""
    if q.reals is not None:
        return q.reals.astype(np.float64)
    return np.ldexp(q.multipliers.astype(np.float64), (q.shifts - 31).astype(np.int32))

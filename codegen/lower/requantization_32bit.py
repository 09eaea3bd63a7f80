"""Requantization for cores with only a 32 × 32 → 32-bit multiplication.

A channel's fixed-point multiplier is split into parts of `drop` bits, the lowest part first. The
product of each part with the sum fits into 32 bits. Before each further product is added, the total
loses `drop` bits:

    t = sum * part[0];  t = (t >> drop) + sum * part[1];  …;  (t + offset) >> shift

This formula rounds differently from gemmlowp or ONNX, but it rises with the sum, as they do. Two
rising functions are equal if they reach each of the (at most 256) stored values at the same sums.
Let T be the sum at which a value v is first reached. The formula is exact if, and only if, for each
v, `t(T) + offset >= v << shift`, and at T - 1 the left side is smaller. For given parts, this is an
interval of offsets for each channel. The search takes the smallest number of parts for which no
channel's interval is empty.

Offsets include the biases, so sums are taken without them. If no exact form is found this way,
biases are added to the sums instead. If the parts contain gemmlowp's full multiplier, `t` is then
gemmlowp's product rounded down, and there is always an offset.

gemmlowp rounds ties away from zero, which a single offset cannot do for both signs. If the scaled
sum is negative, a constant per channel (`nudges`) is therefore subtracted from it before rounding.
The rest of the proof is the same.

Source of the rounding: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference" (2018), section 2; gemmlowp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.lower.content_cache import cached_by_content
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.text.expressions import offset
from smelt.ir import Array

_NEIGHBORS = (0, 1, -1, 2, -2, 3, -3)
"""Changes of a rounded multiplier's last place that the search tries."""

_MOST_PARTS = 3
_USUAL = {1: ((0, 19),), 2: ((13, 19), (13, 20)), 3: ((10, 19),)}
"""Drops and shifts that the search tries first for each number of parts; most layers are exact with
them. Layers with equal ones can share code, in which these numbers are constants."""
_INT32_MAX = 2**31 - 1
_NEVER = 1 << 40


@dataclass(frozen=True, kw_only=True)
class ScalingSteps:
    """The requantization in C; see `lower/requantization_32bit.j2`.

    Attributes:
        biased: Whether a row of constants begins with a bias.
        parts: Number of multiplications.
        drop: Bits that the total loses before the next product is added; 0 for a single product.
        nudge: The index of the nudge in a row, without the bias; None for none.
        shift: The right shift; with a nudge, a rounding right shift by 1 follows.
        lift: C that is added after that.
        span: The largest result if results are relative to the smallest output, or None.
        output: C of the output from the result.
        low: The smallest output.
        high: The largest output.
    """

    biased: bool
    parts: int
    drop: int
    nudge: int | None
    shift: int
    lift: str
    span: int | None
    output: str
    low: int
    high: int

    @property
    def last_shift(self) -> int:
        """Bits that the total loses after the last product."""
        return self.shift if self.nudge is None else self.shift + 1

    @property
    def note(self) -> str:
        """Sentences for the function's comment: the shifts, and what a nudge is for."""
        product = "the second" if self.parts == 2 else "each further"
        dropped = f"{self.drop} bits before {product} product is added, and "
        losses = (
            f"The total loses {dropped if self.parts > 1 else ''}{self.last_shift} bits at the end."
        )
        if self.nudge is None:
            return losses
        return (
            f"{losses} From a negative total, `row[{self.nudge}]` is subtracted first, which "
            "rounds ties away from zero."
        )

    @property
    def limits(self) -> str:
        """The smallest and the largest output as a word of a function's name."""
        return f"{self.low}to{self.high}".replace("-", "m")


@dataclass(frozen=True, kw_only=True)
class ShortScaling:
    """The requantization of each channel's sums without their bias.

    `t` is the sum (plus bias, if there are `biases`) times the multiplier in parts, plus the
    channel's offset. Without nudges, the stored output minus `base` is `t >> shift`. With nudges it
    is `((t - (t < 0 ? nudge : 0) + half) >> shift) + lift`, where `lift` is the zero point minus
    `base`. It is clamped to `low - base` and `high - base`.

    Attributes:
        parts: int64 `[parts, o]`, the lowest part of each channel's multiplier first.
        offsets: int64 `[o]`. Without nudges, they include half and `lift`. They include the biases,
            unless these are separate.
        nudges: int64 `[o]`, or None.
        biases: int64 `[o]`, or None.
        drop: Bits that the total loses before the next product is added.
        shift: The right shift at the end.
        zero_point: The output's zero point.
        low: Smallest stored output.
        high: Largest stored output.
        base: The stored output that results are relative to; `low` if one unsigned comparison
            clamps.
    """

    parts: Array
    offsets: Array
    nudges: Array | None
    biases: Array | None
    drop: int
    shift: int
    zero_point: int
    low: int
    high: int
    base: int

    @property
    def count(self) -> int:
        """Multiplications per output."""
        return len(self.parts)

    @property
    def details(self) -> dict[str, str]:
        """What functions' names say about it if they differ in nothing else; see `KernelCall`."""
        return {
            "form": "plain" if self.nudges is None else "signed",
            "parts": f"parts{self.count}",
            "shift": f"shift{self.shift}",
            "drop": f"drop{self.drop}",
        }

    @property
    def span(self) -> int:
        """The largest output minus `low`."""
        return self.high - self.low

    @property
    def lift(self) -> int:
        """The zero point minus `base`."""
        return self.zero_point - self.base

    @property
    def center(self) -> int:
        """With nudges: half plus `lift`, before the shift."""
        return (2 * self.lift + 1) << self.shift >> 1

    @property
    def signed(self) -> ShortScaling:
        """The same for a core that saturates signed numbers: outputs are relative to 0."""
        offsets = self.offsets + (self.base << self.shift) if self.nudges is None else self.offsets
        return replace(self, offsets=offsets, base=0)

    @property
    def steps(self) -> ScalingSteps:
        """The same in C."""
        nudged, counted = self.nudges is not None, self.base == self.low
        clamped = f"t < {self.low} ? {self.low} : (t > {self.high} ? {self.high} : t)"
        return ScalingSteps(
            biased=self.biases is not None,
            parts=self.count,
            drop=self.drop if self.count > 1 else 0,
            nudge=self.count + 1 if nudged else None,
            shift=self.shift - 1 if nudged else self.shift,
            lift=offset("", self.lift) if nudged else "",
            span=self.span if counted else None,
            output=offset("t", self.low) if counted else clamped,
            low=self.low,
            high=self.high,
        )

    @property
    def rows(self) -> Array:
        """int32 `[o, fields]`: bias, offset, highest part, the other parts lowest first, nudge."""
        first = () if self.biases is None else (self.biases,)
        last = () if self.nudges is None else (self.nudges,)
        fields = (*first, self.offsets, self.parts[-1], *self.parts[:-1], *last)
        return np.stack(fields, axis=1).astype(np.int32)

    def outputs(self, sums: Array) -> Array:
        """Return the stored outputs of sums `[o, n]` without bias."""
        if self.biases is not None:
            sums = sums + self.biases[:, None]
        total = _scaled(self.parts, sums, self.drop) + self.offsets[:, None]
        if self.nudges is None:
            return np.clip((total >> self.shift) + self.base, self.low, self.high)
        total = total - np.where(total < 0, self.nudges[:, None], 0) + (1 << self.shift >> 1)
        return np.clip((total >> self.shift) + self.zero_point, self.low, self.high)


@cached_by_content
def short_scaling(requantization: Requantization, bias: Array) -> ShortScaling | None:
    """Return the cheapest exact short form of a requantization, or None.

    Args:
        requantization: The requantization to match; its ranges of sums include the bias.
        bias: int64 `[o]`, the bias included in these sums.
    """
    if (requantization.multipliers < 0).any() or requantization.left_shift_may_overflow:
        return None
    for parts in range(1, _MOST_PARTS + 1):
        for apart in (False, True):
            for nudged in (False, True) if requantization.reals is None else (False,):
                found = _ScalingSearch(requantization, bias, parts, nudged, apart).found()
                if found is not None:
                    return found
    return None


class _ScalingSearch:
    """The search for a given number of parts."""

    def __init__(
        self, r: Requantization, bias: Array, parts: int, nudged: bool, apart: bool
    ) -> None:
        self._r, self._count, self._nudged = r, parts, nudged
        self._apart = bias if apart else None
        bias = np.zeros_like(bias) if apart else bias
        self._bias = bias
        self._first = r.outputs(r.lowest)
        self._moves = self._first != r.outputs(r.highest)
        moves = self._moves
        self._lowest = (r.lowest - bias)[moves, None]
        self._highest = (r.highest - bias)[moves, None]
        self._reals = _reals(r)[moves]
        largest = int(np.maximum(-r.lowest + bias, r.highest - bias)[moves].max(initial=1))
        self._drop = 31 - (largest + 1).bit_length() if parts > 1 else 0
        reach = (np.maximum(-r.lowest, r.highest)[moves] * self._reals).max(initial=0.0)
        # The value before the last shift fits 32 bits, including offset and nudge.
        self._shift = 31 - int(np.ceil(np.log2(reach + 258 + (r.zero_point - r.low))))

    def found(self) -> ShortScaling | None:
        """Return parts, offsets and nudges that match every threshold, or None."""
        most, shift = self._drop, self._shift
        if shift < 1 or (self._count > 1 and most < 1):
            return None
        usual = ((min(drop, most), min(usual, shift)) for drop, usual in _USUAL[self._count])
        for pair in dict.fromkeys((*usual, (most, shift))):
            self._drop, self._shift = pair
            found = self._found()
            if found is not None:
                return found
        return None

    def _found(self) -> ShortScaling | None:
        """Return what matches every threshold with this drop and this shift, or None."""
        r, moves, drop, shift = self._r, self._moves, self._drop, self._shift
        parts = np.zeros((self._count, len(moves)), np.int64)
        # A channel with a constant output gets the middle of that output's interval.
        base = r.zero_point if self._nudged else r.low
        offsets = (self._first - base << shift) + (0 if self._nudged else 1 << shift >> 1)
        nudges = np.zeros(len(moves), np.int64) if self._nudged else None
        if moves.any():
            if nudges is not None:
                down = -r.shifts[moves]
                if (down < 1).any() or (down > shift).any():
                    return None
                nudges[moves] = np.int64(1) << (shift - down)
            fitted = self._fitted(None if nudges is None else nudges[moves, None])
            if fitted is None:
                return None
            parts[:, moves], offsets[moves] = fitted
        return ShortScaling(
            parts=parts,
            offsets=offsets,
            nudges=nudges,
            biases=self._apart,
            drop=drop,
            shift=shift,
            zero_point=r.zero_point,
            low=r.low,
            high=r.high,
            base=r.low,
        )

    def _fitted(self, nudges: Array | None) -> tuple[Array, Array] | None:
        r, drop, shift = self._r, self._drop, self._shift
        thresholds = r.thresholds(self._moves) - self._bias[self._moves, None]
        values = np.arange(1, r.high - r.low + 1)
        goals = values << shift
        if nudges is not None:
            # Goals are relative to the scaled value 0; half is added after the nudge.
            goals = (values - (r.zero_point - r.low) << shift) - (1 << shift >> 1)
            goals = goals + np.where(goals < 0, nudges, 0)
        scaled = np.rint(self._reals * 2.0 ** (shift + drop * (self._count - 1)))
        if scaled.max(initial=0.0) >= 2.0**62:
            return None
        exact = scaled.astype(np.int64)
        parts = np.zeros((self._count, len(exact)), np.int64)
        offsets = np.zeros(len(exact), np.int64)
        missing = np.ones(len(exact), np.bool_)
        for change in _NEIGHBORS:
            cut = _cut(np.maximum(exact + change, 0), drop, self._count)
            least, most = self._interval(cut, thresholds, goals)
            fits = missing & (least <= most) & (least >= -_INT32_MAX) & (most <= _INT32_MAX)
            fits &= (cut <= _INT32_MAX).all(axis=0)
            parts[:, fits] = cut[:, fits]
            offsets[fits] = ((least + most) >> 1)[fits]
            missing &= ~fits
        return None if missing.any() else (parts, offsets)

    def _interval(self, parts: Array, thresholds: Array, goals: Array) -> tuple[Array, Array]:
        """Return the smallest and largest offset with which each channel matches all thresholds."""
        inside = np.clip(thresholds, self._lowest, self._highest + 1)
        least = goals - _scaled(parts, inside, self._drop)
        least = np.where(thresholds <= self._highest, least, -_NEVER).max(axis=1)
        most = goals - 1 - _scaled(parts, inside - 1, self._drop)
        return least, np.where(thresholds > self._lowest, most, _NEVER).min(axis=1)


def _reals(requantization: Requantization) -> Array:
    """Return the real factors of the sums, float64 `[o]`."""
    if requantization.reals is not None:
        return requantization.reals.astype(np.float64)
    return requantization.multipliers * 2.0 ** (requantization.shifts.astype(np.float64) - 31)


def _cut(multipliers: Array, drop: int, count: int) -> Array:
    """Split multipliers into parts of `drop` bits, int64 `[parts, o]`; the last has any size."""
    lower = [(multipliers >> (drop * i)) & ((1 << drop) - 1) for i in range(count - 1)]
    return np.stack([*lower, multipliers >> (drop * (count - 1))])


def _scaled(parts: Array, sums: Array, drop: int) -> Array:
    """Return `[o, n]` sums times the multiplier in parts, before the offset."""
    total = parts[0][:, None] * sums
    for part in parts[1:]:
        total = (total >> drop) + part[:, None] * sums
    return total

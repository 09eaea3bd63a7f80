"""Requantization on cores that multiply 32 by 32 bits into 32 only: several short multiplications.

A channel's fixed-point multiplier is cut into parts of `drop` bits, the lowest one first. Each
part's product with the sum stays in 32 bits; what has been added up so far loses `drop` bits and
takes in the next product:

    t = sum * part[0];  t = (t >> drop) + sum * part[1];  …;  (t + offset) >> shift

Rounding the multiplier and dropping bits is not what gemmlowp or ONNX do; but every step rises with
the sum, and so does the whole. Two functions that rise and reach each of the (at most 256) stored
values at the same sums are equal. So the form is exact if and only if, at the sum T at which a
value v is first reached, `t(T) + offset >= v << shift`, and at T - 1 it is below: for given parts
that is an interval of offsets for each channel, and the search takes the fewest parts for which no
channel's interval is empty. Biases are part of the offsets: sums are taken without them. Where that
leaves too little room, they are added to the sums instead; with parts enough to hold gemmlowp's
multiplier whole, `t` is then its product rounded down, and an offset is found for certain.

gemmlowp rounds ties away from zero, which one offset cannot do on both sides of it. There the
scaled sum, if it is negative, is lowered by what gemmlowp's first product counts in (`nudges`),
before it is rounded; the rest of the proof is the same.

Source of what is equalled: Jacob et al., "Quantization and Training of Neural Networks for
Efficient Integer-Arithmetic-Only Inference" (2018), section 2; gemmlowp's rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.lower.c_expressions import offset
from smelt.codegen.lower.requantization import Requantization
from smelt.ir import Array

_NEIGHBOURS = (0, 1, -1, 2, -2, 3, -3)
"""Changes of a rounded multiplier in its last place that the search tries."""

_MOST_PARTS = 3
_INT32_MAX = 2**31 - 1
_NEVER = 1 << 40


@dataclass(frozen=True, kw_only=True)
class ScalingSteps:
    """How a sum becomes an output in C; see `lower/requantization_32bit.j2`.

    Attributes:
        biased: whether a row of constants begins with a bias.
        parts: multiplications.
        drop: bits that a product loses before the next one; 0 for a single one.
        nudge: which word of a row, without the bias, lowers what is negative; None for none.
        shift: right shift; a rounding one by 1 comes behind it where there is a nudge.
        lift: what is added then.
        span: largest number, if results are counted from the smallest output.
        output: of the result.
    """

    biased: bool
    parts: int
    drop: int
    nudge: int | None
    shift: int
    lift: str
    span: int | None
    output: str


@dataclass(frozen=True, kw_only=True)
class ShortScaling:
    """How the sums of each channel, without their bias, become outputs.

    With `t` the sum (plus bias, if there are `biases`) times the multiplier in parts, plus the
    channel's offset, the stored output less `base` is `t >> shift` without nudges; with them it is
    `((t - (t < 0 ? nudge : 0) + half) >> shift) + lift`, where `lift` is the zero point less
    `base`. It is clamped to `low - base` and `high - base`.

    Attributes:
        parts: int64 `[parts, o]`, the lowest part of each channel's multiplier first.
        offsets: int64 `[o]`; without nudges, half and `lift` are in them, and so are biases that
            are not apart.
        nudges: int64 `[o]`, or None.
        biases: int64 `[o]`, or None.
        drop: bits that a lower part's product loses before the next one.
        shift: right shift at the end.
        zero_point: of the output.
        low: smallest stored output.
        high: largest stored output.
        base: what stored outputs are counted from: `low` where one unsigned comparison clamps.
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
        """Multiplications an output."""
        return len(self.parts)

    @property
    def span(self) -> int:
        """Largest output, less `low`."""
        return self.high - self.low

    @property
    def lift(self) -> int:
        """Zero point, less `base`."""
        return self.zero_point - self.base

    @property
    def centre(self) -> int:
        """With nudges: half, plus `lift`, before the shift."""
        return (2 * self.lift + 1) << self.shift >> 1

    @property
    def signed(self) -> ShortScaling:
        """The same for a core that saturates numbers of either sign: outputs count from 0."""
        offsets = self.offsets + (self.base << self.shift) if self.nudges is None else self.offsets
        return replace(self, offsets=offsets, base=0)

    @property
    def steps(self) -> ScalingSteps:
        """The same in C."""
        nudged, counted = self.nudges is not None, self.base == self.low
        clamped = f"t < {self.low} ? {self.low} : t > {self.high} ? {self.high} : t"
        return ScalingSteps(
            biased=self.biases is not None,
            parts=self.count,
            drop=self.drop if self.count > 1 else 0,
            nudge=self.count + 1 if nudged else None,
            shift=self.shift - 1 if nudged else self.shift,
            lift=f" {'+' if self.lift >= 0 else '-'} {abs(self.lift)}" if nudged else "",
            span=self.span if counted else None,
            output=offset("t", self.low) if counted else clamped,
        )

    @property
    def rows(self) -> Array:
        """int32 `[o, fields]`: bias, offset, highest part, lower ones from the lowest on, nudge."""
        first = () if self.biases is None else (self.biases,)
        last = () if self.nudges is None else (self.nudges,)
        fields = (*first, self.offsets, self.parts[-1], *self.parts[:-1], *last)
        return np.stack(fields, axis=1).astype(np.int32)

    def outputs(self, sums: Array) -> Array:
        """The stored outputs of several sums a channel, without bias: `[o, n]`."""
        if self.biases is not None:
            sums = sums + self.biases[:, None]
        total = _scaled(self.parts, sums, self.drop) + self.offsets[:, None]
        if self.nudges is None:
            return np.clip((total >> self.shift) + self.base, self.low, self.high)
        total = total - np.where(total < 0, self.nudges[:, None], 0) + (1 << self.shift >> 1)
        return np.clip((total >> self.shift) + self.zero_point, self.low, self.high)


def short_scaling(requantization: Requantization, bias: Array) -> ShortScaling | None:
    """The cheapest short form of a requantization; None if none is exact.

    Args:
        requantization: what to equal; its ranges of sums include the bias.
        bias: int64 `[o]`, what these sums hold beside products.
    """
    if (requantization.multipliers < 0).any() or requantization.wraps:
        return None
    for parts in range(1, _MOST_PARTS + 1):
        for apart in (False, True):
            for nudged in (False, True) if requantization.reals is None else (False,):
                found = _ScalingSearch(requantization, bias, parts, nudged, apart).found()
                if found is not None:
                    return found
    return None


class _ScalingSearch:
    """The search for one number of parts."""

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
        # Offset, nudge and all, what is shifted last stays in 32 bits.
        self._shift = 31 - int(np.ceil(np.log2(reach + 258 + (r.zero_point - r.low))))

    def found(self) -> ShortScaling | None:
        """Parts, offsets and nudges that are right at every threshold; None if there are none."""
        r, moves, drop, shift = self._r, self._moves, self._drop, self._shift
        if shift < 1 or (self._count > 1 and drop < 1):
            return None
        parts = np.zeros((self._count, len(moves)), np.int64)
        # A channel that never moves takes the middle of its output's interval.
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
            # Seen from the sum of zero, whose scaled value is 0: half is added after the nudge.
            goals = (values - (r.zero_point - r.low) << shift) - (1 << shift >> 1)
            goals = goals + np.where(goals < 0, nudges, 0)
        scaled = np.rint(self._reals * 2.0 ** (shift + drop * (self._count - 1)))
        if scaled.max(initial=0.0) >= 2.0**62:
            return None
        exact = scaled.astype(np.int64)
        parts = np.zeros((self._count, len(exact)), np.int64)
        offsets = np.zeros(len(exact), np.int64)
        missing = np.ones(len(exact), np.bool_)
        for change in _NEIGHBOURS:
            cut = _cut(np.maximum(exact + change, 0), drop, self._count)
            least, most = self._interval(cut, thresholds, goals)
            fits = missing & (least <= most) & (least >= -_INT32_MAX) & (most <= _INT32_MAX)
            fits &= (cut <= _INT32_MAX).all(axis=0)
            parts[:, fits] = cut[:, fits]
            offsets[fits] = ((least + most) >> 1)[fits]
            missing &= ~fits
        return None if missing.any() else (parts, offsets)

    def _interval(self, parts: Array, thresholds: Array, goals: Array) -> tuple[Array, Array]:
        """Least and greatest offsets with which the channels are right at every threshold."""
        inside = np.clip(thresholds, self._lowest, self._highest + 1)
        least = goals - _scaled(parts, inside, self._drop)
        least = np.where(thresholds <= self._highest, least, -_NEVER).max(axis=1)
        most = goals - 1 - _scaled(parts, inside - 1, self._drop)
        return least, np.where(thresholds > self._lowest, most, _NEVER).min(axis=1)


def _reals(requantization: Requantization) -> Array:
    """float64 `[o]`: what sums are multiplied by."""
    if requantization.reals is not None:
        return requantization.reals.astype(np.float64)
    return requantization.multipliers * 2.0 ** (requantization.shifts.astype(np.float64) - 31)


def _cut(multipliers: Array, drop: int, count: int) -> Array:
    """int64 `[parts, o]`: multipliers in parts of `drop` bits, the last one of any size."""
    lower = [(multipliers >> (drop * i)) & ((1 << drop) - 1) for i in range(count - 1)]
    return np.stack([*lower, multipliers >> (drop * (count - 1))])


def _scaled(parts: Array, sums: Array, drop: int) -> Array:
    """`[o, n]` sums times the multiplier in parts, before the offset."""
    total = parts[0][:, None] * sums
    for part in parts[1:]:
        total = (total >> drop) + part[:, None] * sums
    return total

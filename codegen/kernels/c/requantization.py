"""From int32 sums to int8 outputs: what of it can be settled, and proved, at compile time.

TensorFlow Lite Micro rounds twice: a doubling high multiply to nearest, then a shift with ties away
from zero. Where the result is provably the same, one multiply-add and one shift do: both roundings
are additions before a floor, and floors of floors merge. What makes the two differ is that ties go
away from zero, so downwards below zero, and that channels have shifts of their own while the code
has one. Both functions rise with the sum, so that they are equal if every output value is first
reached at the same sum: a proof over all sums that takes one division per output value.

Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference" (2018), section 2; gemmlowp's rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array, Node
from smelt.ops.fixed_point import INT32_MAX, Activation, Requantizer, clamp_limits, per_channel

_LONGEST_SHIFT = 22
"""Right shifts up to this one keep the proof's products within int64."""

_SHARED_SHIFT = 6
"""Preferred right shift after the high multiply: layers of equal shifts share their function."""


@dataclass(frozen=True)
class Scaling:
    """`(sum * multiplier + offset) >> shift`: a whole requantization, zero point included.

    `offset` (64 bits) and `shift` hold for all channels, `multipliers` are int32 `[o]`.
    """

    multipliers: Array
    offset: int
    shift: int


@dataclass(frozen=True)
class Requantization:
    """How the sums of each output channel become stored outputs.

    Attributes:
        multipliers: int64 `[o]`, fixed-point multipliers.
        shifts: int64 `[o]`, left shifts (negative: right).
        bounds: int64 `[o]`: no sum, bias included, is larger in magnitude.
        zero_point: of the output.
        low: smallest stored output.
        high: largest stored output.
    """

    multipliers: Array
    shifts: Array
    bounds: Array
    zero_point: int
    low: int
    high: int

    @staticmethod
    def of(
        node: Node, scales: Sequence[float], activation: Activation, bounds: Array
    ) -> Requantization:
        """The requantization of a node.

        Args:
            node: gives the output's type; it must round as TensorFlow Lite Micro.
            scales: accumulator scale over output scale, one or one per channel.
            activation: fused into the node.
            bounds: of the sums, int64 `[o]`.
        """
        output = node.output.type
        if node.rounding is None:
            raise ValueError(f"{node.origin} has no rounding")
        requantizer = Requantizer(tuple(scales), node.rounding)
        low, high = clamp_limits(activation, output)
        return Requantization(
            np.asarray(per_channel(requantizer.multipliers, len(bounds)), np.int64),
            np.asarray(per_channel(requantizer.shifts, len(bounds)), np.int64),
            bounds,
            output.zero_point,
            low,
            high,
        )

    @property
    def is_uniform(self) -> bool:
        """Whether all channels have one multiplier and one shift."""
        return len(set(self.multipliers)) == 1 and len(set(self.shifts)) == 1

    @property
    def shifts_right(self) -> bool:
        """Whether every channel shifts right, and every sum can be doubled before."""
        right = (self.shifts <= -1) & (self.shifts >= -31)
        return bool((right | (self.multipliers == 0)).all() and (self.bounds < 2**30).all())

    @property
    def scaling(self) -> Scaling | None:
        """One multiply-add and shift that give the same outputs for all sums, if there are any."""
        down = -self.shifts
        moves = self._moves
        if not moves.any():
            return None
        if (self.shifts[moves] > 0).any() or (down[moves] > _LONGEST_SHIFT).any():
            return None
        least = int(down[moves].min())
        for common in dict.fromkeys((min(least, _SHARED_SHIFT), least)):
            dropped = np.where(moves, down - common, 0)
            multipliers = np.where(moves, (self.multipliers + (1 << dropped >> 1)) >> dropped, 0)
            for first_rounding in range(30, 30 - int(dropped.max()) - 1, -1):
                half = (1 << (30 + common) if common else 0) + (1 << first_rounding)
                if self._proved(multipliers, half, 31 + common):
                    offset = half + (self.zero_point << (31 + common))
                    return Scaling(multipliers, offset, 31 + common)
        return None

    @property
    def _moves(self) -> Array:
        """Which channels can leave the zero point (0.25 below the first rounding's error)."""
        real = self.multipliers * 2.0 ** (self.shifts - 31)
        return self.bounds * real >= 0.2

    def _proved(self, multipliers: Array, half: int, shift: int) -> bool:
        """Whether `(sum * multiplier + half) >> shift` always gives the clamped outputs."""
        values = np.arange(self.low - self.zero_point + 1, self.high - self.zero_point + 1)
        moves = self._moves
        limits = self.bounds[moves, None]
        down = -self.shifts[moves, None]
        steps = np.where(down > 0, (values << down) - (1 << down >> 1) + (values <= 0), values)
        first = _ceil_divide((steps << 31) - (1 << 30), self.multipliers[moves, None])
        candidate = _ceil_divide((values << shift) - half, multipliers[moves, None])
        same = np.clip(first, -limits, limits + 1) == np.clip(candidate, -limits, limits + 1)
        return bool(same.all()) and bool((limits * multipliers[moves, None] < 1 << 61).all())


def _ceil_divide(numerator: Array, denominator: Array) -> Array:
    return -(-numerator // denominator)


def folded_bias(bias: Array | None, weights: Array, zero_point: int) -> Array:
    """int64 `[o]`: the bias less the part of every sum that the input's zero point adds.

    Args:
        bias: `[o]` or None.
        weights: centred weights, output channels first.
        zero_point: of the input.
    """
    sums = weights.astype(np.int64).reshape(weights.shape[0], -1).sum(axis=1)
    start = np.zeros(len(weights), np.int64) if bias is None else bias.astype(np.int64).ravel()
    return start - zero_point * sums


def sum_bounds(bias: Array, weights: Array) -> Array:
    """int64 `[o]`: no partial sum of `bias + weights * stored int8` exceeds it."""
    return np.abs(bias) + 128 * absolute_sums(weights)


def absolute_sums(weights: Array) -> Array:
    """int64 `[o]`: sum of the magnitudes of each output channel's weights."""
    return np.abs(weights.astype(np.int64)).reshape(weights.shape[0], -1).sum(axis=1)


def fits_int32(bounds: Array) -> bool:
    """Whether sums of these bounds fit into int32."""
    return bool((bounds <= INT32_MAX).all())

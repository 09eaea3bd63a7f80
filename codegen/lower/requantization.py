"""Requantization from int32 sums to int8 outputs, simplified and proved exact at compile time.

TensorFlow Lite Micro rounds twice: a doubling high multiply rounds to nearest, then a shift rounds
to nearest with ties away from zero. Each rounding is an addition followed by a floor, and two
floors can usually be merged into one. Two differences remain. TensorFlow Lite Micro rounds ties of
negative numbers down, while a floor after an addition rounds them up. It also has a shift for each
channel, while the C code has one shift for all.

Unless a left shift overflows, the output of a channel never falls when its sum rises. It is
therefore determined by its thresholds, the sums at which each output value is first reached. Any
multiplier and offset with the same thresholds give the same outputs. To find a multiplier and an
offset, or to show that there are none, takes a division and two products for each output value.
ONNX's rounding multiplies in float32 and rounds ties to even; its thresholds are found by
bisection.

Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference" (2018), section 2; gemmlowp's rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from smelt.ir import Array, DType, Node, Rounding
from smelt.ops.arithmetic.fixed_point import (
    INT32_MAX,
    Activation,
    Requantizer,
    clamp_limits,
    multiply_by_quantized_multiplier,
    per_channel,
)

_LONGEST_SHIFT = 22
"""Largest right shift for which the thresholds' numerators fit into int64."""

_SHARED_SHIFT = 6
"""Preferred right shift after the high multiply: layers with equal shifts share a function."""


@dataclass(frozen=True)
class Scaling:
    """A complete requantization `(sum * multiplier + offset) >> shift`; the sum includes the bias.

    `multipliers` (within int32) and `offsets` (zero point included) are int64 `[o]`: one for each
    output channel.
    """

    multipliers: Array
    offsets: Array
    shift: int


@dataclass(frozen=True)
class Requantization:
    """The requantization of each output channel's sums.

    Attributes:
        multipliers: int64 `[o]`, fixed-point multipliers.
        shifts: int64 `[o]`, left shifts (negative: right).
        lowest: int64 `[o]`, the smallest possible sum, bias included.
        highest: int64 `[o]`, the largest possible sum, bias included.
        zero_point: The output's zero point.
        low: Smallest stored output.
        high: Largest stored output.
        reals: float32 `[o]`, the factors for ONNX's rounding; None for gemmlowp's.
    """

    multipliers: Array
    shifts: Array
    lowest: Array
    highest: Array
    zero_point: int
    low: int
    high: int
    reals: Array | None = None

    @staticmethod
    def of(
        node: Node, scales: Sequence[float], activation: Activation, range_: tuple[Array, Array]
    ) -> Requantization:
        """Return the requantization of a node.

        Args:
            node: Has the output's type and the rounding.
            scales: Accumulator scale divided by output scale: one, or one per channel.
            activation: The activation fused into the node.
            range_: Smallest and largest sums, int64 `[o]` each.

        Raises:
            ValueError: The node has no rounding.
        """
        output = node.output.type
        if node.rounding is None:
            raise ValueError(f"{node.origin} has no rounding")
        requantizer = Requantizer(tuple(scales), node.rounding)
        low, high = clamp_limits(activation, output, node.rounding)
        channels = len(range_[0])
        reals = None
        if node.rounding is Rounding.ONNX:
            reals = np.resize(np.asarray(requantizer.real, np.float32), channels)
        return Requantization(
            np.asarray(per_channel(requantizer.multipliers, channels), np.int64),
            np.asarray(per_channel(requantizer.shifts, channels), np.int64),
            *range_,
            output.zero_point,
            low,
            high,
            reals,
        )

    @property
    def shifts_right(self) -> bool:
        """Whether every channel shifts right, and every sum can be doubled first."""
        right = (self.shifts <= -1) & (self.shifts >= -31)
        small = np.maximum(-self.lowest, self.highest) < 2**30
        return bool((right | (self.multipliers == 0)).all() and small.all())

    @property
    def zero_point_may_overflow(self) -> bool:
        """Whether adding the zero point to a scaled sum may overflow."""
        return bool((self._shifted >= 2**31 - 2**9).any())

    @property
    def left_shift_may_overflow(self) -> bool:
        """Whether a left shift may overflow 32 bits: outputs may then fall when sums rise."""
        return self.reals is None and bool((self._shifted >= 2**31).any())

    @property
    def _shifted(self) -> Array:
        """The largest magnitude of each channel's sums after a left shift."""
        return np.maximum(-self.lowest, self.highest) * 2.0 ** self.shifts.clip(0)

    @property
    def allows_nearest(self) -> bool:
        """Whether the C helper `nearest` can round: all sums times `reals` are below 2^22.

        False without `reals`.
        """
        if self.reals is None:
            return False
        largest = np.maximum(-self.lowest, self.highest).astype(np.float64)
        return bool((largest * self.reals < 2.0**22 - 1).all())

    def outputs(self, sums: Array) -> Array:
        """Return the stored outputs of sums `[o]` or `[o, n]`."""
        if self.reals is not None:
            reals = self.reals if sums.ndim == 1 else self.reals[:, None]
            scaled = np.rint(np.clip(sums.astype(np.float32) * reals, -(2.0**40), 2.0**40))
            return np.clip(scaled.astype(np.int64) + self.zero_point, self.low, self.high)
        scaled = multiply_by_quantized_multiplier(sums, self.multipliers, self.shifts)
        return np.clip(scaled + self.zero_point, self.low, self.high)

    @property
    def scaling(self) -> Scaling | None:
        """One multiply-add and shift with the same outputs for all sums, or None."""
        if self.left_shift_may_overflow:
            return None
        first = self.outputs(self.lowest)
        moves = first != self.outputs(self.highest)
        down = -self.shifts[moves]
        if not moves.any() or down.min() < 0 or down.max() > _LONGEST_SHIFT:
            return None
        least = int(down.min())
        for common in dict.fromkeys((min(least, _SHARED_SHIFT), least)):
            shift = 31 + common
            found = self._fit(moves, shift)
            if found is not None:
                # A channel with a constant output gets the middle of that output's interval.
                multipliers = np.zeros(len(moves), np.int64)
                offsets = (first << shift) + (1 << (shift - 1))
                multipliers[moves], offsets[moves] = found
                return Scaling(multipliers, offsets, shift)
        return None

    def thresholds(self, channels: Array) -> Array:
        """Return the sums at which the chosen channels' outputs first reach each value above `low`.

        Take a formula whose result never falls when the sum rises. It equals the requantization
        if, and only if, it has the same thresholds between `lowest` and `highest`.

        Args:
            channels: bool `[o]`; the multipliers of these channels must be positive.

        Returns:
            int64 `[chosen, high - low]`. A threshold above `highest` is never reached. A threshold
            of `lowest` or below is always reached.
        """
        values = np.arange(self.low - self.zero_point + 1, self.high - self.zero_point + 1)
        if self.reals is not None:
            return self._bisected(channels, values)
        down, multiplier = -self.shifts[channels, None], self.multipliers[channels, None]
        # Compute the doubling high product at which each value is first reached, then the sum.
        product = np.where(down > 0, (values << down) - (1 << down >> 1) + (values <= 0), values)
        return -(-((product << 31) - (1 << 30)) // multiplier)

    def _fit(self, moves: Array, shift: int) -> tuple[Array, Array] | None:
        """Return multipliers and offsets that keep the channels' thresholds, or None."""
        multiplier = self.multipliers[moves, None]
        down = -self.shifts[moves, None]
        lowest, highest = self.lowest[moves, None], self.highest[moves, None]
        values = np.arange(self.low - self.zero_point + 1, self.high - self.zero_point + 1)
        threshold = self.thresholds(moves)
        dropped = 31 + down - shift
        reduced = (multiplier + (1 << dropped >> 1)) >> dropped
        goal = values << shift
        inside = np.clip(threshold, lowest, highest + 1)
        least = np.where(threshold <= highest, goal - inside * reduced, _MINIMUM).max(axis=1)
        below = goal - (inside - 1) * reduced - 1
        most = np.where(threshold > lowest, below, -_MINIMUM).min(axis=1)
        if (least > most).any():
            return None
        natural = (1 << (shift - 1)) + (1 << (30 - dropped[:, 0]).clip(0))
        if self.reals is not None:
            natural = np.full_like(natural, 1 << (shift - 1))
        return reduced[:, 0], np.clip(natural, least, most) + (self.zero_point << shift)

    def _bisected(self, moves: Array, values: Array) -> Array:
        """Return the thresholds of the chosen channels for `values` (outputs minus zero point).

        The result is int64 `[chosen, values]`. The threshold of a value that is never reached is
        `highest + 1`.
        """
        if self.reals is None:
            raise ValueError("gemmlowp's thresholds need no search")
        chosen = replace(self, reals=self.reals[moves])
        # Two roundings to float32 move a threshold by less than this.
        middle = (values - 0.5) / self.reals[moves, None].astype(np.float64)
        margin = np.abs(middle) * 2.0**-22 + 2.0
        first, last = self.lowest[moves, None] - 1, self.highest[moves, None] + 1
        below = np.clip(np.floor(middle - margin), first, last).astype(np.int64)
        above = np.clip(np.ceil(middle + margin), first, last).astype(np.int64)
        wanted = values + self.zero_point
        while (above - below > 1).any():
            middle = (below + above) >> 1
            reached = chosen.outputs(middle) >= wanted
            open_ = above - below > 1
            above = np.where(open_ & reached, middle, above)
            below = np.where(open_ & ~reached, middle, below)
        return above


_MINIMUM = -(1 << 62)


def folded_bias(bias: Array | None, weights: Array, zero_point: int) -> Array:
    """Return the bias minus what the input's zero point adds to each sum, int64 `[o]`.

    Args:
        bias: `[o]` or None.
        weights: Weights minus zero points, output channels first.
        zero_point: The input's zero point.
    """
    sums = weights.astype(np.int64).reshape(weights.shape[0], -1).sum(axis=1)
    start = np.zeros(len(weights), np.int64) if bias is None else bias.astype(np.int64).ravel()
    return start - zero_point * sums


def sum_range(bias: Array, weights: Array, dtype: DType = DType.INT8) -> tuple[Array, Array]:
    """Return the smallest and largest `bias + weights * x` over all `x` of `dtype`, int64 `[o]`."""
    low, high = dtype.limits
    weights = weights.astype(np.int64).reshape(weights.shape[0], -1)
    positive, negative = weights.clip(0).sum(axis=1), weights.clip(max=0).sum(axis=1)
    return bias + low * positive + high * negative, bias + high * positive + low * negative


def fits_int32(range_: tuple[Array, Array]) -> bool:
    """Return whether these sums fit into int32, as do all partial sums that include the bias."""
    return bool((range_[0] >= -INT32_MAX).all() and (range_[1] <= INT32_MAX).all())

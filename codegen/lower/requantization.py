"""From int32 sums to int8 outputs: what of it can be settled, and proved, at compile time.

TensorFlow Lite Micro rounds twice: a doubling high multiply to nearest, then a shift with ties away
from zero. Two roundings are mostly one: both are additions before a floor, and floors of floors
merge. What differs is that ties go away from zero, so downwards below it, and that channels have
shifts of their own while the code has one. But the outputs of a channel rise with its sum, so that
they are settled by the sums at which each output value is first reached; any multiplier and offset
that lie right at all of these give the same outputs. Finding them, or that there are none, takes a
division and two products for each output value. ONNX's rounding, a product in float32 with ties to
even, is settled the same way: its thresholds are found by bisection.

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
"""Right shifts up to this one keep the thresholds' numerators within int64."""

_SHARED_SHIFT = 6
"""Preferred right shift after the high multiply: layers of equal shifts share their function."""


@dataclass(frozen=True)
class Scaling:
    """`(sum * multiplier + offset) >> shift` with the bias in the sum: a whole requantization.

    `multipliers` (int32) and `offsets` (int64, the zero point included) are `[o]`.
    """

    multipliers: Array
    offsets: Array
    shift: int


@dataclass(frozen=True)
class Requantization:
    """How the sums of each output channel become stored outputs.

    Attributes:
        multipliers: int64 `[o]`, fixed-point multipliers.
        shifts: int64 `[o]`, left shifts (negative: right).
        lowest: int64 `[o]`: the smallest sum, bias included, that an input can make.
        highest: int64 `[o]`: the largest one.
        zero_point: of the output.
        low: smallest stored output.
        high: largest stored output.
        reals: float32 `[o]`, what sums are multiplied by; None where rounded as gemmlowp does.
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
        """The requantization of a node.

        Args:
            node: gives the output's type and the rounding.
            scales: accumulator scale over output scale, one or one per channel.
            activation: fused into the node.
            range_: smallest and largest sums, int64 `[o]` each.
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
        """Whether every channel shifts right, and every sum can be doubled before."""
        right = (self.shifts <= -1) & (self.shifts >= -31)
        small = np.maximum(-self.lowest, self.highest) < 2**30
        return bool((right | (self.multipliers == 0)).all() and small.all())

    @property
    def fills_int32(self) -> bool:
        """Whether a zero point may overflow what a sum becomes."""
        return bool((self._shifted >= 2**31 - 2**9).any())

    @property
    def wraps(self) -> bool:
        """Whether a sum may leave 32 bits when shifted left: outputs do not rise with sums then."""
        return self.reals is None and bool((self._shifted >= 2**31).any())

    @property
    def _shifted(self) -> Array:
        """The largest magnitude of each channel's sums, shifted left where they are."""
        return np.maximum(-self.lowest, self.highest) * 2.0 ** self.shifts.clip(0)

    @property
    def stays_small(self) -> bool:
        """Whether no product with `reals` reaches 2^22."""
        if self.reals is None:
            return False
        largest = np.maximum(-self.lowest, self.highest).astype(np.float64)
        return bool((largest * self.reals < 2.0**22 - 1).all())

    def outputs(self, sums: Array) -> Array:
        """The stored outputs of one sum a channel, or of several: `[o]` or `[o, n]`."""
        if self.reals is not None:
            reals = self.reals if sums.ndim == 1 else self.reals[:, None]
            scaled = np.rint(np.clip(sums.astype(np.float32) * reals, -(2.0**40), 2.0**40))
            return np.clip(scaled.astype(np.int64) + self.zero_point, self.low, self.high)
        scaled = multiply_by_quantized_multiplier(sums, self.multipliers, self.shifts)
        return np.clip(scaled + self.zero_point, self.low, self.high)

    @property
    def scaling(self) -> Scaling | None:
        """One multiply-add and shift with the same outputs for all sums; None if there is none."""
        if self.wraps:
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
                # A channel that never moves takes the middle of its output's interval.
                multipliers = np.zeros(len(moves), np.int64)
                offsets = (first << shift) + (1 << (shift - 1))
                multipliers[moves], offsets[moves] = found
                return Scaling(multipliers, offsets, shift)
        return None

    def thresholds(self, channels: Array) -> Array:
        """The sums at which the chosen channels' outputs first reach each value above `low`.

        Args:
            channels: bool `[o]`; their multipliers are positive.

        Returns:
            int64 `[chosen, high - low]`; what lies outside of `lowest` and `highest` is not
            reached (above), or reached by every sum (below). A form of the requantization is exact
            if, and only if, it has the same thresholds within these limits and rises with the sum.
        """
        values = np.arange(self.low - self.zero_point + 1, self.high - self.zero_point + 1)
        if self.reals is not None:
            return self._bisected(channels, values)
        down, multiplier = -self.shifts[channels, None], self.multipliers[channels, None]
        # The doubling high product, and the sum, at which each value is first reached.
        product = np.where(down > 0, (values << down) - (1 << down >> 1) + (values <= 0), values)
        return -(-((product << 31) - (1 << 30)) // multiplier)

    def _fit(self, moves: Array, shift: int) -> tuple[Array, Array] | None:
        """Multipliers and offsets of the chosen channels, right at every threshold."""
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
        """The least sums, int64 `[o, values]`, whose outputs reach each value, less zero point.

        One more than the highest sum where none does.
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
    """int64 `[o]`: the bias less the part of every sum that the input's zero point adds.

    Args:
        bias: `[o]` or None.
        weights: centred weights, output channels first.
        zero_point: of the input.
    """
    sums = weights.astype(np.int64).reshape(weights.shape[0], -1).sum(axis=1)
    start = np.zeros(len(weights), np.int64) if bias is None else bias.astype(np.int64).ravel()
    return start - zero_point * sums


def sum_range(bias: Array, weights: Array, dtype: DType = DType.INT8) -> tuple[Array, Array]:
    """int64 `[o]` each: smallest and largest `bias + weights * x` over all `x` of that type."""
    low, high = dtype.limits
    weights = weights.astype(np.int64).reshape(weights.shape[0], -1)
    positive, negative = weights.clip(0).sum(axis=1), weights.clip(max=0).sum(axis=1)
    return bias + low * positive + high * negative, bias + high * positive + low * negative


def fits_int32(range_: tuple[Array, Array]) -> bool:
    """Whether sums of this range, and their partial sums of whatever order, fit into int32."""
    return bool((range_[0] >= -INT32_MAX).all() and (range_[1] <= INT32_MAX).all())

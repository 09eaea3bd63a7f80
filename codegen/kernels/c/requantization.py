"""From int32 accumulators to int8 outputs: what of it can be settled at compile time.

Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference" (2018), section 2.3 (zero points folded into the bias).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array, Node, Rounding
from smelt.ops.fixed_point import (
    INT32_MAX,
    Activation,
    Requantizer,
    clamp_limits,
    per_channel,
)


@dataclass(frozen=True)
class Requantization:
    """How the accumulators of each output channel become stored outputs.

    Attributes:
        multipliers: fixed-point multipliers, one per output channel.
        shifts: left shifts (negative: right), one per output channel.
        zero_point: of the output.
        low: smallest stored output.
        high: largest stored output.
    """

    multipliers: tuple[int, ...]
    shifts: tuple[int, ...]
    zero_point: int
    low: int
    high: int

    @staticmethod
    def of(
        node: Node, scales: Sequence[float], activation: Activation, channels: int
    ) -> Requantization:
        """The requantization of a node, given accumulator scales over output scale."""
        output = node.output.type
        requantizer = Requantizer(tuple(scales), node.rounding or Rounding.TFLM)
        low, high = clamp_limits(activation, output)
        return Requantization(
            per_channel(requantizer.multipliers, channels),
            per_channel(requantizer.shifts, channels),
            output.zero_point,
            low,
            high,
        )

    @property
    def is_uniform(self) -> bool:
        """Whether all channels have one multiplier and one shift."""
        return len(set(self.multipliers)) == 1 and len(set(self.shifts)) == 1

    def rows(self, bias: Array) -> Array:
        """`[channels, 3]` int32: bias, multiplier, shift; the bias alone where uniform."""
        columns = [bias] if self.is_uniform else [bias, self.multipliers, self.shifts]
        return np.stack([np.asarray(c, np.int32) for c in columns], axis=1)

    @property
    def variables(self) -> dict[str, object]:
        """What the templates ask about it."""
        return {
            "uniform": self.is_uniform,
            "multiplier": self.multipliers[0],
            "shift": self.shifts[0],
            "zero_point": self.zero_point,
            "low": self.low,
            "high": self.high,
            "fields": 1 if self.is_uniform else 3,
        }


def refuse_rounding(node: Node) -> str | None:
    """None where the C kernels round as the node demands, else one sentence saying why not."""
    if not node.output.type.is_quantized or node.rounding is Rounding.TFLM:
        return None
    rounding = "none" if node.rounding is None else node.rounding.value
    return f"rounding '{rounding}' is not served by backend 'c', only '{Rounding.TFLM.value}'."


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


def accumulator_bound(bias: Array, weights: Array) -> Array:
    """int64 `[o]`: no partial sum of `bias + weights * stored int8` exceeds it."""
    norms = np.abs(weights.astype(np.int64)).reshape(weights.shape[0], -1).sum(axis=1)
    return np.abs(bias) + 128 * norms


def fits_int32(bias: Array, weights: Array) -> bool:
    """Whether no accumulator can leave int32, whatever the input."""
    return bool((accumulator_bound(bias, weights) <= INT32_MAX).all())

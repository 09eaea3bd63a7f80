"""What activations look like: a float network is run on calibration data, each tensor watched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from smelt.ir import Array, DType, Graph, Value, evaluate

Sample: TypeAlias = tuple[Array, ...]

ELEMENTS = 1 << 16
"""Elements of a tensor that are kept, over all samples."""


@dataclass(frozen=True)
class Observation:
    """What was seen of one tensor.

    Attributes:
        elements: float32 `[samples, n]`: some of the elements of each sample, chosen at random.
        low, high: float32 `[samples]`: the least and the greatest element of each sample.
        power: float64 `[samples]`: the mean square of each sample's elements.
        lows, highs: float32 `[samples, channels]`: the same in each channel, the last axis.
    """

    elements: Array
    low: Array
    high: Array
    power: Array
    lows: Array
    highs: Array

    @staticmethod
    def of_constant(array: Array) -> Observation:
        """What there is to see of a constant, as if it were one sample."""
        flat = finite(array).reshape(-1, array.shape[-1] if array.ndim else 1)
        limits = np.stack([flat.min(axis=0), flat.max(axis=0)])
        power = float(np.square(flat, dtype=np.float64).mean())
        return _summary([(flat.ravel(), limits, power)])

    def channel_limits(self) -> tuple[Array, Array]:
        """How far each channel reaches below and above zero, both positive: `[channels]`.

        Samples that are far louder than the others do not count.
        """
        usual = self.power <= 4.0 * _LOUD * np.median(self.power) + 1e-30
        low, high = self.lows[usual].min(axis=0), self.highs[usual].max(axis=0)
        return np.maximum(-low, 0.0), np.maximum(high, 0.0)

    @property
    def weights(self) -> Array:
        """float64 `[samples]`: see `sample_weights`."""
        return sample_weights(self.power)


def finite(array: Array) -> Array:
    """Infinities brought to the greatest magnitude beside them, which masks stand for; NaN to 0."""
    good = np.isfinite(array)
    if good.all():
        return array
    most = np.abs(array[good]).max(initial=0.0)
    return np.nan_to_num(array, nan=0.0, posinf=most, neginf=-most)


def sample_weights(power: Array) -> Array:
    """What a squared error in each sample counts: the same in all, but for samples that are loud.

    In one whose power is far above that of the others it counts against its own power, so that it
    does not drown them.
    """
    usual = _LOUD * float(np.median(power)) + 1e-3 * float(np.mean(power)) + 1e-30
    return 1.0 / np.maximum(power, usual)


_LOUD = 4.0
"""From this much above the median on, a sample's power is out of the ordinary."""


def observe(graph: Graph, samples: Sequence[Sample], seed: int) -> dict[Value, Observation]:
    """Run a float network on every sample.

    Args:
        graph: a float network.
        samples: one array per input each.
        seed: of the choice of elements.

    Returns:
        By value, of those of float32 that are computed.
    """
    rng = np.random.default_rng(seed)
    values = [
        v
        for v in graph.values()
        if v.data is None and v.type.dtype is DType.FLOAT32 and v.type.size
    ]
    count = max(ELEMENTS // len(samples), 64)
    chosen = {
        v: None if v.type.size <= count else np.sort(rng.choice(v.type.size, count, replace=False))
        for v in values
    }
    seen: dict[Value, list[tuple[Array, Array, float]]] = {v: [] for v in values}
    for sample in samples:
        found = evaluate(graph, sample).values
        for value in values:
            array = finite(found[value])
            flat = array.reshape(-1, value.type.shape[-1] if value.type.shape else 1)
            kept = flat.ravel() if chosen[value] is None else flat.ravel()[chosen[value]]
            limits = np.stack([flat.min(axis=0), flat.max(axis=0)])
            power = float(np.square(flat, dtype=np.float64).mean())
            seen[value].append((kept, limits, power))
    return {value: _summary(parts) for value, parts in seen.items()}


def _summary(parts: Sequence[tuple[Array, Array, float]]) -> Observation:
    limits = np.stack([limits for _, limits, _ in parts])
    return Observation(
        np.stack([kept for kept, _, _ in parts]),
        limits[:, 0].min(axis=1),
        limits[:, 1].max(axis=1),
        np.array([power for _, _, power in parts]),
        limits[:, 0],
        limits[:, 1],
    )

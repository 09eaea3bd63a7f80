"""Tables of functions for integer arithmetic, as TensorFlow Lite fills and reads them.

8-bit functions are tables of 256 results. 16-bit ones are 513 samples, read with linear
interpolation: nine bits of index, seven of fraction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from smelt.ir import Array, TensorType
from smelt.ops.arithmetic.fixed_point import round_half_away

FloatFunction = Callable[[Array], Array]
"""A real function of float32 arrays with float32 results."""


def table8(transform: FloatFunction, x: TensorType, y: TensorType) -> Array:
    """Stored outputs (int64, clamped) of a real function for each stored input, lowest first."""
    low, high = x.dtype.limits
    stored = np.arange(low, high + 1, dtype=np.int64)
    real = np.float32(x.scale) * (stored - x.zero_point).astype(np.float32)
    inverse_scale = np.float32(1) / np.float32(y.scale)
    scaled = round_half_away(transform(real).astype(np.float32) * inverse_scale)
    return np.clip(scaled + np.float32(y.zero_point), *y.dtype.limits).astype(np.int64)


def table16(transform: FloatFunction, low: float, high: float, unit: float) -> Array:
    """513 samples (int64) of a function on [low, high], in multiples of `unit`.

    Each is shifted by half the error that linear interpolation makes in the middle of its step.
    """
    one = np.float32
    step = (one(high) - one(low)) / one(512)
    index = np.arange(512, dtype=np.float32)
    scale = one(65536) / (one(unit) * one(65535))

    def sample(points: Array) -> Array:
        return transform(points.astype(np.float32)).astype(np.float32) * scale

    here = sample(one(low) + index * step)
    middle = round_half_away(sample(one(low) + index * step + step / one(2)))
    after = sample(one(low) + (index + one(1)) * step)
    interpolated = round_half_away((after + round_half_away(here)) / one(2))
    shift = round_half_away((interpolated - middle) / one(2))
    last = round_half_away(sample(np.asarray([high], np.float32)))
    samples = np.concatenate([round_half_away(here) - shift, last])
    return np.clip(samples, -32768, 32767).astype(np.int64)


def read16(table: Array, x: Array) -> Array:
    """The function of int16 values by a table of 513 samples."""
    index, fraction = 256 + (x >> 7), x & 0x7F
    slope = table[index + 1] - table[index]
    return table[index] + ((slope * fraction + 64) >> 7)


@cache
def sigmoid_samples() -> Array:
    """Logistic function of i/24 for i = 0 … 255, in units of 2^-16, corrected like `table16`.

    The last sample is where the 16-bit functions saturate.
    """
    i = np.arange(256)

    def sigmoid(position: Array) -> Array:
        return 65536 / (1 + np.exp(-position / 24))

    interpolated = (sigmoid(i) + sigmoid(i + 1)) / 2
    samples = np.rint(sigmoid(i) + (sigmoid(i + 0.5) - interpolated) / 2).astype(np.int64)
    samples[-1] = 65535
    samples.flags.writeable = False
    return samples

"""Lookup tables of functions for integer arithmetic, made and read as TensorFlow Lite does.

A table of an 8-bit function has 256 results. A table of a 16-bit function has 513 samples, read
with linear interpolation: nine bits are the index, seven bits the fraction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from smelt.ir import Array, TensorType
from smelt.ops.arithmetic.fixed_point import round_half_away

FloatFunction = Callable[[Array], Array]
"""A real function of float32 arrays, with float32 results."""


def table8(transform: FloatFunction, x: TensorType, y: TensorType) -> Array:
    """Return the stored outputs of a real function for each stored input, in ascending order.

    They are int64, clamped to the output's element type.
    """
    low, high = x.dtype.limits
    stored = np.arange(low, high + 1, dtype=np.int64)
    real = np.float32(x.scale) * (stored - x.zero_point).astype(np.float32)
    inverse_scale = np.float32(1) / np.float32(y.scale)
    scaled = round_half_away(transform(real).astype(np.float32) * inverse_scale)
    return np.clip(scaled + np.float32(y.zero_point), *y.dtype.limits).astype(np.int64)


def table16(transform: FloatFunction, low: float, high: float, unit: float) -> Array:
    """Return 513 samples (int64) of a function on [low, high], in multiples of `unit`.

    Each sample is shifted by half the error of linear interpolation in the middle of its interval.
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
    """Return the function of int16 values, interpolated in a table of 513 samples."""
    index, fraction = 256 + (x >> 7), x & 0x7F
    slope = table[index + 1] - table[index]
    return table[index] + ((slope * fraction + 64) >> 7)


@cache
def sigmoid_samples() -> Array:
    """Return samples of the logistic function at i/24 for i = 0 … 255, in units of 2^-16.

    They are corrected as in `table16`. The last sample is where the 16-bit functions saturate.
    """
    i = np.arange(256)

    def sigmoid(position: Array) -> Array:
        return 65536 / (1 + np.exp(-position / 24))

    interpolated = (sigmoid(i) + sigmoid(i + 1)) / 2
    samples = np.rint(sigmoid(i) + (sigmoid(i + 0.5) - interpolated) / 2).astype(np.int64)
    samples[-1] = 65535
    samples.flags.writeable = False
    return samples

"""Quantized arithmetic of the unary operators, exactly as TensorFlow Lite Micro computes it.

Each function takes the stored inputs (int64), `alpha`, and the types of input and output. It
returns stored outputs as int64, not yet clamped to the output's element type.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from smelt.ir import Array, DType, TensorType
from smelt.ops.arithmetic.fixed_point import (
    Activation,
    clamp_limits,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    rescale_multiplier,
    rounding_shift_right,
)
from smelt.ops.arithmetic.gemmlowp import inverse_sqrt, logistic, tanh
from smelt.ops.core.lookup import sigmoid_samples, table8

UnaryArithmetic = Callable[[Array, float, TensorType, TensorType], Array]


def scale_ratio(x: TensorType, y: TensorType) -> float:
    """Return the input's scale divided by the output's scale, rounded to float32."""
    return float(np.float32(x.scale) / np.float32(y.scale))


def clamped(activation: Activation) -> UnaryArithmetic:
    """Return RELU or another clamp: rescale, then clamp to the limits on the output's scale."""

    def compute(x: Array, alpha: float, source: TensorType, y: TensorType) -> Array:
        multiplier = rescale_multiplier(scale_ratio(source, y))
        scaled = multiply_by_quantized_multiplier(x - source.zero_point, *multiplier)
        return np.clip(scaled + y.zero_point, *clamp_limits(activation, y))

    return compute


def tabulated(transform: Callable[[Array, float], Array]) -> UnaryArithmetic:
    """Return a function of float32 arrays and `alpha` as a table of its 256 possible results."""

    def compute(x: Array, alpha: float, source: TensorType, y: TensorType) -> Array:
        with np.errstate(all="ignore"):
            table = table8(lambda real: transform(real, alpha), source, y)
        return table[x - source.dtype.limits[0]]

    return compute


def leaky_relu(x: Array, alpha: float, source: TensorType, y: TensorType) -> Array:
    """Rescale with one multiplier for each sign; `alpha` may be negative."""
    centered = x - source.zero_point
    one, slope = leaky_scales(source, y, alpha)
    positive = multiply_by_quantized_multiplier(centered, *rescale_multiplier(one))
    negative = multiply_by_quantized_multiplier(centered, *rescale_multiplier(abs(slope)))
    negative = -negative if slope < 0 else negative
    return np.where(centered >= 0, positive, negative) + y.zero_point


def leaky_scales(x: TensorType, y: TensorType, alpha: float) -> tuple[float, float]:
    """Return LEAKY_RELU's factors of elements >= 0 and of elements < 0, rounded to float32."""
    with np.errstate(over="ignore"):
        slope = np.float32(x.scale) * np.float32(alpha) / np.float32(y.scale)
    return scale_ratio(x, y), float(slope)


def absolute(x: Array, alpha: float, source: TensorType, y: TensorType) -> Array:
    """Return absolute values; they are rescaled only if the scales differ."""
    value = np.abs(x - source.zero_point)
    if source.scale != y.scale:
        multiplier = rescale_multiplier(scale_ratio(source, y))
        value = multiply_by_quantized_multiplier(value, *multiplier)
    return value + y.zero_point


def rsqrt(x: Array, alpha: float, source: TensorType, y: TensorType) -> Array:
    """Return inverse square roots by Newton-Raphson steps with 20 guard bits.

    Inputs that represent 0 or less give the largest output. For negative inputs, TensorFlow Lite
    Micro stops with an error instead.
    """
    root = np.sqrt(np.float32(source.scale)) * np.float32(y.scale)
    multiplier, shift = quantize_multiplier(1.0 / float(root))
    low, high = source.dtype.limits
    table = np.full(high - low + 1, y.dtype.limits[1], np.int64)
    for stored in range(source.zero_point + 1, high + 1):
        inverse, inverse_shift = inverse_sqrt(stored - source.zero_point)
        one = np.ones((), np.int64)
        data = multiply_by_quantized_multiplier(one, inverse, inverse_shift + 20)
        scaled = multiply_by_quantized_multiplier(data, multiplier, shift - 20)
        table[stored - low] = scaled + y.zero_point
    return table[x - low]


def _saturating(function: Callable[[Array, int], Array], bits: int, zero: int) -> UnaryArithmetic:
    """Return an S-shaped function of 8-bit data, computed in fixed point with 4 integer bits.

    Inputs outside of the range of these fixed-point numbers saturate. `bits` is the number of
    fractional bits of the output, `zero` its zero point.
    """

    def compute(x: Array, alpha: float, source: TensorType, y: TensorType) -> Array:
        multiplier, shift = quantize_multiplier(source.scale * 2.0**27)
        radius = math.floor(15 * 2.0 ** (27 - shift))
        centered = x - source.zero_point
        inside = np.abs(centered) < radius
        fixed = multiply_by_quantized_multiplier(np.where(inside, centered, 0), multiplier, shift)
        result = rounding_shift_right(function(fixed, 4), 31 - bits) + zero
        low, high = y.dtype.limits
        return np.where(inside, result, np.where(centered <= -radius, low, high))

    return compute


_logistic8 = _saturating(logistic, 8, -128)
_tanh8 = _saturating(tanh, 7, 0)


def logistic_integer(x: Array, alpha: float, source: TensorType, y: TensorType) -> Array:
    """Return LOGISTIC: by fixed-point arithmetic for int8, from a sampled table for int16."""
    if source.dtype is DType.INT8:
        return _logistic8(x, alpha, source, y)
    return sampled_logistic(_table_position(x, source, TABLE_SHIFTS["logistic"]))


def sampled_logistic(position: Array) -> Array:
    """Return the logistic function in units of 2^-15, of int16 inputs with scale 1/(3·4096)."""
    value = np.abs(position)
    result = np.where(value >> 9 >= 255, 0x7FFF << 10, _interpolate(value, 9))
    result = np.where(position >= 0, result + (1 << 9), (1 << 25) - result + (1 << 9) - 1)
    return result >> 10


def tanh_integer(x: Array, alpha: float, source: TensorType, y: TensorType) -> Array:
    """Return TANH: fixed-point arithmetic for int8; `tanh(x) = 2·logistic(2x) - 1` for int16."""
    if source.dtype is DType.INT8:
        return _tanh8(x, alpha, source, y)
    return sampled_tanh(_table_position(x, source, TABLE_SHIFTS["tanh"]))


def sampled_tanh(position: Array) -> Array:
    """Return the hyperbolic tangent in units of 2^-15, of int16 inputs with scale 1/(3·4096)."""
    value = np.abs(position)
    result = np.where(value >> 8 >= 255, 0xFFFF << 8, _interpolate(value, 8))
    middle, half = 1 << 23, 1 << 7
    result = np.where(position >= 0, result - middle + half, middle - result + half - 1)
    return result >> 8


def _interpolate(value: Array, bits: int) -> Array:
    """Interpolate the sigmoid samples at `value / 2^bits`; the result is times `2^bits`."""
    samples = sigmoid_samples()
    index = np.minimum(value >> bits, 254)
    fraction = value & ((1 << bits) - 1)
    return (samples[index] << bits) + fraction * (samples[index + 1] - samples[index])


TABLE_SHIFTS: dict[str, tuple[int, ...]] = {"logistic": (0,), "tanh": (0, 1)}
"""Values of n for which an input scale of 2^(n-12) needs no rounding in 16-bit functions."""


def _table_position(x: Array, source: TensorType, power_of_two_shifts: tuple[int, ...]) -> Array:
    """Rescale an input to scale 1/(3·4096)."""
    multiplier, shift = table_scaling(source, power_of_two_shifts)
    return (x * multiplier + ((1 << shift) >> 1)) >> shift


def table_scaling(source: TensorType, power_of_two_shifts: tuple[int, ...]) -> tuple[int, int]:
    """Return a multiplier and a rounding right shift that rescale an input to 1/(3·4096).

    The shift is 0 if the scale is a suitable power of two.
    """
    log2 = float(np.log(np.float32(source.scale)) * (np.float32(1) / np.log(np.float32(2))))
    nearest = round(log2)
    if abs(log2 - nearest) < 1e-3 and 12 + nearest in power_of_two_shifts:
        return 3 << (12 + nearest), 0
    multiplier, shift = source.scale * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and shift <= 30:
        multiplier, shift = multiplier * 2.0, shift + 1
    return int(multiplier), shift


def hard_swish(x: Array, alpha: float, source: TensorType, y: TensorType) -> Array:
    """Return HARD_SWISH in 16-bit fixed point: `x` times `relu6(x + 3) / 6`, both rounded."""
    (output, output_shift), (reluish, reluish_shift) = hard_swish_multipliers(source, y)
    high_resolution = (x - source.zero_point) << 7
    scaled = _doubling_high_multiply16(high_resolution, output)
    gate = high_resolution
    if reluish_shift > 0:
        gate = _clip16(gate << (reluish_shift - 1))
    gate = _doubling_high_multiply16(gate, reluish)
    if reluish_shift > 0:
        gate = _clip16(gate << 1)
    elif reluish_shift < 0:
        gate = _rounding_shift_right16(gate, -reluish_shift)
    gate = (gate + (1 << 15)) >> 1
    product = gate * scaled
    truncated = np.where(product >= 0, product >> 15, -(-product >> 15))
    return _rounding_shift_right16(truncated, -output_shift) + y.zero_point


def hard_swish_multipliers(x: TensorType, y: TensorType) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return 16-bit multiplier and left shift of the output, then of the gate (3.0 is 2^15)."""
    one = np.float32
    fine = one(1 / 128) * one(x.scale)
    output = quantize_multiplier(float(fine / one(y.scale)))
    gate = quantize_multiplier(float(fine / (one(3) / one(32768))))
    return (_to_16_bits(output[0]), output[1]), (_to_16_bits(gate[0]), gate[1])


def _to_16_bits(multiplier: int) -> int:
    return min((multiplier + (1 << 15)) >> 16, 0x7FFF)


def _clip16(x: Array) -> Array:
    return np.clip(x, -32768, 32767)


def _doubling_high_multiply16(a: Array, b: int) -> Array:
    return np.minimum((a * b + (1 << 14)) >> 15, 32767)


def _rounding_shift_right16(x: Array, exponent: int) -> Array:
    """Shift int16 right as gemmlowp does: for 16 bits or more, its mask has wrapped to -1."""
    mask = (1 << exponent) - 1 if exponent < 16 else -1
    return (x >> exponent) + ((x & mask) > (mask >> 1) + (x < 0))

"""Transcendental functions in 32-bit fixed point, as gemmlowp defines them.

A Q`n` number is an int32 with `n` integer bits: its real value is `raw / 2^(31-n)`. Arrays are
int64 and contain raw values in int32's range. Source: gemmlowp's `fixedpoint.h`, and the functions
that TensorFlow Lite builds on it (reciprocal, logarithm, inverse square root).
"""

from __future__ import annotations

import numpy as np

from smelt.ir import Array
from smelt.ops.arithmetic.fixed_point import (
    INT32_MAX,
    INT32_MIN,
    doubling_high_multiply,
    rounding_shift_right,
    wrap_int32,
)

ONE = INT32_MAX
"""The largest Q0 number, which represents 1."""


def _q0(real: float) -> int:
    """Return a constant in [-1, 1) as the nearest Q0 number."""
    return round(real * 2.0**31)


def shift_left_saturating(x: Array, bits: Array | int) -> Array:
    """Return `x · 2^bits`, saturated.

    As in gemmlowp, all `x` below `-threshold` saturate, although the result of `-threshold - 1`
    would fit.
    """
    x = np.asarray(x, np.int64)
    threshold = (np.int64(1) << (31 - np.asarray(bits, np.int64))) - 1
    shifted = np.clip(x << bits, INT32_MIN, INT32_MAX)
    return np.where(x < -threshold, INT32_MIN, shifted)


def rescale(x: Array, source: int, target: int) -> Array:
    """Convert Q`source` numbers to Q`target`; right shifts round, left shifts saturate."""
    if target >= source:
        return rounding_shift_right(x, target - source)
    return shift_left_saturating(x, source - target)


def rounding_half_sum(a: Array, b: Array | int) -> Array:
    """Return `(a + b) / 2`, ties away from zero."""
    total = np.asarray(a, np.int64) + b
    return np.where(total >= 0, (total + 1) >> 1, -((1 - total) >> 1))


def count_leading_zeros(x: Array) -> Array:
    """Count the leading zeros of 32-bit unsigned numbers; 32 for zero."""
    return 32 - np.frexp(np.asarray(x, np.float64))[1].astype(np.int64)


def count_leading_sign_bits(x: Array) -> Array:
    """Return by how many bits an int32 can be shifted left without overflow; 31 for zero."""
    x = np.asarray(x, np.int64)
    return count_leading_zeros(np.where(x < 0, ~x, x)) - 1


def _exp_near_zero(a: Array) -> Array:
    """Return exp(a) of Q0 numbers in [-1/4, 0), by a Taylor expansion around -1/8."""
    x = a + (1 << 28)
    x2 = doubling_high_multiply(x, x)
    x3 = doubling_high_multiply(x2, x)
    x4 = doubling_high_multiply(x2, x2)
    cubic = doubling_high_multiply(rounding_shift_right(x4, 2) + x3, _q0(1 / 3))
    tail = rounding_shift_right(cubic + x2, 1)
    constant = _q0(float(np.exp(-1 / 8)))
    return constant + doubling_high_multiply(x + tail, constant)


def exp_on_negative_values(a: Array, integer_bits: int) -> Array:
    """Return exp(a) of Q`integer_bits` numbers ≤ 0 (at most 5 integer bits), as Q0.

    The remainder modulo 1/4 is computed by a Taylor expansion. For each set bit of the other bits,
    the result is multiplied by a constant.
    """
    a = np.asarray(a, np.int64)
    fraction_bits = 31 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    near = (a & (quarter - 1)) - quarter
    result = _exp_near_zero(rescale(near, integer_bits, 0))
    remainder = near - a
    for power in range(-2, integer_bits):
        factor = _q0(float(np.exp(-(2.0**power))))
        bit = remainder & (1 << (fraction_bits + power))
        result = np.where(bit != 0, doubling_high_multiply(result, factor), result)
    return np.where(a == 0, ONE, result)


def _half_reciprocal(a: Array) -> Array:
    """Return `2 / (1 + a)` of Q0 numbers in [0, 1], as Q2, by three Newton-Raphson steps."""
    half_denominator = rounding_half_sum(a, ONE)
    one = 1 << 29
    x = 1515870810 + doubling_high_multiply(half_denominator, -1010580540)
    for _ in range(3):
        error = wrap_int32(one - doubling_high_multiply(half_denominator, x))
        x = wrap_int32(x + shift_left_saturating(doubling_high_multiply(x, error), 2))
    return x


def one_over_one_plus(a: Array) -> Array:
    """Return `1 / (1 + a)` of Q0 numbers in [0, 1], as Q0."""
    return shift_left_saturating(_half_reciprocal(a), 1)


def one_minus_over_one_plus(a: Array) -> Array:
    """Return `(1 - a) / (1 + a)` of Q0 numbers in [0, 1], as Q0."""
    return shift_left_saturating(_half_reciprocal(a) - (1 << 29), 2)


def logistic(a: Array, integer_bits: int) -> Array:
    """Return `1 / (1 + exp(-a))` of Q`integer_bits` numbers, as Q0."""
    a = np.asarray(a, np.int64)
    positive = one_over_one_plus(exp_on_negative_values(-np.abs(a), integer_bits))
    return np.where(a == 0, 1 << 30, np.where(a > 0, positive, ONE - positive))


def tanh(a: Array, integer_bits: int) -> Array:
    """Return the hyperbolic tangent of Q`integer_bits` numbers (at most 4 integer bits), as Q0."""
    a = np.asarray(a, np.int64)
    # A raw number interpreted with one more integer bit is twice as large.
    t = one_minus_over_one_plus(exp_on_negative_values(-np.abs(a), integer_bits + 1))
    return np.where(a == 0, 0, np.where(a < 0, -t, t))


def reciprocal(x: Array, integer_bits: int) -> tuple[Array, Array]:
    """Return `1 / x` of positive Q`integer_bits` numbers.

    The result is `(r, bits)`: the reciprocal is `r · 2^-bits`, with r a Q0 number in [1/2, 1].
    """
    x = np.asarray(x, np.int64)
    headroom = count_leading_zeros(x)
    minus_one = wrap_int32(((x << headroom) & 0xFFFFFFFF) - (1 << 31))
    return one_over_one_plus(minus_one), integer_bits - headroom


def log(x: Array, input_bits: int, output_bits: int) -> Array:
    """Return the natural logarithm of Q`input_bits` numbers ≥ 1, as Q`output_bits`.

    The range is reduced by choosing between x and x·√½, then a rational function approximates the
    logarithm around 2^(-1/4). TensorFlow Lite uses this in LOG_SOFTMAX.
    """
    x = np.asarray(x, np.int64)
    accumulator_bits = output_bits + 1
    unit_shift = 31 - accumulator_bits
    root_half, root_root_half = _q0(0.5**0.5), _q0(0.5**0.25)
    quarter = rescale(np.asarray(1 << 29, np.int64), 0, accumulator_bits)

    headroom = count_leading_zeros(x)
    normal = shift_left_saturating(x, headroom - 1)
    r_a = shift_left_saturating(doubling_high_multiply(normal, root_half), 1)
    power_a = shift_left_saturating(input_bits - headroom, unit_shift) + quarter
    headroom_b = count_leading_zeros(doubling_high_multiply(x, root_half)) - 1
    r_b = shift_left_saturating(x, headroom_b)
    power_b = shift_left_saturating(input_bits - headroom_b, unit_shift) - quarter
    r = np.minimum(r_a, r_b)
    power = np.clip(np.maximum(power_a, power_b), INT32_MIN, INT32_MAX)

    mul = doubling_high_multiply
    p = rounding_half_sum(r, root_root_half)
    q = 2 * (r - root_root_half)
    q2 = mul(q, q)
    root2 = 2.0**0.25
    numerator = mul(q, r) + mul(mul(q, q2), _q0(11 / 240 * root2))
    bracket = _q0(2 / root2 - root2) + q + mul(q2, _q0(root2 / 20))
    denominator_minus_one = mul(p, bracket) + mul(q, _q0(root2 / 4))
    ratio = mul(rescale(numerator, 0, accumulator_bits), one_over_one_plus(denominator_minus_one))
    return rescale(mul(power, _q0(float(np.log(2)))) + ratio, accumulator_bits, output_bits)


def inverse_sqrt(value: int) -> tuple[int, int]:
    """Return `1 / √value` of an integer ≥ 1 as `(multiplier, shift)`.

    The result is `multiplier · 2^(shift-31)`, computed in Q3 by five Newton-Raphson steps from 1.
    TensorFlow Lite uses this in RSQRT and L2_NORMALIZATION.
    """
    if value <= 1:
        return INT32_MAX, 0
    shift = 11
    while value >= 1 << 29:
        value //= 4
        shift += 1
    pairs = (32 - value.bit_length() - 1) // 2 - 1
    shift -= pairs
    half = np.asarray((value << (2 * pairs)) >> 1, np.int64)
    mul = doubling_high_multiply
    three_halves = (1 << 28) + (1 << 27)
    x = np.asarray(1 << 28, np.int64)
    for _ in range(5):
        cube = rescale(mul(mul(x, x), x), 9, 3)
        x = rescale(mul(x, three_halves) - mul(rounding_shift_right(half, 1), cube), 6, 3)
    multiplier = int(mul(x, _q0(0.5**0.5)))
    if shift < 0:
        multiplier, shift = multiplier << -shift, 0
    return multiplier, -shift

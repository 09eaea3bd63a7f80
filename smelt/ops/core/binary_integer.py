"""Quantized arithmetic of the binary operators, exactly as TensorFlow Lite Micro computes it.

Sums rescale both inputs to a common scale with `left_shift` guard bits before they are added.
Products and quotients requantize once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array, DType, TensorType
from smelt.ops.arithmetic.fixed_point import (
    doubling_high_multiply,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    rescale_multiplier,
    rounding_shift_right,
    wrap_int32,
)
from smelt.ops.arithmetic.gemmlowp import count_leading_sign_bits, reciprocal

Multiplier = tuple[int, int]
"""Fixed-point multiplier and left shift; see `rescale_multiplier`."""


@dataclass(frozen=True)
class CommonScale:
    """Multipliers of a sum.

    Each input becomes `((x - zero point) << left_shift) * multiplier`, with multiplier `a` or `b`.
    `output` rescales the sum (or the squared difference) to the output's scale.
    """

    left_shift: int
    a: Multiplier
    b: Multiplier
    output: Multiplier


def add_scaling(a: TensorType, b: TensorType, y: TensorType) -> CommonScale:
    """Return the multipliers of ADD, computed in double precision."""
    shift = 15 if y.dtype is DType.INT16 else 20
    twice = 2.0 * max(a.scale, b.scale)
    return CommonScale(
        shift,
        rescale_multiplier(a.scale / twice),
        rescale_multiplier(b.scale / twice),
        rescale_multiplier(twice / (2.0**shift * y.scale)),
    )


def sub_scaling(a: TensorType, b: TensorType, y: TensorType) -> CommonScale:
    """Return the multipliers of SUB: as for ADD, but each quotient is rounded to float32."""
    shift = 15 if y.dtype is DType.INT16 else 20
    one = np.float32
    twice = one(2) * one(max(a.scale, b.scale))
    return CommonScale(
        shift,
        rescale_multiplier(float(one(a.scale) / twice)),
        rescale_multiplier(float(one(b.scale) / twice)),
        rescale_multiplier(float(twice / (one(2.0**shift) * one(y.scale)))),
    )


def squared_difference_scaling(a: TensorType, b: TensorType, y: TensorType) -> CommonScale:
    """Return the multipliers of SQUARED_DIFFERENCE.

    For 8-bit data there are 7 guard bits, so that the square fits in 32 bits.
    """
    shift = 0 if y.dtype is DType.INT16 else 7
    twice = 2.0 * max(a.scale, b.scale)
    return CommonScale(
        shift,
        rescale_multiplier(a.scale / twice),
        rescale_multiplier(b.scale / twice),
        rescale_multiplier(twice * twice / (4.0**shift * y.scale)),
    )


def mul_scaling(a: TensorType, b: TensorType, y: TensorType) -> Multiplier:
    """Return the multiplier of MUL, computed in double precision."""
    return rescale_multiplier(a.scale * b.scale / y.scale)


def div_scaling(a: TensorType, b: TensorType, y: TensorType) -> Multiplier:
    """Return the multiplier of DIV, rounded to float32."""
    product = np.float32(b.scale) * np.float32(y.scale)
    return quantize_multiplier(float(np.float32(a.scale) / product))


BinaryArithmetic = Callable[[Array, Array, TensorType, TensorType, TensorType], Array]
"""Quantized arithmetic: int64 inputs and results, all without their zero points."""


def _align(scaling: CommonScale, a: Array, b: Array) -> tuple[Array, Array]:
    """Return both inputs on the common scale."""
    return (
        multiply_by_quantized_multiplier(a << scaling.left_shift, *scaling.a),
        multiply_by_quantized_multiplier(b << scaling.left_shift, *scaling.b),
    )


def add(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    """Add both inputs on a common scale, and requantize."""
    scaling = add_scaling(x0, x1, y)
    left, right = _align(scaling, a, b)
    return multiply_by_quantized_multiplier(left + right, *scaling.output)


def sub(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    """Subtract as `add` does, with the multipliers of SUB."""
    scaling = sub_scaling(x0, x1, y)
    left, right = _align(scaling, a, b)
    return multiply_by_quantized_multiplier(left - right, *scaling.output)


def squared_difference(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    """Square the difference, which wraps in 32 bits, and requantize."""
    scaling = squared_difference_scaling(x0, x1, y)
    left, right = _align(scaling, a, b)
    square = wrap_int32((left - right) * (left - right))
    return multiply_by_quantized_multiplier(square, *scaling.output)


def mul(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    """Multiply the stored integers, and requantize."""
    return multiply_by_quantized_multiplier(a * b, *mul_scaling(x0, x1, y))


def div(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    """Multiply by a fixed-point reciprocal.

    For a divisor of 0, the result is that of a shift by 32 bits to 0 in TensorFlow Lite Micro.
    """
    multiplier, shift = div_scaling(x0, x1, y)
    a, b = np.broadcast_arrays(np.where(b < 0, -a, a), np.abs(b))
    inverse, bits = reciprocal(b, 31)
    headroom = count_leading_sign_bits(a)
    quotient = doubling_high_multiply(a << headroom, inverse)
    scaled = doubling_high_multiply(quotient, multiplier)
    return rounding_shift_right(scaled, np.clip(bits + headroom - shift, 0, 62))


def maximum(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    """Return the larger stored integer."""
    return np.maximum(a, b)


def minimum(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    """Return the smaller stored integer."""
    return np.minimum(a, b)

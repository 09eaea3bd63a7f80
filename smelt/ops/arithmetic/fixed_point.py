"""Integer arithmetic of quantized inference: multipliers, requantization, clamps.

Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference" (2018), section 2.2; gemmlowp's fixed-point operations; the
TensorFlow Lite 8-bit quantization specification. Arrays are int64 with values in int32's range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Activation, Array, Quant, Rounding, TensorType

WORD = 32
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1

REDUCED_LIMIT = 1 << 47
"""Upper bound of accumulators with 16-bit data, so that multiplying them fits in 64 bits."""


def quantize_real(
    real: float, scale: float, zero_point: int, rounding: Rounding | None = None
) -> int:
    """Return the stored integer nearest to `real`, not clamped; the division is in float32.

    Ties go to the even integer if `rounding` is ONNX's, else away from zero.
    """
    quotient = float(np.float32(real) / np.float32(scale))
    return zero_point + (round(quotient) if rounding is Rounding.ONNX else round_away(quotient))


def clamp_limits(
    activation: Activation, output: TensorType, rounding: Rounding | None = None
) -> tuple[int, int]:
    """Return the smallest and largest stored output of a quantized operator with an activation."""
    low, high = output.dtype.limits
    real_low, real_high = activation.limits
    if math.isfinite(real_low):
        stored = quantize_real(real_low, output.scale, output.zero_point, rounding)
        low = min(max(low, stored), high)
    if math.isfinite(real_high):
        stored = quantize_real(real_high, output.scale, output.zero_point, rounding)
        high = max(min(high, stored), low)
    return low, high


def quantize_onnx(real: Array, quant: Quant, output: TensorType) -> Array:
    """Quantize as ONNX's QuantizeLinear: float32 division, ties to even, saturation.

    Args:
        real: float32 array.
        quant: quantization of the output.
        output: type of the output; only its element type is used.
    """
    scale, zero_point = along_axis(quant, real.ndim)
    low, high = output.dtype.limits
    with np.errstate(over="ignore"):
        scaled = np.rint(real.astype(np.float32) / scale.astype(np.float32))
    # NaN becomes the smallest element; float64 represents every bound exactly.
    wide = np.nan_to_num(scaled.astype(np.float64), nan=-np.inf) + zero_point
    return np.clip(wide, low, high).astype(output.dtype.numpy)


def dequantize_onnx(stored: Array, quant: Quant) -> Array:
    """Dequantize as ONNX's DequantizeLinear: a difference, then one float32 product."""
    scale, zero_point = along_axis(quant, stored.ndim)
    centered = np.asarray(stored.astype(np.int64) - zero_point, np.float32)
    return np.asarray(centered * scale.astype(np.float32), np.float32)


def along_axis(quant: Quant, rank: int) -> tuple[Array, Array]:
    """Return scales (float64) and zero points (int64), broadcastable to a tensor of that rank."""
    shape = [1] * rank if quant.axis is not None else []
    if quant.axis is not None:
        shape[quant.axis] = -1
    return (
        np.reshape(np.asarray(quant.scale, np.float64), shape),
        np.reshape(np.asarray(quant.zero_point, np.int64), shape),
    )


def round_away(x: float) -> int:
    """Return the nearest integer, ties away from zero (C's `round`)."""
    whole = math.floor(abs(x))
    return (whole + (abs(x) - whole >= 0.5)) * (1 if x >= 0 else -1)


def round_half_away(x: Array) -> Array:
    """Round to the nearest integers, ties away from zero (C's `round`); keep the float type."""
    truncated = np.trunc(x)
    return truncated + np.copysign((np.abs(x - truncated) >= 0.5).astype(x.dtype), x)


def quantize_multiplier(real: float) -> tuple[int, int]:
    """Return `(multiplier, shift)` with `real ≈ multiplier · 2^(shift-31)`.

    The multiplier is in [2^30, 2^31). A `real` below about 2^-32 gives (0, 0).
    """
    if real == 0.0:
        return 0, 0
    mantissa, shift = math.frexp(real)
    multiplier = round_away(mantissa * 2.0**31)
    if multiplier == 2**31:
        multiplier //= 2
        shift += 1
    if shift < -31:
        return 0, 0
    return multiplier, shift


def rescale_multiplier(real: float) -> tuple[int, int]:
    """Return `quantize_multiplier(real)` for rescaling int32 numbers; (0, 0) if `real` >= 2^31.

    A left shift of an int32 by 32 bits or more leaves 0 here, as shifts wrap. In TFLite Micro's C,
    such a shift is undefined behavior.
    """
    if math.isinf(real):  # the ratio of the scales is too large for float32
        return 0, 0
    multiplier, shift = quantize_multiplier(real)
    return (multiplier, shift) if shift < WORD else (0, 0)


def doubling_high_multiply(a: Array, b: Array | int) -> Array:
    """Return the high 32 bits of `2·a·b`, rounded to nearest (ties towards +∞), saturated.

    gemmlowp rounds with a sign-dependent nudge and a truncating division. Both together equal
    adding 2^30 and shifting right arithmetically by 31.
    """
    product = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    return np.minimum((product + (1 << 30)) >> 31, INT32_MAX)


def rounding_shift_right(x: Array, exponent: Array | int) -> Array:
    """Return `x / 2^exponent`, ties away from zero (gemmlowp's RoundingDivideByPOT)."""
    x = np.asarray(x, np.int64)
    exponent = np.asarray(exponent, np.int64)
    mask = (np.int64(1) << exponent) - 1
    threshold = (mask >> 1) + (x < 0)
    return (x >> exponent) + ((x & mask) > threshold)


def wrap_int32(x: Array) -> Array:
    """Return the low 32 bits as a signed number."""
    return ((np.asarray(x, np.int64) - INT32_MIN) & 0xFFFFFFFF) + INT32_MIN


def multiply_by_quantized_multiplier(
    x: Array, multiplier: Array | int, shift: Array | int
) -> Array:
    """Return `x · multiplier · 2^(shift-31)` with gemmlowp's two roundings; `x` fits in int32."""
    shift = np.asarray(shift, np.int64)
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    shifted = wrap_int32(np.asarray(x, np.int64) << left)
    return rounding_shift_right(doubling_high_multiply(shifted, multiplier), right)


def reduced_multiplier(multiplier: Array | int) -> Array:
    """Return the upper 16 bits of a multiplier, rounded, as int64."""
    multiplier = np.asarray(multiplier, np.int64)
    return np.where(multiplier < 0x7FFF0000, (multiplier + (1 << 15)) >> 16, 0x7FFF)


def multiply_by_quantized_multiplier16(
    x: Array, multiplier: Array | int, shift: Array | int
) -> Array:
    """Multiply a 64-bit accumulator: the multiplier is reduced to 16 bits, with one rounding."""
    reduced = reduced_multiplier(multiplier)
    total = 15 - np.asarray(shift, np.int64)
    return wrap_int32((np.asarray(x, np.int64) * reduced + (np.int64(1) << (total - 1))) >> total)


@dataclass(frozen=True)
class Requantizer:
    """Rescales accumulators to the output's scale.

    `real` is the accumulator's scale divided by the output's scale: one number, or one per output
    channel (the accumulator's last axis). ONNX does not define how the accumulator is converted to
    float; it is rounded to float32 here, as onnxruntime does.
    """

    real: tuple[float, ...]
    rounding: Rounding

    @property
    def multipliers(self) -> tuple[int, ...]:
        """Fixed-point multipliers, one for each element of `real`."""
        return tuple(rescale_multiplier(r)[0] for r in self.real)

    @property
    def shifts(self) -> tuple[int, ...]:
        """Left shifts (right if negative), one for each element of `real`."""
        return tuple(rescale_multiplier(r)[1] for r in self.real)

    def __call__(self, acc: Array) -> Array:
        """Return rescaled accumulators as int64, without the zero point."""
        if self.rounding is Rounding.ONNX:
            scaled = np.asarray(acc).astype(np.float32) * np.asarray(self.real, np.float32)
            return np.rint(np.clip(scaled, -(2.0**40), 2.0**40)).astype(np.int64)
        multiplier, shift = np.asarray(self.multipliers), np.asarray(self.shifts)
        if self.rounding is Rounding.TFLM:
            return multiply_by_quantized_multiplier(acc, multiplier, shift)
        if self.rounding is Rounding.TFLM16:
            return multiply_by_quantized_multiplier16(acc, multiplier, shift)
        total = 31 - shift
        product = np.asarray(acc, np.int64) * multiplier
        return (product + (np.int64(1) << (total - 1))) >> total


def convolution_scales(
    x: TensorType, weights: TensorType, output: TensorType, rounding: Rounding | None = None
) -> tuple[float, ...]:
    """Return the accumulator's scale divided by the output's scale, for each scale of the weights.

    The division is in double precision. If `rounding` is ONNX's, each step is rounded to float32.
    """
    if weights.quant is None:
        raise ValueError(f"weights {weights} are not quantized")
    if rounding is Rounding.ONNX:
        products = np.float32(x.scale) * np.asarray(weights.quant.scale, np.float32)
        return tuple(float(scale) for scale in products / np.float32(output.scale))
    return tuple(x.scale * scale / output.scale for scale in weights.quant.scale)


def finish(
    acc: Array, requantize: Requantizer, activation: Activation, output: TensorType
) -> Array:
    """Requantize an accumulator, add the zero point, clamp and store."""
    low, high = clamp_limits(activation, output, requantize.rounding)
    scaled = requantize(acc) + output.zero_point
    return np.clip(scaled, low, high).astype(output.dtype.numpy)


def per_channel(values: Sequence[int], channels: int) -> tuple[int, ...]:
    """Repeat a single value for all channels; return several values unchanged."""
    return tuple(values) * channels if len(values) == 1 else tuple(values)

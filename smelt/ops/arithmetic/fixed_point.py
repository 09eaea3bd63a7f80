"""Integer arithmetic of quantized inference: multipliers, requantization, clamps.

Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference" (2018), section 2.2; gemmlowp's fixed-point operations; the
TensorFlow Lite 8-bit quantization specification. Arrays are int64, values within int32.
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
"""Sums of 16-bit activations stay below this one, so that they have room for a multiplier."""


def quantize_real(
    real: float, scale: float, zero_point: int, rounding: Rounding | None = None
) -> int:
    """The stored integer nearest to `real`, not clamped; float32 division.

    Ties go to the even one where `rounding` is that of ONNX, else away from zero.
    """
    quotient = float(np.float32(real) / np.float32(scale))
    return zero_point + (round(quotient) if rounding is Rounding.ONNX else round_away(quotient))


def clamp_limits(
    activation: Activation, output: TensorType, rounding: Rounding | None = None
) -> tuple[int, int]:
    """Smallest and largest stored output of a quantized operator with a fused activation."""
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
    """Stored elements by ONNX's QuantizeLinear: float32 division, ties to even, saturated.

    Args:
        real: float32.
        quant: of the output.
        output: gives the element type.
    """
    scale, zero_point = along_axis(quant, real.ndim)
    low, high = output.dtype.limits
    with np.errstate(over="ignore"):
        scaled = np.rint(real.astype(np.float32) / scale.astype(np.float32))
    # NaN is stored as the least element; float64 holds every bound exactly.
    wide = np.nan_to_num(scaled.astype(np.float64), nan=-np.inf) + zero_point
    return np.clip(wide, low, high).astype(output.dtype.numpy)


def dequantize_onnx(stored: Array, quant: Quant) -> Array:
    """Real numbers (float32) by ONNX's DequantizeLinear: difference, then one product."""
    scale, zero_point = along_axis(quant, stored.ndim)
    centred = np.asarray(stored.astype(np.int64) - zero_point, np.float32)
    return np.asarray(centred * scale.astype(np.float32), np.float32)


def along_axis(quant: Quant, rank: int) -> tuple[Array, Array]:
    """Scales (float64) and zero points (int64) that broadcast against a tensor of that rank."""
    shape = [1] * rank if quant.axis is not None else []
    if quant.axis is not None:
        shape[quant.axis] = -1
    return (
        np.reshape(np.asarray(quant.scale, np.float64), shape),
        np.reshape(np.asarray(quant.zero_point, np.int64), shape),
    )


def round_away(x: float) -> int:
    """Nearest integer, ties away from zero (C's `round`)."""
    whole = math.floor(abs(x))
    return (whole + (abs(x) - whole >= 0.5)) * (1 if x >= 0 else -1)


def round_half_away(x: Array) -> Array:
    """Nearest integers, ties away from zero, as floats of the same type (C's `round`)."""
    truncated = np.trunc(x)
    return truncated + np.copysign((np.abs(x - truncated) >= 0.5).astype(x.dtype), x)


def quantize_multiplier(real: float) -> tuple[int, int]:
    """`(multiplier, shift)` with `real ≈ multiplier · 2^(shift-31)`, multiplier in [2^30, 2^31).

    A real multiplier below about 2^-32 becomes (0, 0).
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
    """The same to bring int32 numbers to another scale; (0, 0) also from 2^31 on.

    Of an int32 that is shifted left by 32 bits or more nothing is left, as it is here at every
    shift that wraps; TFLite Micro's C leaves undefined what it is.
    """
    if math.isinf(real):  # scales so far apart that their ratio is no float32
        return 0, 0
    multiplier, shift = quantize_multiplier(real)
    return (multiplier, shift) if shift < WORD else (0, 0)


def doubling_high_multiply(a: Array, b: Array | int) -> Array:
    """High 32 bits of `2·a·b`, rounded to nearest (ties towards +∞), saturated.

    gemmlowp writes the rounding with a sign-dependent nudge and a truncating division; both
    equal adding 2^30 and shifting right arithmetically by 31.
    """
    product = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    return np.minimum((product + (1 << 30)) >> 31, INT32_MAX)


def rounding_shift_right(x: Array, exponent: Array | int) -> Array:
    """`x / 2^exponent`, ties away from zero (gemmlowp's RoundingDivideByPOT)."""
    x = np.asarray(x, np.int64)
    exponent = np.asarray(exponent, np.int64)
    mask = (np.int64(1) << exponent) - 1
    threshold = (mask >> 1) + (x < 0)
    return (x >> exponent) + ((x & mask) > threshold)


def wrap_int32(x: Array) -> Array:
    """The low 32 bits as a signed number."""
    return ((np.asarray(x, np.int64) - INT32_MIN) & 0xFFFFFFFF) + INT32_MIN


def multiply_by_quantized_multiplier(
    x: Array, multiplier: Array | int, shift: Array | int
) -> Array:
    """`x · multiplier · 2^(shift-31)` by gemmlowp's two roundings; `x` within int32."""
    shift = np.asarray(shift, np.int64)
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    shifted = wrap_int32(np.asarray(x, np.int64) << left)
    return rounding_shift_right(doubling_high_multiply(shifted, multiplier), right)


def reduced_multiplier(multiplier: Array | int) -> Array:
    """The 16 high bits of a multiplier, rounded, int64."""
    multiplier = np.asarray(multiplier, np.int64)
    return np.where(multiplier < 0x7FFF0000, (multiplier + (1 << 15)) >> 16, 0x7FFF)


def multiply_by_quantized_multiplier16(
    x: Array, multiplier: Array | int, shift: Array | int
) -> Array:
    """The form for 64-bit accumulators: multiplier reduced to 16 bits, one rounding."""
    reduced = reduced_multiplier(multiplier)
    total = 15 - np.asarray(shift, np.int64)
    return wrap_int32((np.asarray(x, np.int64) * reduced + (np.int64(1) << (total - 1))) >> total)


@dataclass(frozen=True)
class Requantizer:
    """Brings accumulators to the output's scale: `real[i]` is acc scale over output scale.

    ONNX leaves the accumulator's conversion open: it is rounded to float32, as in onnxruntime.
    `real` has one element, or one per output channel (the last axis of the accumulator).
    """

    real: tuple[float, ...]
    rounding: Rounding

    @property
    def multipliers(self) -> tuple[int, ...]:
        """Fixed-point multipliers, one per element of `real`."""
        return tuple(rescale_multiplier(r)[0] for r in self.real)

    @property
    def shifts(self) -> tuple[int, ...]:
        """Left shifts (negative: right), one per element of `real`."""
        return tuple(rescale_multiplier(r)[1] for r in self.real)

    def __call__(self, acc: Array) -> Array:
        """Scaled accumulators as int64, zero point not yet added."""
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
    """Accumulator scale over output scale, one per weight scale.

    In double precision; where `rounding` is that of ONNX, each step is rounded to float32.
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
    """One value per channel out of one for all or one each."""
    return tuple(values) * channels if len(values) == 1 else tuple(values)

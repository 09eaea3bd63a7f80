"""Softmax, LogSoftmax and Hardmax over the last axis.

The integer arithmetic is that of TensorFlow Lite Micro's reference kernels. For int8, differences
from the largest element become Q5 numbers, and exponentials are summed in Q12. For int16, the
functions are read from sampled tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ir.axes import Axes, along_last
from smelt.ops.arithmetic.fixed_point import (
    doubling_high_multiply,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    rounding_shift_right,
    wrap_int32,
)
from smelt.ops.arithmetic.gemmlowp import (
    count_leading_zeros,
    exp_on_negative_values,
    log,
    reciprocal,
    rescale,
)
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, quantized, symmetric_int16, tflm_rounding
from smelt.ops.core.lookup import read16, table16

_DIFFERENCE_BITS, _SUM_BITS = 5, 12


@dataclass(frozen=True)
class DifferenceScaling:
    """Rescales differences from a row's largest element to Q5.

    The exponential of a difference below `lowest` counts as 0.
    """

    multiplier: int
    shift: int
    lowest: int

    def __call__(self, difference: Array) -> Array:
        """Return Q5 numbers of stored differences (≤ 0) that are at least `lowest`."""
        return multiply_by_quantized_multiplier(difference, self.multiplier, self.shift)


def difference_scaling(scale: float, beta: float) -> DifferenceScaling:
    """Return the scaling of int8 inputs with the given scale."""
    real = min(beta * scale * 2.0 ** (31 - _DIFFERENCE_BITS), 2.0**31 - 1)
    multiplier, shift = quantize_multiplier(real)
    radius = math.floor((2**_DIFFERENCE_BITS - 1) * 2.0 ** (31 - _DIFFERENCE_BITS - shift))
    return DifferenceScaling(multiplier, shift, -radius)


def _check_input_scale(node: Node, beta: float) -> None:
    """Check that the difference's multiplier is above 1, which the integer arithmetic needs."""
    x = node.input(0).type
    if beta * x.scale * 2.0 ** (31 - _DIFFERENCE_BITS) <= 1.0:
        raise ModelError(
            f"{node.origin}: input scale {x.scale} is too small for {node.op.name}; times beta "
            f"({beta}), it must be above 2^-{31 - _DIFFERENCE_BITS}"
        )


def _check_output(node: Node, required: Quant) -> None:
    y = node.output.type
    scale, zero_point = required.scalar
    if abs(y.scale - scale) > 1e-3 * scale or y.zero_point != zero_point:
        raise ModelError(
            f"{node.origin}: the output of {node.op.name} must have scale {scale} and zero point "
            f"{zero_point}, not {y.scale} and {y.zero_point}"
        )


def _infer(op: Op, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
    (x,) = operands(op, inputs, 1)
    if not x.shape or x.size == 0:
        raise ModelError(f"{op.name} needs at least one axis and no axis of size 0, got {x}")
    if x.quant is None and not x.dtype.is_float:
        raise ModelError(f"{op.name} needs a float or a quantized tensor, got {x}")
    return (TensorType(x.shape, x.dtype),)


_SOFTMAX_OUTPUT = {
    DType.INT8: Quant.per_tensor(1 / 256, -128),
    DType.INT16: Quant.per_tensor(1 / 32768),
}


@dataclass(frozen=True)
class Softmax(Op):
    """`exp(beta · x)` divided by its sum along the last axis."""

    beta: float = 1.0

    settles = True
    sixteen_bits = True

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return _infer(self, inputs)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the fixed quantization of int8 and int16 outputs, with range [0, 1)."""
        return _SOFTMAX_OUTPUT.get(operands(self, inputs, 1)[0].dtype)

    @override
    def check(self, node: Node) -> None:
        if not quantized(node, tuple(_SOFTMAX_OUTPUT)):
            return
        symmetric_int16(node)
        tflm_rounding(node)
        _check_output(node, _SOFTMAX_OUTPUT[node.output.type.dtype])
        if node.input(0).type.dtype is DType.INT8:
            _check_input_scale(node, self.beta)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        y = node.output.type
        if y.quant is None:
            real = x.astype(np.float64) * float(np.float32(self.beta))
            powers = np.exp(real - real.max(axis=-1, keepdims=True))
            result = powers / powers.sum(axis=-1, keepdims=True)
            return (result.astype(y.dtype.numpy),)
        compute = _softmax8 if y.dtype is DType.INT8 else _softmax16
        stored = compute(x.astype(np.int64), node.input(0).type.scale, self.beta)
        return (np.clip(stored, *y.dtype.limits).astype(y.dtype.numpy),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows lie along another axis than the last, which is summed over."""
        rank = len(node.input(0).type.shape)
        return axes[0] is not None and axes[0] != rank - 1

    def axes_rule(self, node: Node) -> Axes:
        """Return that all axes but the last may be permuted."""
        return along_last(node)


def _exponentials(x: Array, scaling: DifferenceScaling) -> tuple[Array, Array]:
    """Return exponentials of differences from a row's largest element, and their sum.

    The exponentials are Q0 numbers, 0 if negligible. The sum is a Q12 number.
    """
    difference = x - x.max(axis=-1, keepdims=True)
    relevant = difference >= scaling.lowest
    scaled = scaling(np.where(relevant, difference, 0))
    powers = np.where(relevant, exp_on_negative_values(scaled, _DIFFERENCE_BITS), 0)
    total = rescale(powers, 0, _SUM_BITS).sum(axis=-1, keepdims=True)
    return powers, wrap_int32(total)


def _softmax8(x: Array, scale: float, beta: float) -> Array:
    scaling = difference_scaling(scale, beta)
    powers, total = _exponentials(x, scaling)
    inverse, bits = reciprocal(total, _SUM_BITS)
    shifted = rounding_shift_right(doubling_high_multiply(inverse, powers), bits + 31 - 8)
    return shifted - 128


@cache
def tables16() -> tuple[Array, Array]:
    """Return tables of exp(x) on [-10, 0] and 1 / (1 + x) on [0, 1], in units of 2/65535."""
    unit = 2.0 / 65535
    power = table16(lambda v: np.exp(v.astype(np.float64)), -10.0, 0.0, unit)
    inverse = table16(lambda v: np.float32(1) / (np.float32(1) + v), 0.0, 1.0, unit)
    return power, inverse


def power_multiplier(scale: float, beta: float) -> tuple[int, int]:
    """Return multiplier and left shift from int16 differences to positions in the exp table."""
    return quantize_multiplier(scale * beta / (10.0 / 65535.0))


def _softmax16(x: Array, scale: float, beta: float) -> Array:
    power_table, inverse_table = tables16()
    multiplier = power_multiplier(scale, beta)
    difference = x - x.max(axis=-1, keepdims=True)
    position = multiply_by_quantized_multiplier(difference, *multiplier) + 32767
    powers = read16(power_table, np.clip(position, -32768, 32767))
    total = powers.sum(axis=-1, keepdims=True)
    headroom = count_leading_zeros(total)
    normal = ((total << (headroom - 1)) + (1 << 13)) >> 14
    inverse = read16(inverse_table, np.clip(normal - (1 << 15) - (1 << 16), -32768, 32767))
    shift = 31 - headroom
    result = (powers * inverse + (np.int64(1) << (shift - 1))) >> shift
    return np.clip(result, 0, 32767)


_LOG_SOFTMAX_OUTPUT = Quant.per_tensor(16 / 256, 127)


@dataclass(frozen=True)
class LogSoftmax(Op):
    """Logarithm of the softmax along the last axis."""

    settles = True

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return _infer(self, inputs)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the fixed quantization of int8 outputs, with range [-16, 0]."""
        (x,) = operands(self, inputs, 1)
        return _LOG_SOFTMAX_OUTPUT if x.dtype is DType.INT8 else None

    @override
    def check(self, node: Node) -> None:
        if quantized(node, (DType.INT8,)):
            tflm_rounding(node)
            _check_output(node, _LOG_SOFTMAX_OUTPUT)
            _check_input_scale(node, 1.0)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        y = node.output.type
        if y.quant is None:
            real = x.astype(np.float64)
            real -= real.max(axis=-1, keepdims=True)
            result = real - np.log(np.exp(real).sum(axis=-1, keepdims=True))
            return (result.astype(y.dtype.numpy),)
        stored = _log_softmax8(x.astype(np.int64), node.input(0).type.scale)
        return (np.clip(stored, *y.dtype.limits).astype(y.dtype.numpy),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows lie along another axis than the last, which is summed over."""
        rank = len(node.input(0).type.shape)
        return axes[0] is not None and axes[0] != rank - 1

    def axes_rule(self, node: Node) -> Axes:
        """Return that all axes but the last may be permuted."""
        return along_last(node)


def _log_softmax8(x: Array, scale: float) -> Array:
    scaling = difference_scaling(scale, 1.0)
    _, total = _exponentials(x, scaling)
    log_sum = log(total, _SUM_BITS, _DIFFERENCE_BITS)
    # Smallest difference from which the Q5 logarithm can be subtracted without overflow.
    divisor = quantize_multiplier(2.0 ** (31 - scaling.shift) / scaling.multiplier)
    limit = multiply_by_quantized_multiplier(log_sum - 2**31, *divisor)
    difference = x - x.max(axis=-1, keepdims=True)
    relevant = difference > np.maximum(limit, scaling.lowest - 1)
    scaled = scaling(np.where(relevant, difference, 0)) - log_sum
    result = rounding_shift_right(scaled, 31 - _DIFFERENCE_BITS - 4) + 127
    return np.where(relevant, result, -128)


@dataclass(frozen=True)
class Hardmax(Op):
    """1 at the first largest element of each row of the last axis, else 0."""

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return _infer(self, inputs)

    @override
    def check(self, node: Node) -> None:
        quantized(node, ())

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        first = np.argmax(x, axis=-1, keepdims=True)
        columns = np.arange(x.shape[-1], dtype=np.int64)
        return (np.asarray(columns == first, x.dtype),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows lie along another axis than the last, which is searched."""
        rank = len(node.input(0).type.shape)
        return axes[0] is not None and axes[0] != rank - 1

    def axes_rule(self, node: Node) -> Axes:
        """Return that all axes but the last may be permuted."""
        return along_last(node)


_ALL = (DType.FLOAT32, DType.INT8, DType.INT16)
CASES = (
    Case("classes", Softmax(), (Data((1, 10), -6.0, 6.0),), _ALL),
    Case("two", Softmax(), (Data((3, 2), -4.0, 4.0),), _ALL),
    Case("one", Softmax(), (Data((2, 1)),), _ALL),
    Case("vector", Softmax(), (Data((7,), -2.0, 9.0),), _ALL),
    Case("pixels", Softmax(), (Data((1, 3, 2, 21), -8.0, 8.0),), _ALL),
    Case("tiny_range", Softmax(), (Data((2, 5), -1e-4, 1e-4),), _ALL),
    Case("huge_range", Softmax(), (Data((4, 9), -2000.0, 1000.0),), _ALL),
    Case("wide", Softmax(), (Data((1, 1001), -20.0, 12.0),), _ALL),
    Case("soft", Softmax(0.25), (Data((2, 12), -8.0, 8.0),), _ALL),
    Case("sharp", Softmax(3.0), (Data((2, 12), -8.0, 8.0),), _ALL),
    Case("double", Softmax(0.25), (Data((2, 12), -8.0, 8.0),), (DType.FLOAT64,), plain=True),
    Case("double", LogSoftmax(), (Data((2, 12), -8.0, 8.0),), (DType.FLOAT64,), plain=True),
    Case("classes", LogSoftmax(), (Data((1, 10), -6.0, 6.0),)),
    Case("one", LogSoftmax(), (Data((2, 1)),)),
    Case("vector", LogSoftmax(), (Data((7,), -2.0, 9.0),)),
    Case("pixels", LogSoftmax(), (Data((1, 3, 2, 5), -30.0, 30.0),)),
    Case("tiny_range", LogSoftmax(), (Data((2, 5), -1e-4, 1e-4),)),
    Case("wide", LogSoftmax(), (Data((1, 1001), -20.0, 12.0),)),
    Case("classes", Hardmax(), (Data((3, 10), -6.0, 6.0),), (DType.FLOAT32,)),
    Case("one", Hardmax(), (Data((2, 1)),), (DType.FLOAT32,)),
)

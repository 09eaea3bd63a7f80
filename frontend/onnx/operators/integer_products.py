"""Converters of unscaled integer products: MatMulInteger, ConvInteger, dynamic quantization.

They sum products of 8-bit integers without their zero points. Zero points that are known at compile
time become those of the operands. A zero point computed at run time is subtracted from the sums,
all in 32 bits: Σ (x - a)(w - b) = Σ x w - a Σ w - b Σ x + a b Σ 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from smelt.frontend.onnx.operation import Declared, OnnxConverter, Operation
from smelt.frontend.onnx.operators.convolution import geometry
from smelt.frontend.onnx.quantize_linear import relabeled, unlabeled
from smelt.frontend.onnx.tensors import PROTO_TYPES
from smelt.frontend.onnx.windows import OnnxWindow
from smelt.ir import DType, Quant, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.quantize import Quantize

Sums = Callable[[Value, Value], Value]
"""Computes the int32 sums of products of two int8 tensors."""


@dataclass(frozen=True)
class _Factor:
    """An int8 tensor of scale 1, and the int32 zero point still to subtract from it, if any."""

    stored: Value
    shift: Value | None


def _factor(
    operation: Operation, x: Value, zero_point: Value | None, axis: int | None = None
) -> _Factor:
    """Return a tensor without its zero point, or without its zero points along `axis`."""
    x = unlabeled(operation, x)
    if x.type.dtype not in (DType.INT8, DType.UINT8):
        raise operation.refuse(
            f"'{x.name}' is {x.type}; only products of 8-bit integers are supported"
        )
    down = 128 if x.type.dtype is DType.UINT8 else 0
    known = np.zeros(1) if zero_point is None else operation.scope.known(zero_point)
    shift, zeros = None, np.full(1, down)
    if known is not None and (known.size == 1 or (axis is not None and x.is_constant)):
        zeros = known.astype(np.int64).ravel()
    elif zero_point is not None:
        shift = _int32(operation, zero_point)
        if down:
            shift = operation.emit(Binary("sub"), shift, operation.scalar(down, shift))
    points = tuple(int(z) for z in zeros)
    quant = Quant((1.0,) * len(points), points, axis if len(points) > 1 else None)
    signed = Quant(quant.scale, tuple(z - down for z in points), quant.axis)
    if x.data is not None:
        stored = operation.literal((x.data.astype(np.int16) - down).astype(np.int8), signed)
    elif down:
        labeled = relabeled(operation, x, quant)
        stored = operation.emit(Quantize(DType.INT8), labeled, quant=signed)
    else:
        stored = relabeled(operation, x, signed)
    return _Factor(stored, shift)


def _product(
    operation: Operation, x: _Factor, weights: _Factor, sums: Sums, ones: tuple[Value, Value]
) -> Value:
    """Return the sums of products, with the remaining zero points of the factors subtracted.

    Args:
        operation: the operator to convert.
        x: the first factor.
        weights: the second factor.
        sums: computes the sums of stored integers.
        ones: tensors of ones, used in place of `x` and `weights`; their sums may be broadcast.
    """
    total = sums(x.stored, weights.stored)
    ones_x, ones_weights = ones
    if x.shift is not None:
        over = operation.emit(Binary("mul"), sums(ones_x, weights.stored), x.shift)
        total = operation.emit(Binary("sub"), total, over)
    if weights.shift is not None:
        over = operation.emit(Binary("mul"), sums(x.stored, ones_weights), weights.shift)
        total = operation.emit(Binary("sub"), total, over)
    if x.shift is not None and weights.shift is not None:
        both = operation.emit(Binary("mul"), sums(ones_x, ones_weights), x.shift)
        both = operation.emit(Binary("mul"), both, weights.shift)
        total = operation.emit(Binary("add"), total, both)
    return total


def _int32(operation: Operation, x: Value) -> Value:
    (result,) = operation.apply("Cast", unlabeled(operation, x), to=PROTO_TYPES[DType.INT32])
    return result


def _ones(operation: Operation, shape: tuple[int, ...]) -> Value:
    return operation.filled(shape, 1, DType.INT8, Quant((1.0,), (0,)))


def integer_product(
    operation: Operation, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None
) -> Value:
    """Return `(a - a_zero) · (b - b_zero)` in int32.

    Zero points are scalars, or there is one for each row of `a` or column of `b`.
    """
    rank, depth = len(a.type.shape), a.type.shape[-1:]
    if a_zero is not None and a_zero.type.size > 1 and len(a_zero.type.shape) == 1:
        a_zero = operation.reshape(a_zero, (a_zero.type.size, 1))
    if len(b.type.shape) != 2 or b.type.shape[:1] != depth or 0 in (*a.type.shape, *b.type.shape):
        (y,) = operation.apply("MatMul", _less(operation, a, a_zero), _less(operation, b, b_zero))
        return y
    if b_zero is not None:
        b_zero = operation.reshape(b_zero, (b_zero.type.size,))
    x = _factor(operation, a, a_zero)
    turned = operation.transpose(unlabeled(operation, b), (1, 0))
    weights = _factor(operation, turned, b_zero, axis=0)
    ones = _ones(operation, (1,) * (rank - 1) + depth), _ones(operation, (1, *depth))
    op = FullyConnected(keep_dims=True, sums=True)
    return _product(operation, x, weights, lambda p, q: operation.emit(op, p, q), ones)


def _less(operation: Operation, x: Value, zero_point: Value | None) -> Value:
    """Return a tensor without its zero point, in 32 bits."""
    wide = _int32(operation, x)
    if zero_point is None:
        return wide
    return operation.emit(Binary("sub"), wide, _int32(operation, zero_point))


def _matmul_integer(operation: Operation) -> Value:
    return integer_product(
        operation,
        operation.value(0),
        operation.value(1),
        operation.optional(2),
        operation.optional(3),
    )


def _conv_integer(operation: Operation) -> Value:
    x, weights = operation.value(0), operation.value(1)
    kernel, groups = geometry(operation, x, weights)
    if len(kernel) > 2:
        raise operation.refuse(f"images with {len(kernel)} axes are not supported; at most two are")
    if x.type.shape[1] != weights.type.shape[1] * groups or weights.type.shape[0] % groups:
        raise operation.wrong(
            f"weights {weights.type} do not fit input {x.type} with {groups} groups: they must be "
            "[outputs, channels / groups, *kernel], with outputs a multiple of groups"
        )
    window = OnnxWindow.of(operation, x.type.shape[2:], kernel)
    one = (1,) * (2 - len(kernel))
    image = operation.channels_last(unlabeled(operation, x))
    image = operation.reshape(image, (x.type.shape[0], *one, *image.type.shape[1:]))
    taps = unlabeled(operation, weights)
    taps = operation.reshape(taps, (*taps.type.shape[:2], *one, *kernel))
    stride, dilation = ((*one, *pair) for pair in (window.stride, window.dilation))
    padding = (*((0, 0),) * len(one), *window.padding)
    channels = image.type.shape[3]
    op: Conv2D | DepthwiseConv2D
    if groups == channels and groups > 1:
        op = DepthwiseConv2D(_two(stride), (padding[0], padding[1]), _two(dilation), sums=True)
        taps, axis = operation.transpose(taps, (1, 2, 3, 0)), 3
    else:
        op = Conv2D(
            _two(stride), (padding[0], padding[1]), _two(dilation), sums=True, groups=groups
        )
        taps, axis = operation.transpose(taps, (0, 2, 3, 1)), 0
    factors = (
        _factor(operation, image, operation.optional(2)),
        _factor(operation, taps, operation.optional(3), axis),
    )
    ones = (
        _ones(operation, (1, *image.type.shape[1:])),
        _ones(operation, taps.type.shape),
    )
    y = _product(operation, *factors, lambda p, q: operation.emit(op, p, q), ones)
    shape = (y.type.shape[0], *y.type.shape[1 + len(one) :])
    return operation.channels_first(operation.reshape(y, shape))


def _two(numbers: tuple[int, ...]) -> tuple[int, int]:
    return numbers[0], numbers[1]


def scaled_sums(operation: Operation, sums: Value, scales: tuple[Value, Value], bias: int) -> Value:
    """Return sums as real numbers, plus the operand with index `bias`."""
    (real,) = operation.apply("Cast", sums, to=PROTO_TYPES[DType.FLOAT32])
    product = operation.emit(Binary("mul"), *(_number(operation, s) for s in scales))
    y = operation.emit(Binary("mul"), real, product)
    if operation.optional(bias) is None:
        return y
    return operation.emit(Binary("add"), y, operation.value(bias))


def _number(operation: Operation, scale: Value) -> Value:
    return operation.reshape(scale, ()) if scale.type.size == 1 else scale


def _dynamic_quantize_matmul(operation: Operation) -> Value:
    """Convert DynamicQuantizeMatMul: the first operand is quantized by its own range."""
    a, scale, zero = operation.apply("DynamicQuantizeLinear", operation.value(0), outputs=3)
    sums = integer_product(operation, a, operation.value(1), zero, operation.optional(3))
    return scaled_sums(operation, sums, (scale, operation.value(2)), 4)


def _matmul_integer_to_float(operation: Operation) -> Value:
    sums = integer_product(
        operation,
        operation.value(0),
        operation.value(1),
        operation.optional(4),
        operation.optional(5),
    )
    return scaled_sums(operation, sums, (operation.value(2), operation.value(3)), 6)


CONVERTERS: dict[str, OnnxConverter] = {
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "com.microsoft::DynamicQuantizeMatMul": Declared(_dynamic_quantize_matmul, ()),
    "com.microsoft::MatMulIntegerToFloat": Declared(_matmul_integer_to_float, ()),
}

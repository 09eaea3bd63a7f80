"""Converters of quantized operators.

An operator on quantized tensors (QLinearConv, QLinearAdd, ...) is imported as three steps: its
operands are dequantized, the operator runs on real numbers, and its result is quantized. So both
ways to write a quantized network, QOperator and QDQ, become the same graph. A pass then finds the
integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from smelt.frontend.onnx.operation import Declared, OnnxConverter, Operation
from smelt.frontend.onnx.quantize_linear import dequantized, quantized
from smelt.frontend.onnx.tensors import dtype_of
from smelt.ir import Value
from smelt.ops.core.binary import Binary


def _quantize_linear(operation: Operation) -> Value:
    code = operation.integer("output_dtype", 0)
    dtype = dtype_of(code, f"the output of {operation}") if code else None
    if operation.optional(2) is not None:
        dtype = None
    return quantized(
        operation,
        operation.value(0),
        operation.value(1),
        operation.optional(2),
        operation.integer("axis", 1),
        operation.integer("block_size", 0),
        dtype,
    )


def _dequantize_linear(operation: Operation) -> Value:
    return dequantized(
        operation,
        operation.value(0),
        operation.value(1),
        operation.optional(2),
        operation.integer("axis", 1),
        operation.integer("block_size", 0),
    )


def _operand(operation: Operation, first: int, axis: int = 1) -> Value:
    """Dequantize three operands: stored integers, scale and zero point."""
    x, scale, zero_point = operation.value(first), operation.value(first + 1), first + 2
    return dequantized(operation, x, scale, operation.optional(zero_point), axis)


def _result(operation: Operation, real: Value, first: int, like: Value) -> Value:
    """Quantize by two operands, scale and zero point; the element type is that of `like`."""
    scale, zero_point = operation.value(first), operation.optional(first + 1)
    return quantized(operation, real, scale, zero_point, dtype=like.type.dtype)


def _image(operation: Operation) -> Value:
    """Dequantize the first operand, and return it channels first (see `channels_last`)."""
    x = operation.value(0)
    x = operation.channels_first(x) if operation.flag("channels_last") else x
    return dequantized(operation, x, operation.value(1), operation.optional(2))


def _image_result(operation: Operation, real: Value, first: int) -> Value:
    """Quantize an image as `_result` does, and return it in the layout of the first operand."""
    stored = _result(operation, real, first, operation.value(0))
    return operation.channels_last(stored) if operation.flag("channels_last") else stored


def _standard_attributes(operation: Operation) -> list[onnx.AttributeProto]:
    """Return the attributes without those that only onnxruntime's operators have."""
    return [a for a in operation.proto.attribute if a.name not in ("channels_last", "opset")]


def _qlinear_conv(operation: Operation) -> Value:
    inputs = [_image(operation), _operand(operation, 3, axis=0)]
    if operation.optional(8) is not None:
        bias, zero = operation.value(8), None
        product = operation.emit(Binary("mul"), operation.value(1), operation.value(4))
        inputs.append(dequantized(operation, bias, product, zero, axis=0))
    (y,) = operation.apply("Conv", *inputs, attributes=_standard_attributes(operation))
    return _image_result(operation, y, 6)


def _qlinear_matmul(operation: Operation) -> Value:
    a, b = operation.value(0), operation.value(3)
    rank = len(b.type.shape)
    left = _operand(operation, 0, axis=max(len(a.type.shape) - 2, 0))
    right = _operand(operation, 3, axis=max(rank - 1, 0))
    (y,) = operation.apply("MatMul", left, right)
    return _result(operation, y, 6, a)


def _qgemm(operation: Operation) -> Value:
    """Convert QGemm, `alpha · A · B + C`; the bias C has the scale of the product."""
    axis = 0 if operation.flag("transB") else 1
    inputs = [_operand(operation, 0), _operand(operation, 3, axis)]
    if operation.optional(6) is not None:
        product = operation.emit(Binary("mul"), operation.value(1), operation.value(4))
        alpha = operation.literal(np.asarray(operation.real("alpha", 1.0), np.float32))
        scale = operation.emit(Binary("mul"), product, alpha)
        inputs.append(dequantized(operation, operation.value(6), scale, None, axis=0))
    (y,) = operation.apply("Gemm", *inputs, attributes=operation.proto.attribute)
    if operation.optional(7) is None:
        return y
    return _result(operation, y, 7, operation.value(0))


def _binary(kind: str) -> OnnxConverter:
    def convert(operation: Operation) -> Value:
        a, b = _operand(operation, 0), _operand(operation, 3)
        (y,) = operation.apply(kind, a, b)
        return _result(operation, y, 6, operation.value(0))

    return convert


def _unary(kind: str) -> OnnxConverter:
    """Return a converter for one operand; attributes are those of the float operator."""

    def convert(operation: Operation) -> Value:
        attributes = _standard_attributes(operation)
        (y,) = operation.apply(kind, _operand(operation, 0), attributes=attributes)
        return _result(operation, y, 3, operation.value(0))

    return convert


def _pool(kind: str) -> OnnxConverter:
    def convert(operation: Operation) -> Value:
        attributes = _standard_attributes(operation)
        (y,) = operation.apply(kind, _image(operation), attributes=attributes)
        return _image_result(operation, y, 3)

    return convert


def _nhwc_max_pool(operation: Operation) -> Value:
    """Convert NhwcMaxPool: MaxPool of stored integers with channels last."""
    image = operation.channels_first(operation.value(0))
    (y,) = operation.apply("MaxPool", image, attributes=operation.proto.attribute)
    return operation.channels_last(y)


def _softmax(operation: Operation) -> Value:
    """Convert QLinearSoftmax; its attribute `opset` selects the version of Softmax."""
    (y,) = operation.apply(
        "Softmax",
        _operand(operation, 0),
        version=operation.integer("opset", 13),
        attributes=[a for a in operation.proto.attribute if a.name == "axis"],
    )
    return _result(operation, y, 3, operation.value(0))


def _concat(operation: Operation) -> Value:
    """Convert QLinearConcat: scale and zero point of the output, then 3 operands per tensor."""
    if operation.count < 5 or operation.count % 3 != 2:
        raise operation.wrong(
            f"it has {operation.count} inputs, but must have two, and three for each tensor"
        )
    parts = [_operand(operation, first) for first in range(2, operation.count, 3)]
    (y,) = operation.apply("Concat", *parts, attributes=operation.proto.attribute)
    return _result(operation, y, 0, operation.value(2))


def _where(operation: Operation) -> Value:
    """Convert QLinearWhere: a condition, then 3 operands for each tensor."""
    (y,) = operation.apply(
        "Where", operation.value(0), _operand(operation, 1), _operand(operation, 4)
    )
    return _result(operation, y, 7, operation.value(1))


def _reduce_mean(operation: Operation) -> Value:
    (y,) = operation.apply(
        "ReduceMean", _operand(operation, 0), version=11, attributes=operation.proto.attribute
    )
    return _result(operation, y, 3, operation.value(0))


_WINDOW = ("auto_pad", "kernel_shape", "pads", "strides")

_MICROSOFT: Sequence[tuple[str, OnnxConverter, Sequence[str]]] = (
    ("QuantizeLinear", _quantize_linear, ("axis",)),
    ("DequantizeLinear", _dequantize_linear, ("axis",)),
    ("QLinearConv", _qlinear_conv, (*_WINDOW, "channels_last", "dilations", "group")),
    ("QLinearAdd", _binary("Add"), ()),
    ("QLinearMul", _binary("Mul"), ()),
    ("QLinearSigmoid", _unary("Sigmoid"), ()),
    ("QLinearLeakyRelu", _unary("LeakyRelu"), ("alpha",)),
    ("QLinearSoftmax", _softmax, ("axis", "opset")),
    ("QLinearGlobalAveragePool", _pool("GlobalAveragePool"), ("channels_last",)),
    (
        "QLinearAveragePool",
        _pool("AveragePool"),
        (*_WINDOW, "ceil_mode", "channels_last", "count_include_pad"),
    ),
    ("QLinearReduceMean", _reduce_mean, ("axes", "keepdims")),
    ("NhwcMaxPool", _nhwc_max_pool, (*_WINDOW, "ceil_mode", "dilations")),
    ("QLinearConcat", _concat, ("axis",)),
    ("QLinearWhere", _where, ()),
    ("QGemm", _qgemm, ("alpha", "transA", "transB")),
)

CONVERTERS: dict[str, OnnxConverter] = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    **{
        f"com.microsoft::{kind}": Declared(convert, tuple(attributes))
        for kind, convert, attributes in _MICROSOFT
    },
}

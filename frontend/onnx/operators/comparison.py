"""Converters of comparisons, logical operators, and Where."""

from __future__ import annotations

from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.frontend.onnx.operators.elementwise import binary, unary
from smelt.ir import DType, Value
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.select import Select


def _binary(kind: str) -> OnnxConverter:
    return lambda operation: binary(operation, kind, operation.value(0), operation.value(1))


def _test(kind: str) -> OnnxConverter:
    return lambda operation: unary(operation, Unary(kind), operation.value(0))


def _is_infinite(operation: Operation) -> Value:
    x = operation.value(0)
    kind = {
        (True, True): "is_infinite",
        (True, False): "is_positive_infinite",
        (False, True): "is_negative_infinite",
    }.get((operation.flag("detect_positive", True), operation.flag("detect_negative", True)))
    if kind is None:
        return operation.filled(x.type.shape, False, DType.BOOL)
    return unary(operation, Unary(kind), x)


def _where(operation: Operation) -> Value:
    a, b = operation.value(1), operation.value(2)
    return operation.emit(Select(), operation.value(0), a, b, quant=a.type.quant)


CONVERTERS: dict[str, OnnxConverter] = {
    "Equal": _binary("equal"),
    "Greater": _binary("greater"),
    "GreaterOrEqual": _binary("greater_equal"),
    "Less": _binary("less"),
    "LessOrEqual": _binary("less_equal"),
    "And": _binary("and"),
    "Or": _binary("or"),
    "Xor": _binary("xor"),
    "Not": _test("not"),
    "IsNaN": _test("is_nan"),
    "IsInf": _is_infinite,
    "Where": _where,
}

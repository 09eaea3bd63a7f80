"""Elementwise operators."""

from __future__ import annotations

from smelt.frontend.onnx.operation import Converter, Operation
from smelt.ir import Value
from smelt.ops.binary import Binary
from smelt.ops.unary import Unary


def _unary(kind: str) -> Converter:
    def convert(operation: Operation) -> Value:
        return operation.emit(Unary(kind), operation.value(0))

    return convert


def _binary(kind: str) -> Converter:
    def convert(operation: Operation) -> Value:
        return operation.emit(Binary(kind), operation.value(0), operation.value(1))

    return convert


CONVERTERS: dict[str, Converter] = {
    "Relu": _unary("relu"),
    "Sigmoid": _unary("logistic"),
    "Tanh": _unary("tanh"),
    "Add": _binary("add"),
    "Sub": _binary("sub"),
    "Mul": _binary("mul"),
    "Div": _binary("div"),
}

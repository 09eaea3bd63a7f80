"""Converters of Softmax, LogSoftmax and Hardmax along any axis."""

from __future__ import annotations

from math import prod

from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.ir import Op, Value
from smelt.ops.core.softmax import Hardmax, LogSoftmax, Softmax

_ALONG_ONE_AXIS = 13
"""First operator set with a single axis; before, all axes from the given one on were joined."""


def _softmax(op: Op) -> OnnxConverter:
    def convert(operation: Operation) -> Value:
        x = operation.value(0)
        shape = x.type.shape
        if operation.version < _ALONG_ONE_AXIS:
            axis = operation.integer("axis", 1)
            axis = axis if axis == len(shape) else operation.axis(axis, len(shape))
            rows = operation.reshape(x, (prod(shape[:axis]), prod(shape[axis:])))
            return operation.reshape(operation.emit(op, rows), shape)
        axis = operation.axis(operation.integer("axis", -1), len(shape))
        order = [*(i for i in range(len(shape)) if i != axis), axis]
        last = operation.emit(op, operation.transpose(x, order))
        return operation.transpose(last, [order.index(i) for i in range(len(shape))])

    return convert


CONVERTERS: dict[str, OnnxConverter] = {
    "Softmax": _softmax(Softmax()),
    "LogSoftmax": _softmax(LogSoftmax()),
    "Hardmax": _softmax(Hardmax()),
}

"""Converters of Identity, Dropout, Constant, Shape and Size."""

from __future__ import annotations

from math import prod

import numpy as np

from smelt.frontend.onnx.operation import OnnxConverter, Operation, Results
from smelt.frontend.onnx.scope import OnnxValue
from smelt.frontend.onnx.tensors import array_of, dense_array_of
from smelt.ir import DType, Value


def _identity(operation: Operation) -> OnnxValue:
    return operation.operand(0)


def _dropout(operation: Operation) -> Results:
    """Convert Dropout for inference; its mask keeps all elements."""
    if operation.optional(2) is not None and operation.number(2, "training mode"):
        raise operation.refuse("training mode is not supported: export the network for inference")
    x = operation.value(0)
    if len(operation.outputs) < 2:
        return x
    return x, operation.filled(x.type.shape, True, DType.BOOL)


def _constant(operation: Operation) -> Value:
    if operation.has("value"):
        tensor = operation.stored_tensor("value")
        return operation.literal(array_of(tensor, f"the value of {operation}"))
    if operation.has("sparse_value"):
        sparse = operation.stored_sparse_tensor("sparse_value")
        return operation.literal(dense_array_of(sparse, f"the value of {operation}"))
    for name, read, dtype in (
        ("value_float", operation.real, np.float32),
        ("value_floats", operation.reals, np.float32),
        ("value_int", operation.integer, np.int64),
        ("value_ints", operation.integers, np.int64),
    ):
        if operation.has(name):
            return operation.literal(np.asarray(read(name), dtype))
    raise operation.refuse("its value is not supported: constants must be numbers, not strings")


def _shape(operation: Operation) -> Value:
    shape = operation.value(0).type.shape
    start, end = operation.integer("start", 0), operation.integer("end", len(shape))
    return operation.literal(np.asarray(shape[slice(start, end)], np.int64))


def _size(operation: Operation) -> Value:
    return operation.literal(np.asarray(prod(operation.value(0).type.shape), np.int64))


CONVERTERS: dict[str, OnnxConverter] = {
    "Identity": _identity,
    "Dropout": _dropout,
    "Constant": _constant,
    "Shape": _shape,
    "Size": _size,
}

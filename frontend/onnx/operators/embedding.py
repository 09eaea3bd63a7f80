"""Converter of EmbedLayerNormalization: rows of tables selected by integers."""

from __future__ import annotations

import numpy as np

from smelt.frontend.onnx.operation import Declared, OnnxConverter, Operation
from smelt.frontend.onnx.operators.elementwise import binary
from smelt.ir import DType, Value
from smelt.ops.core.normalization import Normalization


def _embed_layer(operation: Operation) -> list[Value]:
    """Convert onnxruntime's EmbedLayerNormalization.

    It adds the embeddings of words, positions and segments, and normalizes the sum. Its second
    result is the number of words that each mask keeps, the third is the sum.
    """
    ids = operation.image(0, 2)
    length = ids.type.shape[1]
    position = operation.optional(8)
    if position is None:
        operation.afford((length,))
        position = operation.literal(np.arange(length, dtype=np.int32))
    total = binary(operation, "add", _rows(operation, 2, ids), _rows(operation, 3, position))
    if operation.optional(1) is not None:
        total = binary(operation, "add", total, _rows(operation, 4, operation.value(1)))
    op = Normalization((2,), operation.real("epsilon", 1e-12))
    scale, bias = operation.weights(5, "scale"), operation.weights(6, "bias")
    return [operation.emit(op, total, scale, bias), _count(operation, ids), total]


def _rows(operation: Operation, table: int, chosen: Value) -> Value:
    (rows,) = operation.apply("Gather", operation.weights(table, "embedding"), chosen)
    return rows


def _count(operation: Operation, ids: Value) -> Value:
    mask = operation.optional(7)
    if mask is None:
        return operation.filled(ids.type.shape[:1], 0, DType.INT32)
    axes = operation.literal(np.asarray([1], np.int64))
    (count,) = operation.apply("ReduceSum", mask, axes, keepdims=0)
    return count


CONVERTERS: dict[str, OnnxConverter] = {
    "com.microsoft::EmbedLayerNormalization": Declared(_embed_layer, ("epsilon", "mask_index_type"))
}

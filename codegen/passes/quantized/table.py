"""Functions of one quantized tensor as tables of 256 results."""

from __future__ import annotations

import math

import numpy as np

from smelt.codegen.passes.quantized.quantized_values import Limits, StoredValues
from smelt.ir import Array, DType, Node, Quant, TensorType, Value
from smelt.ops.arithmetic.fixed_point import dequantize_onnx, quantize_onnx
from smelt.ops.core.table import Table

_LARGEST = 64
"""Largest number of operators that one table replaces."""


def tabulate(values: StoredValues, value: Value, quant: Quant, limits: Limits) -> Value | None:
    """Return a table lookup that computes the stored int8 integers of `value`.

    A table works if elementwise operators compute the value from one dequantized int8 tensor and
    one-element constants. The operators' references compute the table. None if there is no such
    table.

    Args:
        values: The known values.
        value: A float32 value.
        quant: The quantization of the result.
        limits: The range to which the real result is clamped.
    """
    region = _region(values, value)
    if region is None:
        return None
    source, nodes = region
    if source.type.dtype is not DType.INT8 or source.type.quant is None:
        return None
    stored = np.arange(-128, 128, dtype=np.int8)
    known: dict[Value, Array] = {}
    for node in nodes:
        operands = [_operand(values, known, v, stored) for v in node.inputs]
        (known[node.output],) = node.op.reference(node, operands)
    real = known[value] if nodes else dequantize_onnx(stored, source.type.quant)
    real = np.clip(real, *limits) if any(map(math.isfinite, limits)) else real
    results = quantize_onnx(real, quant, TensorType((256,), DType.INT8, quant))
    origin = values.producer[value].origin
    table = values.constant(results, f"{value.name}:table", quant)
    return values.emit(Table(), (source, table), quant, origin)


def _operand(
    values: StoredValues, known: dict[Value, Array], value: Value | None, stored: Array
) -> Array | None:
    """Return an operand of a node for all 256 stored inputs."""
    if value is None or value in known:
        return None if value is None else known[value]
    source = values.stored(value)
    if source is not None and source.data is None and source.type.quant is not None:
        return dequantize_onnx(stored, source.type.quant)
    real = values.real(value)
    assert real is not None
    dtype = np.float32 if value.data is None else value.data.dtype
    return real.astype(dtype).reshape(())


def _region(values: StoredValues, value: Value) -> tuple[Value, list[Node]] | None:
    """Return the only tensor that `value` is computed from, and the nodes between them.

    The nodes are in execution order. None if there is not exactly one such tensor.
    """
    sources: dict[Value, None] = {}
    nodes: dict[Node, None] = {}

    def visit(value: Value) -> bool:
        if value.type.size == 1 and values.real(value) is not None:
            return True
        source = values.stored(value)
        if source is not None:
            sources[source] = None
            return source.data is None and len(sources) == 1
        node = values.producer.get(value)
        if node is None or not node.op.elementwise or node.op.converts:
            return False
        if node in nodes:
            return True
        if len(nodes) == _LARGEST or not all(v is None or visit(v) for v in node.inputs):
            return False
        nodes[node] = None
        return True

    if not visit(value) or len(sources) != 1:
        return None
    (source,) = sources
    if any(node.output.type.shape != source.type.shape for node in nodes):
        return None
    return source, list(nodes)

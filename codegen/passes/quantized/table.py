"""Functions of one quantized tensor, as tables of 256 results."""

from __future__ import annotations

import math

import numpy as np

from smelt.codegen.passes.quantized.quantized_values import Limits, StoredValues
from smelt.ir import Array, DType, Node, Quant, TensorType, Value
from smelt.ops.arithmetic.fixed_point import dequantize_onnx, quantize_onnx
from smelt.ops.core.table import Table

_LARGEST = 64
"""Operators that one table may stand for."""


def tabulate(values: StoredValues, value: Value, quant: Quant, limits: Limits) -> Value | None:
    """The int8 integers that store a real value, looked up; None if it takes more than a table.

    A value has a table if elementwise operators make it of one 8-bit dequantized tensor and
    constants of one element. The real numbers are those of the operators' references.

    Args:
        values: what is known of values.
        value: of float32.
        quant: of the result.
        limits: smallest and largest real number.
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
    """An operand for all stored inputs."""
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
    """The one tensor behind a value and the operators between, in order."""
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

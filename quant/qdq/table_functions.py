"""Finds the functions behind the tables of a quantized network in the float network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from smelt.ir import Array, Graph, Node, TensorType, Value
from smelt.ops.arithmetic.fixed_point import dequantize_onnx, quantize_onnx

FunctionNodes: TypeAlias = tuple[Value, tuple[Node, ...]]
"""A function's float input, and the nodes that compute it, in order."""

_LENGTH = 16
"""Maximum number of nodes of a function."""


def functions_of(tables: Sequence[Node], original: Graph) -> Mapping[Node, FunctionNodes]:
    """Return the function of each table whose results equal the table's exactly.

    Args:
        tables: nodes with operator `Table`.
        original: the float network; its values have the same names as those of the tables' network.
    """
    named = {value.name: value for value in original.values()}
    found: dict[Node, FunctionNodes] = {}
    for node in tables:
        x, y = named.get(node.input(0).name), named.get(node.output.name)
        path = None if x is None or y is None else _path(original, x, y)
        if x is not None and path is not None and _agrees(node, x, path):
            found[node] = x, path
    return found


def _path(original: Graph, x: Value, y: Value) -> tuple[Node, ...] | None:
    """Return the nodes that compute `y` from `x` and constants only, or None."""
    needed, nodes = {y}, list[Node]()
    for node in reversed(original.nodes):
        if not needed & set(node.outputs):
            continue
        nodes.append(node)
        needed -= set(node.outputs)
        needed |= {v for v in node.inputs if v is not None and v.data is None and v is not x}
        if len(nodes) > _LENGTH:
            return None
    return None if needed - {x} else tuple(reversed(nodes))


def _agrees(table: Node, x: Value, path: Sequence[Node]) -> bool:
    """Return whether the function gives the table's result for each storable number."""
    given, result = table.input(0).type, table.output.type
    if given.quant is None or result.quant is None or x.type.size == 0:
        return False
    stored = np.arange(given.dtype.limits[0], given.dtype.limits[1] + 1).astype(given.dtype.numpy)
    numbers = dequantize_onnx(stored, given.quant)
    # Use the tensor's own shape, so that constants broadcast as in the network.
    padded = np.resize(numbers, max(-(-256 // x.type.size), 1) * x.type.size)
    computed: list[Array] = []
    for part in padded.reshape(-1, *x.type.shape):
        values: dict[Value, Array] = {x: part.astype(x.type.dtype.numpy)}
        with np.errstate(all="ignore"):
            for node in path:
                operands = [
                    None if v is None else v.array if v.data is not None else values[v]
                    for v in node.inputs
                ]
                values |= zip(node.outputs, node.op.reference(node, operands), strict=True)
        computed.append(values[path[-1].outputs[0]].reshape(-1) if path else part.reshape(-1))
    flat = np.concatenate(computed)
    if len(flat) != len(padded):
        return False
    type_ = TensorType((256,), result.dtype, result.quant)
    return bool(
        np.array_equal(quantize_onnx(flat[:256], result.quant, type_), table.input(1).array)
    )

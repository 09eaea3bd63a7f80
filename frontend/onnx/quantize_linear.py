"""Conversion of QuantizeLinear and DequantizeLinear.

Scales and zero points that are known at compile time become the quantization of a tensor. If they
are computed at run time, or data that is not constant has them per block or per channel, the
conversion becomes arithmetic.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from smelt.frontend.onnx.operation import Operation
from smelt.frontend.onnx.tensors import PROTO_TYPES
from smelt.ir import DType, Graph, Node, Quant, Rewrite, Rounding, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.quantize import Dequantize, Quantize
from smelt.ops.tensor.copy import Copy

STORED = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)
"""Element types of quantized activations."""


def dequantized(
    operation: Operation,
    x: Value,
    scale: Value,
    zero_point: Value | None,
    axis: int = 1,
    block_size: int = 0,
) -> Value:
    """Return the real numbers of stored integers, as DequantizeLinear does.

    The result is not a constant even if the operand is, so that passes can use its integers.
    """
    if x.type.dtype not in (*STORED, DType.INT32):
        raise operation.refuse(f"input {x.type} is not supported; use integers of 8 or 16 bits")
    quant = quantization(operation, x, scale, zero_point, axis, block_size)
    if quant is None or not (quant.is_per_tensor or x.is_constant):
        real = _cast(operation, x, DType.FLOAT32)
        if zero_point is not None:
            zero = _along(
                operation, x, _cast(operation, zero_point, DType.FLOAT32), axis, block_size
            )
            real = operation.emit(Binary("sub"), real, zero)
        factor = _along(operation, x, scale, axis, block_size)
        return operation.emit(Binary("mul"), real, factor)
    stored = relabeled(operation, x, quant)
    (type_,) = Dequantize().infer([stored.type])
    result = Value(operation.scope.unique(f"{x.name}:real"), type_)
    node = Node(Dequantize(), (stored,), (result,), operation.origin, Rounding.ONNX)
    node.op.check(node)
    operation.scope.add(node)
    return result


def quantized(
    operation: Operation,
    x: Value,
    scale: Value,
    zero_point: Value | None,
    axis: int = 1,
    block_size: int = 0,
    dtype: DType | None = None,
) -> Value:
    """Return stored integers of real numbers, as QuantizeLinear does; uint8 by default."""
    target = dtype or (DType.UINT8 if zero_point is None else zero_point.type.dtype)
    if target not in STORED:
        names = ", ".join(d.value for d in STORED)
        raise operation.refuse(f"quantization to {target.value} is not supported; use {names}")
    x = _cast(operation, x, DType.FLOAT32)
    quant = quantization(operation, x, scale, zero_point, axis, block_size)
    if quant is not None and (quant.is_per_tensor or x.is_constant):
        return operation.emit(Quantize(target), x, quant=quant)
    ratio = operation.emit(Binary("div"), x, _along(operation, x, scale, axis, block_size))
    (stored,) = operation.apply("Round", ratio)
    if zero_point is not None:
        zero = _along(operation, x, _cast(operation, zero_point, DType.FLOAT32), axis, block_size)
        stored = operation.emit(Binary("add"), stored, zero)
    low, high = (operation.scalar(limit, x) for limit in target.limits)
    stored = operation.emit(Binary("minimum"), stored, high)
    stored = operation.emit(Binary("maximum"), stored, low)
    return _cast(operation, stored, target)


def quantization(
    operation: Operation,
    x: Value,
    scale: Value,
    zero_point: Value | None,
    axis: int = 1,
    block_size: int = 0,
) -> Quant | None:
    """Return the quantization of constant scales and zero points.

    None if they are not constant, or given for blocks.
    """
    scales = operation.scope.known(scale)
    zeros = None if zero_point is None else operation.scope.known(zero_point)
    if (
        scales is None
        or (zero_point is not None and zeros is None)
        or scales.ndim > 1
        or block_size
    ):
        return None
    zeros = np.zeros(scales.shape, np.int64) if zeros is None else zeros.astype(np.int64)
    if zeros.size != scales.size:
        raise operation.wrong(f"it has {scales.size} scales, but {zeros.size} zero points")
    if not ((scales > 0) & np.isfinite(scales)).all():
        raise operation.wrong(f"its scale '{scale.name}' must be positive and finite")
    numbers = tuple(float(s) for s in scales.ravel())
    points = tuple(int(z) for z in zeros.ravel())
    if scales.size == 1:
        return Quant(numbers, points)
    axis = operation.axis(axis, len(x.type.shape))
    if x.type.shape[axis] != scales.size:
        raise operation.wrong(
            f"it has {scales.size} scales, but axis {axis} of {x.type} has {x.type.shape[axis]} "
            "elements"
        )
    return Quant(numbers, points, axis)


def relabeled(operation: Operation, x: Value, quant: Quant) -> Value:
    """Return the same stored integers with another quantization."""
    if x.data is not None:
        return Value.constant(operation.scope.unique(x.name), x.data.copy(), quant)
    if x.type.quant == quant:
        return x
    result = Value(operation.scope.unique(x.name), replace(x.type, quant=quant))
    operation.scope.add(Node(Copy(), (x,), (result,), operation.origin, Rounding.ONNX))
    return result


def unlabeled(operation: Operation, x: Value) -> Value:
    """Return the stored integers without their quantization."""
    if x.type.quant is None:
        return x
    if x.data is not None:
        return Value.constant(operation.scope.unique(x.name), x.data.copy())
    return operation.emit(Copy(), x)


def label_inputs(graph: Graph) -> Graph:
    """Quantize each integer input of the graph for which all nodes assume the same quantization."""
    users: dict[Value, list[Node]] = {value: [] for value in graph.inputs}
    for node in graph.nodes:
        for value in node.inputs:
            if value in users:
                users[value].append(node)
    labeled: dict[Value, Value] = {}
    for value, nodes in users.items():
        quants = {_label(node) for node in nodes}
        quant = quants.pop() if len(quants) == 1 else None
        if quant is not None and value not in graph.results:
            labeled[value] = Value(value.name, replace(value.type, quant=quant))
    changed = replace(
        graph,
        inputs=tuple(labeled.get(v, v) for v in graph.inputs),
        nodes=tuple(
            replace(n, inputs=tuple(None if v is None else labeled.get(v, v) for v in n.inputs))
            for n in graph.nodes
        ),
    )

    def drop(node: Node) -> Rewrite:
        copies = isinstance(node.op, Copy) and node.input(0) in changed.inputs
        if not copies or node.output in graph.results or node.input(0).type != node.output.type:
            return None
        return (), [node.input(0)]

    return changed.rewrite(drop) if labeled else graph


def _label(node: Node) -> Quant | None:
    """Return the quantization that a node gives its operand, if it does nothing else."""
    return node.output.type.quant if isinstance(node.op, Copy) else None


def _cast(operation: Operation, x: Value, dtype: DType) -> Value:
    if x.type.dtype is dtype:
        return x
    (result,) = operation.apply("Cast", unlabeled(operation, x), to=PROTO_TYPES[dtype])
    return result


def _along(operation: Operation, x: Value, given: Value, axis: int, block_size: int) -> Value:
    """Return a parameter with a shape that can be broadcast to `x`."""
    shape, rank = x.type.shape, len(x.type.shape)
    if given.type.size == 1 and not block_size:
        return operation.reshape(given, ())
    axis = operation.axis(axis, rank)
    if not block_size:
        if given.type.shape != (shape[axis],):
            raise operation.wrong(
                f"'{given.name}' is {given.type}; for {x.type} it must have one element, or one "
                f"for each of the {shape[axis]} along axis {axis}"
            )
        return operation.reshape(given, [shape[axis] if i == axis else 1 for i in range(rank)])
    blocks = -(-shape[axis] // block_size)
    if given.type.shape != (*shape[:axis], blocks, *shape[axis + 1 :]):
        raise operation.wrong(
            f"'{given.name}' is {given.type}; for blocks of {block_size} along axis {axis} of "
            f"{x.type}, it must have {blocks} elements there"
        )
    operation.afford(shape[axis : axis + 1])
    index = operation.literal(np.arange(shape[axis], dtype=np.int64) // block_size)
    (result,) = operation.apply("Gather", given, index, axis=axis)
    return result

"""QDQ export of convolutions, dense layers and matrix products."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from smelt.ir import DType, Node, Op
from smelt.ir.weights import weights_rule
from smelt.ops.core.cast import Cast
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.convolution_nd import ConvTranspose
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.matmul import MatMul
from smelt.quant.qdq.graph import Emitter, Exporter
from smelt.quant.qdq.shapes import activated, pads_of, reshaped, unsupported


def _convolution(exporter: Exporter, node: Node, op: Conv2D | DepthwiseConv2D) -> None:
    value = node.input(1)
    if value.data is None or op.sums:
        raise unsupported(node, "of computed weights, or with its sums as the result,")
    depthwise = isinstance(op, DepthwiseConv2D)
    data = value.array.transpose((3, 0, 1, 2) if depthwise else (0, 3, 1, 2))
    quant = value.type.quant
    weights = exporter.weights(value, data, None if quant is None or quant.axis is None else 0)
    bias = node.optional(2)
    operands = [exporter.real(node.input(0), first=True), weights]
    name = exporter.emit(
        "Conv",
        operands if bias is None else [*operands, exporter.real(bias)],
        f"{node.name}_conv",
        group=weights_rule(op).groups(node),
        strides=op.stride,
        pads=pads_of(op.padding),
        dilations=op.dilation,
        kernel_shape=data.shape[2:],
    )
    exporter.finish(node.output, activated(exporter, node, name, op.activation), first=True)


def _transposed(exporter: Exporter, node: Node, op: ConvTranspose) -> None:
    weights, bias, y = node.input(1), node.optional(2), node.output
    if weights.data is None or (bias is not None and bias.data is None):
        raise unsupported(node, "of computed weights")
    extra = [max(-after, 0) for _, after in op.padding]
    added = zip(op.padding, extra, op.stride, strict=True)
    if any(before < 0 or more >= stride for (before, _), more, stride in added):
        raise unsupported(node, "that adds so many pixels")
    rank, image = len(y.type.shape), len(op.stride) == 2
    if image:
        x = exporter.real(node.input(0), first=True)
    else:
        moved = (0, rank - 1, *range(1, rank - 1))
        x = exporter.emit(
            "Transpose", [exporter.real(node.input(0))], f"{node.name}_first", perm=moved
        )
    operands = [x, _taps(exporter, node, op)]
    name = exporter.emit(
        "ConvTranspose",
        operands if bias is None else [*operands, exporter.real(bias)],
        f"{node.name}_transposed",
        group=op.groups,
        strides=op.stride,
        dilations=op.dilation,
        kernel_shape=weights.type.shape[:-2],
        pads=[before for before, _ in op.padding] + [max(after, 0) for _, after in op.padding],
        output_padding=extra,
    )
    name = activated(exporter, node, name, op.activation)
    if not image:
        back = (0, *range(2, rank), 1)
        name = exporter.emit("Transpose", [name], f"{node.name}_last", perm=back)
    exporter.finish(y, name, first=image)


def _taps(exporter: Exporter, node: Node, op: ConvTranspose) -> str:
    """Return the name of weights `[*k, i/g, o]` in ONNX's layout `[i, o/g, *k]`."""
    value = node.input(1)
    *kernel, depth, outputs = value.type.shape
    rank, quant = len(kernel), value.type.quant
    if op.groups == 1:
        data = value.array.transpose((rank, rank + 1, *range(rank)))
        return exporter.weights(value, data, None if quant is None or quant.axis is None else 1)
    # The axis of outputs is that of one group only, but scales exist for the outputs of all groups.
    parts = (*kernel, depth, op.groups, outputs // op.groups)
    name = reshaped(exporter, exporter.real(value), value.type.shape, parts, value.name)
    order = (rank + 1, rank, rank + 2, *range(rank))
    name = exporter.emit("Transpose", [name], f"{value.name}_moved", perm=order)
    wanted = (op.groups * depth, outputs // op.groups, *kernel)
    return reshaped(exporter, name, tuple(parts[i] for i in order), wanted, value.name)


def _fully_connected(exporter: Exporter, node: Node, op: FullyConnected) -> None:
    x, weights, y = node.input(0), node.input(1), node.output
    outputs, depth = weights.type.shape
    rows = x.type.size // depth
    name = reshaped(exporter, exporter.real(x), x.type.shape, (rows, depth), node.name)
    operands = [name, exporter.real(weights)]
    bias = node.optional(2)
    if bias is not None:
        operands.append(exporter.real(bias))
    name = exporter.emit("Gemm", operands, f"{node.name}_gemm", transB=1)
    if op.sums:
        name = _as_integers(exporter, node, name)
    name = activated(exporter, node, name, op.activation)
    exporter.finish(y, reshaped(exporter, name, (rows, outputs), y.type.shape, node.name))


def _as_integers(exporter: Exporter, node: Node, name: str) -> str:
    """Convert real sums back to sums of the stored integers, with channels last."""
    x, weights = node.input(0).type, node.input(1).type
    if weights.quant is None:
        raise unsupported(node, "with sums that are not of integers")
    units = np.float32(x.scale) * np.asarray(weights.quant.scale, np.float32)
    unit = exporter.constant(f"{node.name}_unit", units)
    name = exporter.emit("Div", [name, unit], f"{node.name}_units")
    name = exporter.emit("Round", [name], f"{node.name}_rounded")
    return exporter.emit("Cast", [name], f"{node.name}_sums", to=TensorProto.INT32)


def _cast(exporter: Exporter, node: Node, op: Cast) -> None:
    if op.to is not DType.FLOAT32:
        raise unsupported(node, f"to {op.to.value}")
    stored = exporter.stored(node.input(0))
    exporter.finish(node.output, exporter.emit("Cast", [stored], node.name, to=TensorProto.FLOAT))


def _matmul(exporter: Exporter, node: Node, op: MatMul) -> None:
    def moved(name: str, permutation: tuple[int, ...]) -> str:
        if not permutation:
            return name
        return exporter.emit("Transpose", [name], f"{node.name}_moved", perm=permutation)

    a = moved(exporter.real(node.input(0)), op.left)
    b = moved(exporter.real(node.input(1)), op.right)
    product = exporter.emit("MatMul", [a, b], f"{node.name}_matmul")
    exporter.finish(node.output, moved(product, op.result))


EMITTERS: Mapping[type[Op], Emitter] = {
    Cast: _cast,
    Conv2D: _convolution,
    ConvTranspose: _transposed,
    DepthwiseConv2D: _convolution,
    FullyConnected: _fully_connected,
    MatMul: _matmul,
}
"""Emitters by operator."""

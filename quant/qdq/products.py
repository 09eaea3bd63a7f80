"""Convolutions, dense layers and products of matrices as ONNX."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.ir import Node, Op
from smelt.ops.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.fully_connected import FullyConnected
from smelt.ops.matmul import MatMul
from smelt.quant.qdq.graph import Emitter, Exporter
from smelt.quant.qdq.shapes import activated, pads_of, reshaped, unsupported


def _convolution(exporter: Exporter, node: Node, op: Conv2D | DepthwiseConv2D) -> None:
    value = node.input(1)
    if value.data is None or op.sums:
        raise unsupported(node, "of computed weights, or with its sums as the result,")
    depthwise = isinstance(op, DepthwiseConv2D)
    channels = node.input(0).type.shape[3]
    data = value.array.transpose((3, 0, 1, 2) if depthwise else (0, 3, 1, 2))
    quant = value.type.quant
    weights = exporter.weights(value, data, None if quant is None or quant.axis is None else 0)
    bias = node.optional(2)
    operands = [exporter.real(node.input(0), first=True), weights]
    name = exporter.emit(
        "Conv",
        operands if bias is None else [*operands, exporter.real(bias)],
        f"{node.name}_conv",
        group=op.groups if isinstance(op, Conv2D) else channels,
        strides=op.stride,
        pads=pads_of(op.padding),
        dilations=op.dilation,
        kernel_shape=data.shape[2:],
    )
    exporter.finish(node.output, activated(exporter, node, name, op.activation), first=True)


def _fully_connected(exporter: Exporter, node: Node, op: FullyConnected) -> None:
    x, weights, y = node.input(0), node.input(1), node.output
    if op.sums:
        raise unsupported(node, "with its sums as the result")
    outputs, depth = weights.type.shape
    rows = x.type.size // depth
    name = reshaped(exporter, exporter.real(x), x.type.shape, (rows, depth), node.name)
    operands = [name, exporter.real(weights)]
    bias = node.optional(2)
    if bias is not None:
        operands.append(exporter.real(bias))
    name = exporter.emit("Gemm", operands, f"{node.name}_gemm", transB=1)
    name = activated(exporter, node, name, op.activation)
    exporter.finish(y, reshaped(exporter, name, (rows, outputs), y.type.shape, node.name))


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
    Conv2D: _convolution,
    DepthwiseConv2D: _convolution,
    FullyConnected: _fully_connected,
    MatMul: _matmul,
}
"""By operator."""

"""Float nodes as ONNX graphs, run by ONNX Runtime: an oracle for the references that is not ours.

Images are transposed to ONNX's n, c, h, w and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from smelt.ir import Array, DType, Graph, Node, Value
from smelt.ops.binary import Binary
from smelt.ops.concat import Concat
from smelt.ops.convolution import Conv2D, DepthwiseConv2D, Padding2D
from smelt.ops.copy import Copy
from smelt.ops.fixed_point import Activation
from smelt.ops.fully_connected import FullyConnected
from smelt.ops.pad import Pad
from smelt.ops.pool import Pool2D
from smelt.ops.prelu import PRelu
from smelt.ops.quantize import Dequantize, Quantize
from smelt.ops.reduce import Reduce
from smelt.ops.reshape import Reshape
from smelt.ops.resize import Resize
from smelt.ops.softmax import LogSoftmax, Softmax
from smelt.ops.tile import Tile
from smelt.ops.transpose import Transpose
from smelt.ops.unary import Unary

OPSET = 20
_TYPES = {
    DType.FLOAT32: onnx.TensorProto.FLOAT,
    DType.INT8: onnx.TensorProto.INT8,
}


def run(graph: Graph, inputs: Sequence[Array]) -> Array | None:
    """The output of a one-node graph by ONNX Runtime; None where ONNX has no such operator."""
    (node,) = graph.nodes
    builder = _Builder()
    lower = _LOWERINGS.get(type(node.op))
    if lower is None:
        return None
    lower(builder, node, builder.result)
    proto = helper.make_graph(
        builder.nodes,
        graph.name,
        [_info(v) for v in graph.inputs],
        [helper.make_tensor_value_info(builder.result, _TYPES[node.output.type.dtype], None)],
        builder.constants,
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    fed = {v.name: array for v, array in zip(graph.inputs, inputs, strict=True)}
    result: Array = np.asarray(session.run(None, fed)[0])
    return result


def _info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, _TYPES[value.type.dtype], value.type.shape)


class _Builder:
    """Collects nodes and constants; every method returns the name of a tensor."""

    result = "result"

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: Array) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def value(self, value: Value) -> str:
        return value.name if value.data is None else self.constant(value.data)

    def node(
        self, kind: str, inputs: Sequence[str], result: str | None = None, **attributes: Any
    ) -> str:
        name = result or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def channels_first(self, name: str) -> str:
        return self.node("Transpose", [name], perm=[0, 3, 1, 2])

    def channels_last(self, name: str, result: str) -> str:
        return self.node("Transpose", [name], result, perm=[0, 2, 3, 1])

    def shaped(self, name: str, shape: Sequence[int], result: str | None = None) -> str:
        return self.node("Reshape", [name, self.constant(np.asarray(shape, np.int64))], result)

    def clamp(self, name: str, activation: Activation, result: str | None = None) -> str:
        low, high = activation.limits
        limits = [self.constant(np.asarray(v, np.float32)) for v in (low, high)]
        return self.node("Clip", [name, *limits], result)


Lowering = Callable[[_Builder, Node, str], str]


def _pads(padding: Padding2D) -> list[int]:
    (top, bottom), (left, right) = padding
    return [top, left, bottom, right]


def _convolution(b: _Builder, node: Node, result: str) -> str:
    op, x, weights, bias = node.op, node.input(0), node.input(1).array, node.optional(2)
    assert isinstance(op, Conv2D | DepthwiseConv2D)
    depthwise = isinstance(op, DepthwiseConv2D)
    order = (3, 0, 1, 2) if depthwise else (0, 3, 1, 2)
    inputs = [b.channels_first(b.value(x)), b.constant(weights.transpose(order))]
    inputs += [] if bias is None else [b.value(bias)]
    y = b.node(
        "Conv",
        inputs,
        group=x.type.shape[3] if depthwise else op.groups,
        strides=op.stride,
        dilations=op.dilation,
        pads=_pads(op.padding),
    )
    return b.channels_last(b.clamp(y, op.activation), result)


def _fully_connected(b: _Builder, node: Node, result: str) -> str:
    op, weights, bias = node.op, node.input(1), node.optional(2)
    assert isinstance(op, FullyConnected)
    rows = b.shaped(b.value(node.input(0)), (-1, weights.type.shape[1]))
    y = b.node("MatMul", [rows, b.node("Transpose", [b.value(weights)], perm=[1, 0])])
    if bias is not None:
        y = b.node("Add", [y, b.value(bias)])
    return b.shaped(b.clamp(y, op.activation), node.output.type.shape, result)


_BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "maximum": "Max",
    "minimum": "Min",
}


def _binary(b: _Builder, node: Node, result: str) -> str:
    op, operands = node.op, [b.value(node.input(i)) for i in range(2)]
    assert isinstance(op, Binary)
    if op.kind == "squared_difference":
        difference = b.node("Sub", operands)
        y = b.node("Mul", [difference, difference])
    else:
        y = b.node(_BINARY[op.kind], operands)
    return b.clamp(y, op.activation, result)


_UNARY = {
    "logistic": "Sigmoid",
    "tanh": "Tanh",
    "hard_swish": "HardSwish",
    "abs": "Abs",
    "neg": "Neg",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "sin": "Sin",
    "cos": "Cos",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
}


def _unary(b: _Builder, node: Node, result: str) -> str:
    op, x = node.op, b.value(node.input(0))
    assert isinstance(op, Unary)
    match op.kind:
        case "relu" | "relu6" | "relu_n1_to_1" | "relu_0_to_1":
            return b.clamp(x, Activation(op.kind), result)
        case "leaky_relu":
            return b.node("LeakyRelu", [x], result, alpha=op.alpha)
        case "elu":
            return b.node("Elu", [x], result, alpha=op.alpha)
        case "gelu":
            return b.node("Gelu", [x], result)
        case "gelu_tanh":
            return b.node("Gelu", [x], result, approximate="tanh")
        case "square":
            return b.node("Mul", [x, x], result)
        case "rsqrt":
            return b.node("Reciprocal", [b.node("Sqrt", [x])], result)
        case kind:
            return b.node(_UNARY[kind], [x], result)


def _prelu(b: _Builder, node: Node, result: str) -> str:
    return b.node("PRelu", [b.value(node.input(0)), b.value(node.input(1))], result)


def _pool(b: _Builder, node: Node, result: str) -> str:
    op = node.op
    assert isinstance(op, Pool2D)
    kind = "MaxPool" if op.kind == "max" else "AveragePool"
    x = b.channels_first(b.value(node.input(0)))
    y = b.node(kind, [x], kernel_shape=op.window, strides=op.stride, pads=_pads(op.padding))
    return b.channels_last(b.clamp(y, op.activation), result)


def _reduce(b: _Builder, node: Node, result: str) -> str:
    op = node.op
    assert isinstance(op, Reduce)
    inputs = [b.value(node.input(0)), b.constant(np.asarray(op.axes, np.int64))]
    return b.node(f"Reduce{op.kind.capitalize()}", inputs, result, keepdims=int(op.keep_dims))


def _softmax(b: _Builder, node: Node, result: str) -> str:
    op = node.op
    assert isinstance(op, Softmax)
    beta = b.constant(np.asarray(op.beta, np.float32))
    return b.node("Softmax", [b.node("Mul", [b.value(node.input(0)), beta])], result, axis=-1)


def _log_softmax(b: _Builder, node: Node, result: str) -> str:
    return b.node("LogSoftmax", [b.value(node.input(0))], result, axis=-1)


def _concat(b: _Builder, node: Node, result: str) -> str:
    assert isinstance(node.op, Concat)
    inputs = [b.value(node.input(i)) for i in range(len(node.inputs))]
    return b.node("Concat", inputs, result, axis=node.op.axis)


def _pad(b: _Builder, node: Node, result: str) -> str:
    assert isinstance(node.op, Pad)
    pads = np.asarray(node.op.padding, np.int64).T.ravel()
    value = np.asarray(node.op.stored_value(node.output.type), np.float32)
    return b.node("Pad", [b.value(node.input(0)), b.constant(pads), b.constant(value)], result)


def _reshape(b: _Builder, node: Node, result: str) -> str:
    return b.shaped(b.value(node.input(0)), node.output.type.shape, result)


def _transpose(b: _Builder, node: Node, result: str) -> str:
    assert isinstance(node.op, Transpose)
    return b.node("Transpose", [b.value(node.input(0))], result, perm=node.op.permutation)


def _tile(b: _Builder, node: Node, result: str) -> str:
    assert isinstance(node.op, Tile)
    repeats = b.constant(np.asarray(node.op.multiples, np.int64))
    return b.node("Tile", [b.value(node.input(0)), repeats], result)


def _resize(b: _Builder, node: Node, result: str) -> str:
    op = node.op
    assert isinstance(op, Resize)
    n, h, w, c = node.output.type.shape
    sizes = b.constant(np.asarray([n, c, h, w], np.int64))
    coordinates = "align_corners" if op.align_corners else "asymmetric"
    # Half-pixel nearest is floor((i + 1/2) * scale): the position plus a half, rounded down.
    rounding = "round_prefer_ceil" if op.align_corners or op.half_pixel_centers else "floor"
    y = b.node(
        "Resize",
        [b.channels_first(b.value(node.input(0))), "", "", sizes],
        mode="nearest" if op.kind == "nearest" else "linear",
        nearest_mode=rounding,
        coordinate_transformation_mode="half_pixel" if op.half_pixel_centers else coordinates,
    )
    return b.channels_last(y, result)


def _quantize(b: _Builder, node: Node, result: str) -> str:
    y = node.output.type
    scale = b.constant(np.asarray(y.scale, np.float32))
    zero_point = b.constant(np.asarray(y.zero_point, y.dtype.numpy))
    return b.node("QuantizeLinear", [b.value(node.input(0)), scale, zero_point], result)


def _dequantize(b: _Builder, node: Node, result: str) -> str:
    x = node.input(0).type
    scale = b.constant(np.asarray(x.scale, np.float32))
    zero_point = b.constant(np.asarray(x.zero_point, x.dtype.numpy))
    return b.node("DequantizeLinear", [b.value(node.input(0)), scale, zero_point], result)


def _copy(b: _Builder, node: Node, result: str) -> str:
    return b.node("Identity", [b.value(node.input(0))], result)


_LOWERINGS: dict[type, Lowering] = {
    Conv2D: _convolution,
    DepthwiseConv2D: _convolution,
    FullyConnected: _fully_connected,
    Binary: _binary,
    Unary: _unary,
    PRelu: _prelu,
    Pool2D: _pool,
    Reduce: _reduce,
    Softmax: _softmax,
    LogSoftmax: _log_softmax,
    Concat: _concat,
    Pad: _pad,
    Reshape: _reshape,
    Tile: _tile,
    Transpose: _transpose,
    Resize: _resize,
    Quantize: _quantize,
    Dequantize: _dequantize,
    Copy: _copy,
}

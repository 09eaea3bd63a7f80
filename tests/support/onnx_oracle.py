"""Float nodes as ONNX graphs, run by ONNX Runtime: an independent oracle for the references.

Images are transposed to ONNX's n, c, h, w and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from smelt.ir import Array, DType, Graph, Node, Value
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import BINARY, Binary
from smelt.ops.core.cast import Cast
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D, Padding2D
from smelt.ops.core.convolution_nd import Conv3D, ConvolutionND, ConvTranspose
from smelt.ops.core.cumulative import Cumulative
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.normalization import LocalResponse, Normalization
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.prelu import PRelu
from smelt.ops.core.quantize import Dequantize, Quantize
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.softmax import Hardmax, LogSoftmax, Softmax
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.copy import Copy
from smelt.ops.tensor.gather import Gather, GatherElements, GatherND
from smelt.ops.tensor.grid_sample import GridSample
from smelt.ops.tensor.one_hot import OneHot
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.resize import Resize
from smelt.ops.tensor.scatter import ScatterElements, ScatterND
from smelt.ops.tensor.select import Select
from smelt.ops.tensor.slice import Slice
from smelt.ops.tensor.tile import Tile
from smelt.ops.tensor.transpose import Transpose
from smelt.ops.tensor.triangle import Triangle

OPSET = 20
_TYPES = {
    DType.FLOAT32: onnx.TensorProto.FLOAT,
    DType.FLOAT64: onnx.TensorProto.DOUBLE,
    DType.INT8: onnx.TensorProto.INT8,
    DType.INT32: onnx.TensorProto.INT32,
    DType.INT64: onnx.TensorProto.INT64,
    DType.BOOL: onnx.TensorProto.BOOL,
}


def has(graph: Graph) -> bool:
    """Return whether this module has an ONNX form of a one-node graph."""
    return _lowered(graph) is not None


def run(graph: Graph, inputs: Sequence[Array]) -> Array:
    """Return the output of a one-node graph by ONNX Runtime."""
    (node,) = graph.nodes
    builder = _lowered(graph)
    assert builder is not None, node.op
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


def _lowered(graph: Graph) -> _Builder | None:
    (node,) = graph.nodes
    builder = _Builder()
    lower = _LOWERINGS.get(type(node.op))
    return None if lower is None or lower(builder, node, builder.result) is None else builder


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

    def channels_first(self, name: str, axes: int = 2) -> str:
        return self.node("Transpose", [name], perm=[0, axes + 1, *range(1, axes + 1)])

    def channels_last(self, name: str, result: str | None, axes: int = 2) -> str:
        return self.node("Transpose", [name], result, perm=[0, *range(2, axes + 2), 1])

    def shaped(self, name: str, shape: Sequence[int], result: str | None = None) -> str:
        return self.node("Reshape", [name, self.constant(np.asarray(shape, np.int64))], result)

    def clamp(self, name: str, activation: Activation, result: str | None = None) -> str:
        low, high = activation.limits
        limits = [self.constant(np.asarray(v, np.float32)) for v in (low, high)]
        return self.node("Clip", [name, *limits], result)


Lowering = Callable[[_Builder, Node, str], str | None]


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


def _convolution_nd(b: _Builder, node: Node, result: str) -> str:
    op, x, bias = node.op, node.input(0), node.optional(2)
    assert isinstance(op, ConvolutionND)
    axes = len(op.stride)
    *kernel, depth, outputs = node.input(1).type.shape
    parts = (*kernel, depth, op.groups, outputs // op.groups)
    weights = b.shaped(b.value(node.input(1)), parts)
    if isinstance(op, Conv3D):
        order, shape = (axes + 1, axes + 2, axes, *range(axes)), (outputs, depth, *kernel)
    else:
        order = (axes + 1, axes, axes + 2, *range(axes))
        shape = (op.groups * depth, outputs // op.groups, *kernel)
    weights = b.shaped(b.node("Transpose", [weights], perm=order), shape)
    pairs = np.asarray(op.padding)
    y = b.node(
        "Conv" if isinstance(op, Conv3D) else "ConvTranspose",
        [b.channels_first(b.value(x), axes), weights],
        group=op.groups,
        strides=op.stride,
        dilations=op.dilation,
        pads=np.maximum(pairs, 0).T.ravel().tolist(),
    )
    y = b.channels_last(y, None, axes)
    added = np.pad(np.maximum(-pairs, 0), ((1, 1), (0, 0))).T.ravel()
    y = b.node("Pad", [y, b.constant(added)])
    y = y if bias is None else b.node("Add", [y, b.value(bias)])
    return b.clamp(y, op.activation, result)


def _grid_sample(b: _Builder, node: Node, result: str) -> str | None:
    op, axes = node.op, len(node.input(0).type.shape) - 2
    assert isinstance(op, GridSample)
    if op.coordinates == "pixels" or axes == 1 or (axes == 3 and op.mode == "cubic"):
        return None
    y = b.node(
        "GridSample",
        [b.channels_first(b.value(node.input(0)), axes), b.value(node.input(1))],
        mode=op.mode,
        padding_mode=op.padding,
        align_corners=int(op.coordinates == "corners"),
    )
    return b.channels_last(y, result, len(node.output.type.shape) - 2)


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
    "pow": "Pow",
    "equal": "Equal",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "less": "Less",
    "less_equal": "LessOrEqual",
}


def _binary(b: _Builder, node: Node, result: str) -> str | None:
    op, operands = node.op, [b.value(node.input(i)) for i in range(2)]
    assert isinstance(op, Binary)
    if op.kind == "fmod":
        return b.node("Mod", operands, result, fmod=1)
    if BINARY[op.kind].compares:
        return b.node(_BINARY[op.kind], operands, result)
    if op.kind == "squared_difference":
        difference = b.node("Sub", operands)
        y = b.node("Mul", [difference, difference])
    elif op.kind in _BINARY:
        y = b.node(_BINARY[op.kind], operands)
    else:
        return None
    return b.clamp(y, op.activation, result)


_UNARY = {
    "logistic": "Sigmoid",
    "hard_swish": "HardSwish",
    "is_nan": "IsNaN",
    "is_infinite": "IsInf",
}
"""Kinds whose ONNX name is not the kind with a capital letter."""

_CONSTANTS = {
    "leaky_relu": ("LeakyRelu", "alpha"),
    "thresholded_relu": ("ThresholdedRelu", "alpha"),
    "elu": ("Elu", "alpha"),
    "celu": ("Celu", "alpha"),
    "selu": ("Selu", "alpha", "gamma"),
    "hard_sigmoid": ("HardSigmoid", "alpha", "beta"),
    "shrink": ("Shrink", "lambd", "bias"),
}
"""Operators with the attributes `alpha` and `beta`."""


def _unary(b: _Builder, node: Node, result: str) -> str:
    op, x = node.op, b.value(node.input(0))
    assert isinstance(op, Unary)
    match op.kind:
        case "relu" | "relu6" | "relu_n1_to_1" | "relu_0_to_1":
            return b.clamp(x, Activation(op.kind), result)
        case kind if kind in _CONSTANTS:
            name, *attributes = _CONSTANTS[kind]
            fields = dict(zip(attributes, (op.alpha, op.beta), strict=False))
            return b.node(name, [x], result, **fields)
        case "clamp":
            limits = [b.constant(np.asarray(v, np.float32)) for v in (op.alpha, op.beta)]
            return b.node("Clip", [x, *limits], result)
        case "swish":
            inner = b.node("Mul", [x, b.constant(np.asarray(op.alpha, np.float32))])
            return b.node("Mul", [x, b.node("Sigmoid", [inner])], result)
        case "to_float16" | "to_bfloat16":
            narrow = getattr(onnx.TensorProto, op.kind.removeprefix("to_").upper())
            return b.node("Cast", [b.node("Cast", [x], to=narrow)], result, to=1)
        case "is_positive_infinite":
            return b.node("IsInf", [x], result, detect_negative=0)
        case "is_negative_infinite":
            return b.node("IsInf", [x], result, detect_positive=0)
        case "gelu":
            return b.node("Gelu", [x], result)
        case "gelu_tanh":
            return b.node("Gelu", [x], result, approximate="tanh")
        case "square":
            return b.node("Mul", [x, x], result)
        case "rsqrt":
            return b.node("Reciprocal", [b.node("Sqrt", [x])], result)
        case kind:
            return b.node(_UNARY.get(kind, kind.capitalize()), [x], result)


def _prelu(b: _Builder, node: Node, result: str) -> str:
    return b.node("PRelu", [b.value(node.input(0)), b.value(node.input(1))], result)


def _pool(b: _Builder, node: Node, result: str) -> str:
    op = node.op
    assert isinstance(op, Pool2D)
    fields: dict[str, Any] = {
        "kernel_shape": op.window,
        "strides": op.stride,
        "pads": _pads(op.padding),
        "dilations": op.dilation,
    }
    if op.kind != "max":
        fields["count_include_pad"] = int(op.counts_padding or op.kind == "sum")
    x = b.channels_first(b.value(node.input(0)))
    y = b.node("MaxPool" if op.kind == "max" else "AveragePool", [x], **fields)
    if op.kind == "sum":
        y = b.node("Mul", [y, b.constant(np.asarray(math.prod(op.window), np.float32))])
    return b.channels_last(b.clamp(y, op.activation), result)


def _reduce(b: _Builder, node: Node, result: str) -> str | None:
    op = node.op
    assert isinstance(op, Reduce)
    inputs = [b.value(node.input(0)), b.constant(np.asarray(op.axes, np.int64))]
    if node.input(0).type.size == 0:
        return None
    name = op.kind.title().replace("_", "")
    return b.node(f"Reduce{name}", inputs, result, keepdims=int(op.keep_dims))


def _cumulative(b: _Builder, node: Node, result: str) -> str | None:
    op = node.op
    assert isinstance(op, Cumulative)
    if op.kind != "sum":
        return None
    inputs = [b.value(node.input(0)), b.constant(np.asarray(op.axis, np.int64))]
    return b.node("CumSum", inputs, result, exclusive=int(op.exclusive), reverse=int(op.reverse))


def _normalization(b: _Builder, node: Node, result: str) -> str | None:
    """Lower normalizations over the axes of ONNX's layer and instance normalization."""
    op, x = node.op, node.input(0)
    assert isinstance(op, Normalization)
    rank = len(x.type.shape)
    if not op.centered or op.statistics:
        return None
    if op.axes == tuple(range(op.axes[0], rank)):
        own = x.type.shape[op.axes[0] :]
        parameters = _parameters(b, node, own)
        return b.node(
            "LayerNormalization",
            [b.value(x), *parameters],
            result,
            axis=op.axes[0],
            epsilon=op.epsilon,
        )
    if op.axes != tuple(range(1, rank - 1)):
        return None
    image = b.channels_first(b.value(x), rank - 2)
    inputs = [image, *_parameters(b, node, x.type.shape[-1:])]
    y = b.node("InstanceNormalization", inputs, epsilon=op.epsilon)
    return b.channels_last(y, result, rank - 2)


def _parameters(b: _Builder, node: Node, shape: tuple[int, ...]) -> list[str]:
    """Return scale and bias, broadcast to the full shape."""
    size = b.constant(np.asarray(shape, np.int64))
    return [
        b.constant(np.full(shape, default, np.float32))
        if (value := node.optional(index)) is None
        else b.node("Expand", [b.value(value), size])
        for index, default in ((1, 1.0), (2, 0.0))
    ]


def _local_response(b: _Builder, node: Node, result: str) -> str | None:
    op = node.op
    assert isinstance(op, LocalResponse)
    if op.size % 2 == 0:
        return None
    y = b.node(
        "LRN",
        [b.channels_first(b.value(node.input(0)))],
        size=op.size,
        alpha=op.alpha,
        beta=op.beta,
        bias=op.bias,
    )
    return b.channels_last(y, result)


def _hardmax(b: _Builder, node: Node, result: str) -> str:
    return b.node("Hardmax", [b.value(node.input(0))], result, axis=-1)


def _select(b: _Builder, node: Node, result: str) -> str:
    return b.node("Where", [b.value(node.input(i)) for i in range(3)], result)


def _cast(b: _Builder, node: Node, result: str) -> str | None:
    """Lower a cast, except to integers, as ONNX does not define it for floats out of range."""
    to = node.output.type.dtype
    if to.is_integer:
        return None
    return b.node("Cast", [b.value(node.input(0))], result, to=_TYPES[to])


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


def _pad(b: _Builder, node: Node, result: str) -> str | None:
    op = node.op
    assert isinstance(op, Pad)
    x = node.input(0)
    # ONNX Runtime reflects only once.
    far = any(max(p) >= n for p, n in zip(op.padding, x.type.shape, strict=True))
    if op.mode == "symmetric" or (op.mode == "reflect" and far):
        return None
    pads = b.constant(np.asarray(op.padding, np.int64).T.ravel())
    value = b.constant(np.asarray(op.stored_value(node.output.type), np.float32))
    if node.optional(1) is not None:
        value = b.value(node.input(1))
    return b.node("Pad", [b.value(x), pads, value], result, mode=op.mode)


def _slice(b: _Builder, node: Node, result: str) -> str | None:
    op = node.op
    assert isinstance(op, Slice)
    if not op.sizes:
        return None
    starts, sizes, steps = (np.array(n, np.int64) for n in (op.starts, op.sizes, op.steps))
    ends = starts + sizes * steps
    # A negative bound would count from the end.
    ends[ends < 0] = np.iinfo(np.int64).min
    bounds = [b.constant(n) for n in (starts, ends, np.arange(len(starts)), steps)]
    return b.node("Slice", [b.value(node.input(0)), *bounds], result)


def _indexed(b: _Builder, node: Node, result: str) -> str | None:
    """Lower the Gather and Scatter families; ONNX does not define indices out of range."""
    op = node.op
    if node.origin.name == "outside" or (isinstance(op, Gather) and op.batch_dims):
        return None
    names = [b.value(node.input(i)) for i in range(len(node.inputs))]
    if isinstance(op, GatherND | ScatterND):
        names[-1] = b.node("Cast", names[-1:], to=onnx.TensorProto.INT64)
    if isinstance(op, ScatterElements | ScatterND):
        names = [names[0], names[2], names[1]]
    attributes = {f.name: getattr(op, f.name) for f in fields(op) if f.name != "batch_dims"}
    if isinstance(op, GatherND):
        attributes = {"batch_dims": op.batch_dims}
    return b.node(type(op).__name__, names, result, **attributes)


def _one_hot(b: _Builder, node: Node, result: str) -> str | None:
    op = node.op
    assert isinstance(op, OneHot)
    values, indices = node.input(0), node.input(1)
    # ONNX demands that real indices round towards zero; ONNX Runtime does not.
    if indices.type.dtype not in (DType.INT64, DType.INT32) or not indices.type.shape:
        return None
    wide = b.node("Cast", [b.value(indices)], to=onnx.TensorProto.INT64)
    depth = b.constant(np.asarray(op.depth, np.int64))
    return b.node("OneHot", [wide, depth, b.value(values)], result, axis=op.axis)


def _triangle(b: _Builder, node: Node, result: str) -> str:
    op = node.op
    assert isinstance(op, Triangle)
    k = b.constant(np.asarray(op.k, np.int64))
    return b.node("Trilu", [b.value(node.input(0)), k], result, upper=int(op.upper))


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
    Conv3D: _convolution_nd,
    ConvTranspose: _convolution_nd,
    GridSample: _grid_sample,
    FullyConnected: _fully_connected,
    Binary: _binary,
    Unary: _unary,
    PRelu: _prelu,
    Pool2D: _pool,
    Reduce: _reduce,
    Cumulative: _cumulative,
    Normalization: _normalization,
    LocalResponse: _local_response,
    Hardmax: _hardmax,
    Select: _select,
    Cast: _cast,
    Softmax: _softmax,
    LogSoftmax: _log_softmax,
    Concat: _concat,
    Pad: _pad,
    Slice: _slice,
    Gather: _indexed,
    GatherElements: _indexed,
    GatherND: _indexed,
    ScatterElements: _indexed,
    ScatterND: _indexed,
    OneHot: _one_hot,
    Triangle: _triangle,
    Reshape: _reshape,
    Tile: _tile,
    Transpose: _transpose,
    Resize: _resize,
    Quantize: _quantize,
    Dequantize: _dequantize,
    Copy: _copy,
}

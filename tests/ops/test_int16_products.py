"""Products of int16 activations and int8 weights: LiteRT, the numpy reference, generated C."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.kernel import Refusal, Request
from smelt.codegen.passes import run_passes
from smelt.ir import (
    Array,
    DType,
    Graph,
    Node,
    Origin,
    Quant,
    Rounding,
    TensorType,
    Value,
    evaluate,
    verify,
)
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D, same_padding
from smelt.ops.core.convolution_nd import ConvTranspose
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.softmax import Softmax
from smelt.ops.core.unary import Unary
from smelt.targets import HOST, get
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.tflite_networks import O, T, const, litert, network

Product = Conv2D | ConvTranspose | DepthwiseConv2D | FullyConnected

_CODES = {
    Activation.NONE: schema.ActivationFunctionType.NONE,
    Activation.RELU: schema.ActivationFunctionType.RELU,
    Activation.RELU6: schema.ActivationFunctionType.RELU6,
    Activation.RELU_N1_TO_1: schema.ActivationFunctionType.RELU_N1_TO_1,
}
_TYPES = {np.int64: schema.TensorType.INT64, np.int32: schema.TensorType.INT32}
_ROUNDINGS = {DType.INT64: Rounding.TFLM16, DType.INT32: Rounding.TFLM}
"""Rounding by element type of the bias, as in TensorFlow Lite."""

_SAME = same_padding((7, 6), (3, 3), (1, 1))
_STRIDED = same_padding((7, 6), (3, 3), (2, 2))
SHAPES: dict[str, tuple[Product, tuple[int, ...], tuple[int, ...]]] = {
    "pointwise": (Conv2D(activation=Activation.RELU), (1, 7, 6, 5), (9, 1, 1, 5)),
    "same": (Conv2D(padding=_SAME, activation=Activation.RELU6), (2, 7, 6, 3), (4, 3, 3, 3)),
    "strided": (Conv2D((2, 2), _STRIDED), (1, 7, 6, 7), (3, 3, 3, 7)),
    "depthwise": (DepthwiseConv2D(padding=_SAME), (1, 7, 6, 5), (1, 3, 3, 5)),
    "multiplier": (DepthwiseConv2D((2, 2), _STRIDED), (1, 7, 6, 3), (1, 3, 3, 6)),
    "transposed": (
        ConvTranspose((2, 2), ((0, 1), (0, 1)), (1, 1), activation=Activation.RELU),
        (1, 4, 5, 6),
        (3, 3, 6, 5),
    ),
    "dense": (FullyConnected(Activation.RELU6), (3, 40), (7, 40)),
    "long": (FullyConnected(), (1, 2100), (5, 2100)),
}


def product(
    op: Product,
    shape: tuple[int, ...],
    weights: Array,
    bias: Array,
    *,
    spread: float = 3.0,
    output: float = 0.004,
) -> Graph:
    """Return a node with scales that differ by `spread` between first and last channel."""
    axis = {Conv2D: 0, ConvTranspose: 3, DepthwiseConv2D: 3, FullyConnected: 0}[type(op)]
    channels = weights.shape[axis]
    scales = 0.01 * spread ** np.linspace(0, 1, channels) / np.sqrt(weights.size / channels)
    scale = tuple(float(np.float32(s)) for s in scales)
    x = Value("x", TensorType(shape, DType.INT16, Quant.per_tensor(0.0007)))
    w = Value.constant("w", weights, Quant(scale, (0,) * channels, axis))
    products = tuple(float(np.float32(x.type.scale * s)) for s in scale)
    b = Value.constant("b", bias, Quant(products, (0,) * channels, 0))
    made = op.infer([x.type, w.type, b.type])[0]
    y = Value("y", replace(made, quant=Quant.per_tensor(output)))
    node = Node(op, (x, w, b), (y,), Origin(op.name, 0), _ROUNDINGS[DType.of(bias)])
    return verify(Graph("product", (x,), (y,), (node,)), "building a test")


def drawn(name: str, bias: DType, seed: int = 0) -> tuple[Graph, list[tuple[Array]]]:
    """Return a node of `SHAPES`, and random and extreme inputs."""
    op, shape, weights = SHAPES[name]
    rng = np.random.default_rng(seed)
    channels = weights[3] if isinstance(op, ConvTranspose | DepthwiseConv2D) else weights[0]
    sums = rng.integers(-(10**6), 10**6, channels).astype(bias.numpy)
    stored = rng.integers(-127, 127, weights, np.int8, endpoint=True)
    return product(op, shape, stored, sums, output=0.0004), inputs(shape, rng)


def inputs(shape: tuple[int, ...], rng: np.random.Generator) -> list[tuple[Array]]:
    low, high = DType.INT16.limits
    random = rng.integers(low, high, shape, np.int16, endpoint=True)
    ends = rng.choice(np.array([low, high], np.int16), shape)
    return [(random,), (ends,), *((np.full(shape, end, np.int16),) for end in (low, high))]


def tflite(graph: Graph) -> tuple[bytes, tuple[int, ...]]:
    """Return a TFLite file of a node for LiteRT, and the shape of its input.

    A dense layer with an int64 bias becomes a pointwise convolution, because LiteRT uses
    multipliers of more bits for such dense layers than for convolutions.
    """
    (node,) = graph.nodes
    op, (x, w, b), y = node.op, map(_tensor, node.inputs), _tensor(node.output)
    given: dict[str, Any] = {}
    if isinstance(op, ConvTranspose):
        return _transposed(op, x, w, b, y), x.shape
    if isinstance(op, FullyConnected) and b.dtype is np.int64:
        x, y = (replace(t, shape=(1, 1, *t.shape)) for t in (x, y))
        w = replace(w, shape=(w.shape[0], 1, 1, w.shape[1]))
        op = Conv2D(activation=op.activation)
    if isinstance(op, FullyConnected):
        kind, options = "FULLY_CONNECTED", schema.FullyConnectedOptionsT
    else:
        assert isinstance(op, Conv2D | DepthwiseConv2D)
        kind, options = "CONV_2D", schema.Conv2DOptionsT
        valid = not any(map(any, op.padding))
        given = {"padding": schema.Padding.VALID if valid else schema.Padding.SAME}
        given |= {"strideH": op.stride[0], "strideW": op.stride[1]}
        given |= {"dilationHFactor": op.dilation[0], "dilationWFactor": op.dilation[1]}
    if isinstance(op, DepthwiseConv2D):
        kind, options = "DEPTHWISE_CONV_2D", schema.DepthwiseConv2DOptionsT
        given["depthMultiplier"] = w.shape[3] // x.shape[3]
    else:
        given["quantizedBiasType"] = _TYPES[b.dtype]
    assert isinstance(op, Product)
    given["fusedActivationFunction"] = _CODES[op.activation]
    operator = O(kind, ("x", "w", "b"), ("y",), options, given)
    return network((x, w, b, y), (operator,), ("x",), ("y",)), x.shape


def _transposed(op: ConvTranspose, x: T, w: T, b: T, y: T) -> bytes:
    assert w.data is not None
    taps = w.data.transpose(3, 0, 1, 2)
    w = const("w", taps, np.int8, scale=w.scale, axis=0)
    given = {
        "strideH": op.stride[0],
        "strideW": op.stride[1],
        "fusedActivationFunction": _CODES[op.activation],
        "quantizedBiasType": _TYPES[b.dtype],
    }
    shape = const("shape", y.shape, np.int32)
    operator = O("TRANSPOSE_CONV", ("shape", "w", "x", "b"), ("y",), _TRANSPOSED, given)
    return network((shape, w, x, b, y), (operator,), ("x",), ("y",))


_TRANSPOSED = schema.TransposeConvOptionsT


def _tensor(value: Value | None) -> T:
    assert value is not None
    assert value.type.quant is not None
    quant = value.type.quant
    quantization: dict[str, Any] = {"scale": quant.scale, "axis": quant.axis or 0}
    kind = value.type.dtype.numpy.type
    if value.data is not None:
        return const(value.name, value.data, kind, **quantization)
    return T(value.name, value.type.shape, kind, **quantization)


COMPARED = [
    *((name, DType.INT64) for name in SHAPES),
    *((name, DType.INT32) for name in ("pointwise", "same", "strided", "dense")),
]
"""LiteRT's depthwise convolutions accept no int32 bias, and sums beyond 32 bits need int64."""


@pytest.mark.parametrize(("name", "bias"), COMPARED, ids=str)
def test_the_reference_equals_litert(name: str, bias: DType) -> None:
    graph, samples = drawn(name, bias)
    file, shape = tflite(graph)
    for sample in samples:
        found = evaluate(graph, sample).outputs[0]
        (expected,) = litert(file, sample[0].reshape(shape))
        np.testing.assert_array_equal(found, expected.reshape(found.shape))


@pytest.mark.quick(setup=("host",))
@pytest.mark.parametrize("setup", ["host", pytest.param("m0", marks=pytest.mark.qemu)])
def test_generated_code_equals_the_reference(setup: str) -> None:
    """Sums of 32 and 64 bits, biases beyond 32 bits, very different scales, extreme weights."""
    rng = np.random.default_rng(1)
    graphs = [drawn(name, DType.INT64)[0] for name in SHAPES]
    graphs += [drawn(name, DType.INT32)[0] for name in SHAPES if name != "long"]
    extreme = np.repeat(np.array([[127], [-127], [0]], np.int8), 600, axis=1)
    for bias in (0, 2**31 - 1, 2**45):
        biases = np.array([bias, -bias, bias // 2], np.int64)
        for spread, output in ((1.0, 0.004), (1.0, 1e-6), (1e-6, 0.004), (1e7, 3.0)):
            graphs.append(
                product(FullyConnected(), (2, 600), extreme, biases, spread=spread, output=output)
            )
    members = [Member(graph, inputs(graph.inputs[0].type.shape, rng)) for graph in graphs]
    found = run_together(members, SETUPS[setup])
    for member, outputs in zip(members, found, strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(outputs, expected, f"{member.graph.nodes[0].op.name} on {setup}")


@pytest.mark.parametrize("bias", [None, np.int32, np.int64], ids=str)
def test_constant_channels_go_into_a_bias_of_64_bits(
    bias: type[np.signedinteger[Any]] | None,
) -> None:
    """A constant channel adds a number beyond 32 bits to the layer that reads it."""
    rng = np.random.default_rng(4)
    first = rng.integers(-127, 127, (2, 1, 1, 2), np.int8)
    first[0] = 0
    top = np.array([2 * 10**9, 0], np.int64)
    graph = product(Conv2D(), (1, 24, 24, 2), first, top, output=0.001)
    middle = graph.outputs[0]
    second = rng.integers(-127, 127, (1, 24, 24, 2), np.int8)
    second[..., 0] = 127
    quant = Quant((0.001,), (0,), 0)
    operands = [middle, Value.constant("v", second, quant)]
    if bias is not None:
        operands.append(Value.constant("c", np.array([-(10**9)], bias), None))
    y = Value("z", TensorType((1, 1, 1, 1), DType.INT16, Quant.per_tensor(0.15)))
    node = Node(Conv2D(), tuple(operands), (y,), Origin("z", 1), Rounding.TFLM16)
    made = replace(graph, outputs=(y,), nodes=(*graph.nodes, node))
    passed = run_passes(verify(made, "building a test"))
    assert passed.nodes[0].output.type.shape[3] == 1
    for sample in inputs((1, 24, 24, 2), rng):
        (expected,) = evaluate(made, sample).outputs
        assert abs(int(expected.item())) < 32767
        np.testing.assert_array_equal(evaluate(passed, sample).outputs[0], expected)


def refusal(graph: Graph) -> str:
    found = backend("c").find(graph.nodes[0], Request(HOST.target))
    assert isinstance(found, Refusal)
    return found.reason


def test_unsupported_products_are_refused() -> None:
    rng = np.random.default_rng(2)
    long = rng.integers(-127, 127, (2, 2100), np.int8)
    none = np.zeros(2, np.int64)
    assert "int64 bias" in refusal(
        product(FullyConnected(), (1, 2100), long, none.astype(np.int32))
    )
    assert "48 bits" in refusal(product(FullyConnected(), (1, 2100), long, none + 2**47))
    small = product(FullyConnected(), (1, 2100), long, none, output=1e-9)
    assert "output scale far too small" in refusal(small)
    graph, _ = drawn("dense", DType.INT64)
    (node,) = graph.nodes
    onnx = replace(graph, nodes=(replace(node, rounding=Rounding.ONNX),))
    assert "rounding 'onnx'" in refusal(onnx)


@pytest.mark.parametrize(
    ("op", "scale", "wanted"),
    [
        (Unary("tanh"), 50.0, "so large an input scale"),
        (Softmax(), 9.0, "so large an input scale"),
    ],
    ids=str,
)
def test_too_large_input_scales_are_refused(op: Unary | Softmax, scale: float, wanted: str) -> None:
    x = TensorType((1, 9), DType.INT16, Quant.per_tensor(scale))
    quant = op.output_quant([x])
    values = Value("x", x), Value("y", replace(x, quant=quant))
    node = Node(op, values[:1], values[1:], Origin(op.name, 0), Rounding.TFLM)
    found = backend("c").find(node, Request(get("cortex-m4")))
    assert isinstance(found, Refusal)
    assert wanted in found.reason

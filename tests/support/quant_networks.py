"""Float networks for quantization, with data: shared ones and small ones made here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from smelt.codegen.passes import run_passes
from smelt.frontend import InputOptions
from smelt.frontend import load as load_model
from smelt.ir import Array, Graph, Node, Op, Origin, TensorType, Value, evaluate, verify
from smelt.ir.types import DType
from smelt.ops.arithmetic.fixed_point import Activation, dequantize_onnx
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D, Padding2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.concat import Concat
from smelt.quant.convert import store
from smelt.quant.result import sqnr
from smelt.samples import Sample
from tests.support.shared import load, shared


@dataclass(frozen=True)
class Digits:
    """A shared network that classifies handwritten digits, and samples of them."""

    graph: Graph
    calibration: list[Sample]
    test: list[Sample]
    labels: Array


def digits(name: str) -> Digits:
    """Return a network of the shared folder `quant`; skip the test if it is absent."""
    options = InputOptions(dims={"N": 1})
    graph = run_passes(load_model(shared(f"quant/{name}.onnx"), None, options).graph)
    data = load("quant/digits_split.npz")
    images = data["X"].reshape(-1, 1, 1, 8, 8).astype(np.float32)
    return Digits(
        graph,
        [(image,) for image in images[data["calib"]]],
        [(image,) for image in images[data["test"]]],
        data["y"][data["test"]],
    )


def stored_samples(graph: Graph, samples: list[Sample]) -> list[Sample]:
    """Return the samples as the stored integers of a quantized network's inputs."""
    return [
        tuple(
            store(array, value.type.quant) if value.type.quant else array
            for value, array in zip(graph.inputs, sample, strict=True)
        )
        for sample in samples
    ]


def outputs(graph: Graph, samples: list[Sample]) -> Array:
    """Return the first output for every sample in real numbers: float64 `[samples, …]`."""
    quant = graph.outputs[0].type.quant
    found = [evaluate(graph, s).outputs[0] for s in stored_samples(graph, samples)]
    real = [array if quant is None else dequantize_onnx(array, quant) for array in found]
    return np.stack(real).astype(np.float64)


def measured(network: Digits, graph: Graph) -> tuple[float, float]:
    """Return SQNR in dB, and the accuracy lost in percentage points, on the test images."""
    wanted = outputs(network.graph, network.test)
    found = outputs(graph, network.test)
    right = [
        100.0 * float((logits.reshape(len(logits), -1).argmax(axis=1) == network.labels).mean())
        for logits in (wanted, found)
    ]
    noise = float(np.square(wanted - found).sum())
    return sqnr(float(np.square(wanted).sum()), noise), right[0] - right[1]


class Builder:
    """Builder of a float graph, node by node."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []

    def input(self, *shape: int) -> Value:
        """Add another input."""
        value = Value(f"x{len(self.inputs)}", TensorType(shape, DType.FLOAT32))
        self.inputs.append(value)
        return value

    def constant(self, *shape: int, scale: float = 1.0) -> Value:
        """Add a constant of normally distributed numbers."""
        data = (scale * self.rng.normal(size=shape)).astype(np.float32)
        return Value.constant(f"c{len(self.nodes)}_{self.rng.integers(1 << 30)}", data)

    def add(self, op: Op, *inputs: Value) -> Value:
        """Return a node's output."""
        (type_,) = op.infer([v.type for v in inputs])
        value = Value(f"v{len(self.nodes)}", type_)
        self.nodes.append(Node(op, inputs, (value,), Origin(op.name, len(self.nodes))))
        return value

    def graph(self, *results: Value) -> Graph:
        """Return the graph with these outputs."""
        graph = Graph("made", tuple(self.inputs), results, tuple(self.nodes))
        return verify(graph, "building")

    def samples(self, count: int, scale: float = 1.0) -> list[Sample]:
        """Return normally distributed samples."""
        return [
            tuple(
                (scale * self.rng.normal(size=v.type.shape)).astype(np.float32) for v in self.inputs
            )
            for _ in range(count)
        ]


def made(kind: str) -> tuple[Graph, Builder]:
    """Return a network with random weights that preserve the variance of their inputs.

    Args:
        kind: a key of `MADE`.
    """
    make = Builder(sum(map(ord, kind)))
    x = make.input(1, 8, 8, 3)
    features = MADE[kind](_Blocks(make), x)
    mean = make.add(Reduce("mean", (1, 2)), features)
    depth = mean.type.shape[-1]
    weights = make.constant(10, depth, scale=float(np.sqrt(1 / depth)))
    return make.graph(make.add(FullyConnected(), mean, weights, make.constant(10))), make


class _Blocks:
    """Builder of image network parts, with channels of different magnitudes."""

    def __init__(self, make: Builder) -> None:
        self._make = make

    def conv(
        self, x: Value, outputs: int, size: int = 3, activation: Activation = Activation.RELU
    ) -> Value:
        depth = x.type.shape[3]
        weights = self._make.constant(
            outputs, size, size, depth, scale=float(np.sqrt(2 / (size * size * depth)))
        )
        op = Conv2D(padding=_around(size), activation=activation)
        return self._make.add(op, x, self._uneven(weights, 0), self._bias(outputs))

    def depthwise(self, x: Value, activation: Activation = Activation.RELU) -> Value:
        depth = x.type.shape[3]
        weights = self._uneven(self._make.constant(1, 3, 3, depth, scale=0.5), 3)
        op = DepthwiseConv2D(padding=_around(3), activation=activation)
        return self._make.add(op, x, weights, self._bias(depth))

    def add(self, op: Op, *inputs: Value) -> Value:
        return self._make.add(op, *inputs)

    def _uneven(self, weights: Value, axis: int) -> Value:
        shape = [1] * len(weights.type.shape)
        shape[axis] = -1
        factors = 2.0 ** self._make.rng.uniform(-2, 1, weights.type.shape[axis]).reshape(shape)
        return Value.constant(weights.name, (weights.array * factors).astype(np.float32))

    def _bias(self, count: int) -> Value:
        return self._make.constant(count, scale=0.2)


def _around(size: int) -> Padding2D:
    return (size // 2, size // 2), (size // 2, size // 2)


def _inverted(blocks: _Blocks, x: Value) -> Value:
    """Add MobileNetV2's blocks: expansion, ReLU6, linear projection, with a shortcut."""
    x = blocks.conv(x, 12, activation=Activation.RELU6)
    for _ in range(2):
        wide = blocks.conv(x, 36, 1, Activation.RELU6)
        deep = blocks.depthwise(wide, Activation.RELU6)
        x = blocks.add(Binary("add"), x, blocks.conv(deep, 12, 1, Activation.NONE))
    return blocks.conv(x, 24, 1, Activation.RELU6)


def _excited(blocks: _Blocks, x: Value) -> Value:
    """Add squeeze-and-excite, with hard-swish."""
    for outputs in (16, 24):
        x = blocks.add(Unary("hard_swish"), blocks.conv(x, outputs, activation=Activation.NONE))
        mean = blocks.add(Reduce("mean", (1, 2), keep_dims=True), x)
        small = blocks.conv(mean, 6, 1)
        gate = blocks.add(Unary("logistic"), blocks.conv(small, outputs, 1, Activation.NONE))
        x = blocks.add(Binary("mul"), x, gate)
    return x


def _residual(blocks: _Blocks, x: Value) -> Value:
    x = blocks.conv(x, 16)
    for _ in range(3):
        inner = blocks.conv(blocks.conv(x, 16), 16, activation=Activation.NONE)
        x = blocks.add(Binary("add", Activation.RELU), x, inner)
    return x


def _fire(blocks: _Blocks, x: Value) -> Value:
    """Add branches that are concatenated, leaky ReLU, and pooling."""
    x = blocks.add(Pool2D("max", (2, 2), (2, 2)), blocks.conv(x, 16))
    for _ in range(2):
        narrow = blocks.conv(x, 8, 1)
        both = (blocks.conv(narrow, 12, size, Activation.NONE) for size in (1, 3))
        x = blocks.add(Unary("leaky_relu", 0.1), blocks.add(Concat(3), *both))
    return x


def _separable(blocks: _Blocks, x: Value) -> Value:
    x = blocks.conv(x, 16)
    for outputs in (16, 24, 32):
        x = blocks.conv(blocks.depthwise(x), outputs, 1)
    return x


MADE: dict[str, Callable[[_Blocks, Value], Value]] = {
    "inverted": _inverted,
    "excited": _excited,
    "residual": _residual,
    "fire": _fire,
    "separable": _separable,
}
"""Kinds of image networks."""

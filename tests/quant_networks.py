"""Float networks to quantize, with data: the shared ones and small ones made here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.passes import run_passes
from smelt.frontend import InputOptions
from smelt.frontend import load as load_model
from smelt.ir import Array, Graph, Node, Op, Origin, TensorType, Value, evaluate, verify
from smelt.ir.types import DType
from smelt.ops.fixed_point import dequantize_onnx
from smelt.quant.convert import store
from smelt.quant.observation import Sample
from smelt.quant.quantized import sqnr
from tests.shared import load, shared


@dataclass(frozen=True)
class Digits:
    """A shared network that tells handwritten digits, and samples of them."""

    graph: Graph
    calibration: list[Sample]
    test: list[Sample]
    labels: Array


def digits(name: str) -> Digits:
    """A network of the shared folder `quant`; skips the test where it is absent."""
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
    """Samples as a quantized network takes them."""
    return [
        tuple(
            store(array, value.type.quant) if value.type.quant else array
            for value, array in zip(graph.inputs, sample, strict=True)
        )
        for sample in samples
    ]


def outputs(graph: Graph, samples: list[Sample]) -> Array:
    """The first output for every sample, in real numbers: float64 `[samples, …]`."""
    quant = graph.outputs[0].type.quant
    found = [evaluate(graph, s).outputs[0] for s in stored_samples(graph, samples)]
    real = [array if quant is None else dequantize_onnx(array, quant) for array in found]
    return np.stack(real).astype(np.float64)


def measured(network: Digits, graph: Graph) -> tuple[float, float]:
    """SQNR in dB and the accuracy lost in points, on the test images."""
    wanted = outputs(network.graph, network.test)
    found = outputs(graph, network.test)
    right = [
        100.0 * float((logits.reshape(len(logits), -1).argmax(axis=1) == network.labels).mean())
        for logits in (wanted, found)
    ]
    noise = float(np.square(wanted - found).sum())
    return sqnr(float(np.square(wanted).sum()), noise), right[0] - right[1]


class Builder:
    """Makes a float graph, node by node."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []

    def input(self, *shape: int) -> Value:
        """Another input."""
        value = Value(f"x{len(self.inputs)}", TensorType(shape, DType.FLOAT32))
        self.inputs.append(value)
        return value

    def constant(self, *shape: int, scale: float = 1.0) -> Value:
        """A constant of normally distributed numbers."""
        data = (scale * self.rng.normal(size=shape)).astype(np.float32)
        return Value.constant(f"c{len(self.nodes)}_{self.rng.integers(1 << 30)}", data)

    def add(self, op: Op, *inputs: Value) -> Value:
        """A node's output."""
        (type_,) = op.infer([v.type for v in inputs])
        value = Value(f"v{len(self.nodes)}", type_)
        self.nodes.append(Node(op, inputs, (value,), Origin(op.name, len(self.nodes))))
        return value

    def graph(self, *results: Value) -> Graph:
        """The graph with these outputs."""
        graph = Graph("made", tuple(self.inputs), results, tuple(self.nodes))
        return verify(graph, "building")

    def samples(self, count: int, scale: float = 1.0) -> list[Sample]:
        """Normally distributed samples."""
        return [
            tuple(
                (scale * self.rng.normal(size=v.type.shape)).astype(np.float32) for v in self.inputs
            )
            for _ in range(count)
        ]

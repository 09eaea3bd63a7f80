"""Synthetic float networks, their quantization by onnxruntime's tools, and comparisons."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from bench.onnx_models import graph, model, node, session
from smelt.ir import Array

Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Scheme:
    """Format, types and granularity of a quantization."""

    format: QuantFormat
    activations: QuantType
    weights: QuantType
    per_channel: bool

    def __str__(self) -> str:
        channels = "channels" if self.per_channel else "tensor"
        return f"{self.format}-{self.activations}-{self.weights}-{channels}"

    @property
    def is_qdq(self) -> bool:
        """Whether operators are between DequantizeLinear and QuantizeLinear."""
        return self.format is QuantFormat.QDQ


SCHEMES = [
    Scheme(format_, *types, per_channel)
    for format_, types, per_channel in product(
        (QuantFormat.QDQ, QuantFormat.QOperator),
        (
            (QuantType.QInt8, QuantType.QInt8),
            (QuantType.QUInt8, QuantType.QInt8),
            (QuantType.QUInt8, QuantType.QUInt8),
        ),
        (False, True),
    )
]


class _Reader(CalibrationDataReader):
    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self._feeds: Iterator[Feeds] = iter(feeds)

    def get_next(self) -> dict[str, Array] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        feed = next(self._feeds, None)
        return None if feed is None else dict(feed)


def quantize(
    proto: onnx.ModelProto, scheme: Scheme, feeds: Sequence[Feeds], folder: Path
) -> onnx.ModelProto:
    """Return the network quantized by onnxruntime, calibrated on `feeds`."""
    logging.getLogger().setLevel(logging.ERROR)
    onnx.save(proto, folder / "float.onnx")
    quantize_static(
        folder / "float.onnx",
        folder / "quantized.onnx",
        _Reader(feeds),
        quant_format=scheme.format,
        activation_type=scheme.activations,
        weight_type=scheme.weights,
        per_channel=scheme.per_channel,
    )
    return onnx.load(folder / "quantized.onnx")


def steps(proto: onnx.ModelProto) -> list[float]:
    """Return the scale of each output, which is that of the DequantizeLinear that produces it."""
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    makers = {name: step for step in proto.graph.node for name in step.output}
    return [float(arrays[makers[output.name].input[1]].item()) for output in proto.graph.output]


@dataclass(frozen=True)
class Departures:
    """How outputs differ from onnxruntime's.

    Attributes:
        elements: Number of elements of the outputs.
        differ: Number of elements that differ.
        largest: Largest difference, in steps of the output's scale.
    """

    elements: int = 0
    differ: int = 0
    largest: int = 0

    def __add__(self, other: Departures) -> Departures:
        return Departures(
            self.elements + other.elements,
            self.differ + other.differ,
            max(self.largest, other.largest),
        )

    @property
    def share(self) -> float:
        """Fraction of the elements that differ."""
        return self.differ / max(self.elements, 1)


def departures(
    proto: onnx.ModelProto, feeds: Sequence[Feeds], outputs: Sequence[Sequence[Array]]
) -> Departures:
    """Compare outputs for `feeds` with those of onnxruntime without optimizations."""
    runtime, scales = session(proto), steps(proto)
    total = Departures()
    for feed, found in zip(feeds, outputs, strict=True):
        for ours, theirs, scale in zip(found, runtime.run(None, dict(feed)), scales, strict=True):
            apart = np.rint(np.abs(np.float64(ours) - theirs) / scale)
            total += Departures(apart.size, int((apart > 0).sum()), int(apart.max(initial=0)))
    return total


def samples(shape: Sequence[int], count: int, seed: int) -> list[Feeds]:
    """Return random inputs named `x`."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.uniform(-1, 1, shape).astype(np.float32)} for _ in range(count)]


def image_network(seed: int = 0) -> onnx.ModelProto:
    """Return a network of typical image layers, from `x[1,3,16,16]` to three outputs."""
    rng = np.random.default_rng(seed)
    constants: dict[str, Array] = {
        "low": np.asarray(0, np.float32),
        "high": np.asarray(6, np.float32),
    }
    channels = {"x": 3}

    def conv(
        x: str, y: str, outputs: int, size: int, groups: int = 1, stride: int = 1
    ) -> onnx.NodeProto:
        shape = outputs, channels[x] // groups, size, size
        deviation = np.prod(shape[1:]) ** -0.5
        constants[f"{y}_w"] = (rng.standard_normal(shape) * deviation).astype(np.float32)
        constants[f"{y}_b"] = rng.uniform(-0.3, 0.3, outputs).astype(np.float32)
        channels[y] = outputs
        pads = [size // 2] * 4
        strides = [stride, stride]
        return node("Conv", f"{x} {y}_w {y}_b", y, pads=pads, strides=strides, group=groups)

    channels |= {"r1": 8, "r2": 8, "m": 8, "k": 24}
    nodes = [
        conv("x", "c1", 8, 3, stride=2),
        node("Relu", "c1", "r1"),
        conv("r1", "c2", 8, 3, groups=8),
        node("Clip", "c2 low high", "r2"),
        conv("r2", "c3", 8, 1),
        node("Add", "c3 r1", "a"),
        node("Relu", "a", "r3"),
        node("MaxPool", "r3", "m", kernel_shape=[2, 2], strides=[2, 2]),
        conv("m", "c4", 16, 3),
        node("Sigmoid", "c4", "g"),
        node("LeakyRelu", "c4", "l", alpha=0.1),
        node("Mul", "l g", "h"),
        conv("m", "c5", 8, 3, groups=2),
        node("Concat", "h c5", "k", axis=1),
        node("GlobalAveragePool", "k", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f w b", "y", transB=1),
    ]
    constants["w"] = (rng.standard_normal((10, 24)) / 5).astype(np.float32)
    constants["b"] = rng.uniform(-0.1, 0.1, 10).astype(np.float32)
    return model(graph(nodes, {"x": (1, 3, 16, 16)}, "r3 k y", constants), 17)


def dense_network(seed: int = 0) -> onnx.ModelProto:
    """Return a network of matrix products, a bias, tanh and hard-swish, with input `x[4,20]`."""
    rng = np.random.default_rng(seed)
    constants = {
        "w1": (rng.standard_normal((20, 33)) / 4).astype(np.float32),
        "b1": rng.uniform(-0.3, 0.3, 33).astype(np.float32),
        "w2": (rng.standard_normal((33, 17)) / 5).astype(np.float32),
        "w3": (rng.standard_normal((17, 6)) / 3).astype(np.float32),
    }
    nodes = [
        node("MatMul", "x w1", "p"),
        node("Add", "p b1", "q"),
        node("Tanh", "q", "t"),
        node("MatMul", "t w2", "u"),
        node("HardSwish", "u", "h"),
        node("MatMul", "h w3", "y"),
    ]
    return model(graph(nodes, {"x": (4, 20)}, "y", constants), 17)

"""Architectures that papers about networks in little RAM measure, with random weights.

The layers are those of MobileNetV2 (Sandler et al. 2018; as in MCUNet's model zoo, all numbers of
channels are scaled and are multiples of 8) and of MCUNet's networks (Lin et al. 2020), with their
residual additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from bench import records
from bench.ram import FASTEST, InferenceInRam, limit_name, measure, show
from smelt.frontend import Imported
from smelt.ir import DType, Graph, Node, Op, Origin, Quant, Rounding, TensorType, Value, verify
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.pool import Pool2D
from smelt.ops.tensor.reshape import Reshape


@dataclass(frozen=True)
class InvertedBottleneck:
    """A 1x1 convolution, a depthwise one and another 1x1 one, with a residual addition if possible.

    Attributes:
        outputs: Channels of the result.
        expansion: Channels of the depthwise convolution, as a multiple of the operand's. There is
            no first convolution if it is 1.
        stride: Rows and columns from one window of the depthwise convolution to the next.
        kernel: Rows and columns of its window.
    """

    outputs: int
    expansion: int
    stride: int = 1
    kernel: int = 3


@dataclass(frozen=True)
class Architecture:
    """A network: a 3x3 convolution with stride 2, blocks, and a classifier.

    Attributes:
        title: Its name in documents.
        size: Rows and columns of the input, which has three channels.
        stem: Channels of the first convolution.
        blocks: What follows.
        head: Channels of a last 1x1 convolution; 0 if there is none.
        classes: Outputs of the dense layer behind the average of each channel.
    """

    title: str
    size: int
    stem: int
    blocks: tuple[InvertedBottleneck, ...]
    head: int
    classes: int


def _repeated(outputs: int, count: int, stride: int) -> tuple[InvertedBottleneck, ...]:
    first = InvertedBottleneck(outputs, 6, stride)
    return (first, *(InvertedBottleneck(outputs, 6) for _ in range(count - 1)))


_B = InvertedBottleneck

ARCHITECTURES = {
    "mbv2": Architecture(
        "MobileNetV2 0.35, 144 px", 144, 16,
        (
            _B(8, 1), *_repeated(8, 2, 2), *_repeated(16, 3, 2), *_repeated(24, 4, 2),
            *_repeated(32, 3, 1), *_repeated(56, 3, 2), *_repeated(112, 1, 1),
        ),
        448, 1000,
    ),
    "vww5": Architecture(
        "MCUNet vww5, 80 px", 80, 16,
        (
            _B(8, 1), _B(16, 6, 2), _B(16, 3), _B(16, 3), _B(24, 3, 2, 7), _B(24, 6),
            _B(24, 5, 1, 5), _B(40, 6, 2, 7), _B(40, 6, 1, 7), _B(48, 6), _B(48, 4),
            _B(96, 5, 2, 5), _B(96, 5), _B(96, 4), _B(160, 3, 1, 7),
        ),
        0, 2,
    ),
    "imagenet_320k": Architecture(
        "MCUNet 320K, 176 px", 176, 16,
        (
            _B(8, 1), _B(16, 3, 2, 7), _B(16, 5), _B(16, 5, 1, 7), _B(16, 4, 1, 5),
            _B(24, 5, 2, 5), _B(24, 5, 1, 5), _B(24, 5, 1, 5), _B(40, 5, 2), _B(40, 6, 1, 7),
            _B(40, 4, 1, 5), _B(48, 5, 1, 5), _B(48, 5, 1, 7), _B(48, 5), _B(96, 6, 2),
            _B(96, 5, 1, 7), _B(96, 4), _B(160, 5, 1, 7),
        ),
        0, 1000,
    ),
}  # fmt: skip
"""The architectures by name."""


class _Builder:
    """Appends int8 layers with random weights; no channel is constant."""

    def __init__(self, size: int) -> None:
        self.rng = np.random.default_rng(0)
        self.input = Value("x", TensorType((1, size, size, 3), DType.INT8, _CLAMPED))
        self.nodes: list[Node] = []

    def convolution(self, x: Value, outputs: int, kernel: int, stride: int, clamps: bool) -> Value:
        weights = self._weights((outputs, kernel, kernel, x.type.shape[3]), 0)
        padding = _padding(x.type.shape[1], kernel, stride)
        op = Conv2D((stride, stride), (padding, padding), activation=_clamp(clamps))
        return self._add(op, (x, weights, self._bias(outputs)), _quant(clamps))

    def depthwise(self, x: Value, kernel: int, stride: int) -> Value:
        channels = x.type.shape[3]
        weights = self._weights((1, kernel, kernel, channels), 3)
        padding = _padding(x.type.shape[1], kernel, stride)
        op = DepthwiseConv2D((stride, stride), (padding, padding), activation=_clamp(True))
        return self._add(op, (x, weights, self._bias(channels)), _CLAMPED)

    def bottleneck(self, x: Value, block: InvertedBottleneck) -> Value:
        channels = x.type.shape[3]
        y = x
        if block.expansion != 1:
            y = self.convolution(y, channels * block.expansion, 1, 1, clamps=True)
        y = self.depthwise(y, block.kernel, block.stride)
        y = self.convolution(y, block.outputs, 1, 1, clamps=False)
        if block.stride != 1 or block.outputs != channels:
            return y
        return self._add(Binary("add"), (x, y), _LINEAR)

    def classifier(self, x: Value, classes: int) -> Value:
        _, height, width, channels = x.type.shape
        x = self._add(Pool2D("average", (height, width)), (x,), x.type.quant)
        x = self._add(Reshape((1, channels)), (x,), x.type.quant)
        weights = self._weights((classes, channels), None)
        return self._add(FullyConnected(), (x, weights, self._bias(classes)), _LINEAR)

    def _weights(self, shape: tuple[int, ...], axis: int | None) -> Value:
        signs = self.rng.choice(np.array([-1, 1], np.int8), shape)
        data = self.rng.integers(1, 128, shape).astype(np.int8) * signs
        count = 1 if axis is None else shape[axis]
        products = data.size // (shape[0] if axis is None else count)
        scale = float(np.float32(0.7 / (74 * products**0.5)))
        return Value.constant(
            f"w{len(self.nodes)}", data, Quant((scale,) * count, (0,) * count, axis)
        )

    def _bias(self, count: int) -> Value:
        data = self.rng.integers(-4000, 4000, count).astype(np.int32)
        return Value.constant(f"b{len(self.nodes)}", data)

    def _add(self, op: Op, inputs: Sequence[Value], quant: Quant | None) -> Value:
        index = len(self.nodes)
        (inferred,) = op.infer([value.type for value in inputs])
        result = Value(f"v{index}", TensorType(inferred.shape, DType.INT8, quant))
        origin = Origin(op.name, index, result.name)
        self.nodes.append(Node(op, tuple(inputs), (result,), origin, Rounding.TFLM))
        return result


_CLAMPED = Quant.per_tensor(6 / 255, -128)
_LINEAR = Quant.per_tensor(8 / 255, 0)


def _quant(clamps: bool) -> Quant:
    return _CLAMPED if clamps else _LINEAR


def _clamp(clamps: bool) -> Activation:
    return Activation.RELU6 if clamps else Activation.NONE


def _padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the padding before and after, with which there are `size / stride` windows."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def network(name: str) -> Graph:
    """Build an architecture of `ARCHITECTURES` with random weights, always the same."""
    wanted = ARCHITECTURES[name]
    builder = _Builder(wanted.size)
    x = builder.convolution(builder.input, wanted.stem, 3, 2, clamps=True)
    for block in wanted.blocks:
        x = builder.bottleneck(x, block)
    if wanted.head:
        x = builder.convolution(x, wanted.head, 1, 1, clamps=True)
    x = builder.classifier(x, wanted.classes)
    return verify(Graph(name, (builder.input,), (x,), tuple(builder.nodes)), "building")


RUNS = ((False, FASTEST), (False, None), (False, 0), (True, None), (True, 0))
"""Whether the input is streamed, and the limit; see `InferenceInRam`."""


@dataclass(frozen=True)
class PublishedFigure:
    """What another engine needs for the layers of an architecture, according to its authors.

    Attributes:
        network: Name of the architecture.
        engine: The engine, and its setting.
        ram: Bytes.
        macs: Multiply-accumulates, as a multiple of those of the layers.
        source: Where the figure is published.
    """

    network: str
    engine: str
    ram: int
    macs: float
    source: str


_ZOO = "MCUNet's model zoo (mit-han-lab/mcunet, 9c164f84)"
_MSF = "TinyPART/msf-CNN fd74a7c8, arXiv 2505.11483"

FIGURES = (
    PublishedFigure("mbv2", "TinyEngine", 308_000, 1.0, _ZOO),
    PublishedFigure("mbv2", "msf-CNN, no fusion", 194_400, 1.0, _MSF),
    PublishedFigure("mbv2", "msf-CNN, ≤ 1.1 × MACs", 67_996, 1.097, _MSF),
    PublishedFigure("mbv2", "msf-CNN, ≤ 1.3 × MACs", 21_389, 1.298, _MSF),
    PublishedFigure("mbv2", "msf-CNN, ≤ 1.4 × MACs", 15_199, 1.382, _MSF),
    PublishedFigure("mbv2", "msf-CNN, least RAM", 8_560, 1.679, _MSF),
    PublishedFigure("vww5", "TinyEngine", 162_000, 1.0, _ZOO),
    PublishedFigure("vww5", "msf-CNN, no fusion", 96_000, 1.0, _MSF),
    PublishedFigure("vww5", "msf-CNN, ≤ 1.1 × MACs", 45_283, 1.039, _MSF),
    PublishedFigure("vww5", "msf-CNN, ≤ 1.2 × MACs", 26_240, 1.113, _MSF),
    PublishedFigure("vww5", "msf-CNN, ≤ 1.4 × MACs", 17_904, 1.345, _MSF),
    PublishedFigure("vww5", "msf-CNN, least RAM", 15_368, 1.957, _MSF),
    PublishedFigure("imagenet_320k", "TinyEngine", 293_000, 1.0, _ZOO),
    PublishedFigure("imagenet_320k", "msf-CNN, no fusion", 309_760, 1.0, _MSF),
    PublishedFigure("imagenet_320k", "msf-CNN, ≤ 1.4 × MACs", 156_864, 1.369, _MSF),
    PublishedFigure("imagenet_320k", "msf-CNN, ≤ 1.5 × MACs", 94_224, 1.455, _MSF),
    PublishedFigure("imagenet_320k", "msf-CNN, least RAM", 51_164, 2.695, _MSF),
)
"""Figures of other engines. msf-CNN's are `peak_mem_usage` and `Overhead Factor` of the files
`msf_CNN_eval_models/*/result.json`; those without fusion are what their analysis of the layers
says. MCUNet's model zoo gives kilobytes of SRAM."""


def main(*, write: records.WriteOption = False, note: records.NoteOption = "") -> None:
    """Measure RAM and instructions of published architectures with random weights on an M4."""
    console = Console(width=120)
    rows: list[InferenceInRam] = []
    for name in ARCHITECTURES:
        for streams, limit in RUNS:
            with console.status(f"{name}: {limit_name(limit)}"):
                rows.append(measure(Imported(network(name)), name, limit, streams=streams))
    show(console, rows, "published", note, write=write)

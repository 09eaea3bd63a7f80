"""Random networks of convolutions, pools, sums and concatenations, and random segments of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

import numpy as np

from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.segments.bands import BandNodes, RowBands, bands_of, segment_of
from smelt.codegen.segments.chains import chains_of
from smelt.codegen.segments.turns import Turns
from smelt.ir import DType, Graph, Node, Op, Origin, Quant, Rounding, TensorType, Value, verify
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D, Padding2D, window_output
from smelt.ops.core.pool import Pool2D
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.slice import Slice

_QUANT = Quant.per_tensor(0.05)


class RandomNetwork:
    """Builds one random network of images in channels-last layout."""

    def __init__(self, seed: int, *, channels: int = 1) -> None:
        """Set up; all numbers of channels are multiples of `channels`."""
        self._rng = np.random.default_rng(seed)
        self._unit = channels
        height, width = int(self._rng.integers(9, 26)), int(self._rng.integers(3, 8))
        self._input = self._image("x", height, width, self._channels())
        self._nodes: list[Node] = []

    def graph(self, layers: int, *, pooled: bool = False) -> Graph:
        """Return a network with about this many layers; `pooled`: with an average at the end."""
        x = self._input
        for _ in range(layers):
            x = self._block(x)
        if pooled:
            x = self._average(x)
        return verify(Graph("net", (self._input,), (x,), tuple(self._nodes)), "building")

    def chain(self, layers: int, *, strided: bool = False) -> Graph:
        """Return a chain of convolutions with windows of three rows, and padding on both sides.

        If `strided`, the second one computes every second row of its result only.
        """
        x = self._input
        for i in range(layers):
            _, h, w, c = x.type.shape
            weights = self._weights((c, 3, 3, c), c, 0)
            op = Conv2D((2, 1) if strided and i == 1 else (1, 1), ((1, 1), (1, 1)))
            x = self._add(op, (x, weights, self._bias(c)), (-(-h // op.stride[0]), w, c))
        return verify(Graph("net", (self._input,), (x,), tuple(self._nodes)), "building")

    def with_wide_rows(self) -> Graph:
        """Return a depthwise convolution between two 1x1 convolutions, of images of 88x88."""
        self._input = x = self._image("x", 88, 88, 8)
        weights = self._weights((24, 1, 1, 8), 24, 0)
        x = self._add(Conv2D(), (x, weights, self._bias(24)), (88, 88, 24))
        weights = self._weights((1, 3, 3, 24), 24, 3)
        depthwise = DepthwiseConv2D((2, 2), ((1, 1), (1, 1)))
        x = self._add(depthwise, (x, weights, self._bias(24)), (44, 44, 24))
        weights = self._weights((8, 1, 1, 24), 8, 0)
        x = self._add(Conv2D(), (x, weights, self._bias(8)), (44, 44, 8))
        return verify(Graph("net", (self._input,), (x,), tuple(self._nodes)), "building")

    def with_unread_rows(self) -> Graph:
        """Return a convolution of 17 rows, of which a maximum reads 16."""
        x = self._input = self._image("x", 17, 6, 4)
        x = self._conv(x, 4, size=(1, 1))
        x = self._add(Pool2D("max", (2, 2), (2, 2)), (x,), (8, 3, 4))
        return verify(Graph("net", (self._input,), (x,), tuple(self._nodes)), "building")

    def split(self, side: int) -> Graph:
        """Return a square image whose channels are split; one half is convolved, then both join."""
        channels = 8
        x = self._input = self._image("x", side, side, channels)
        y = self._conv(x, 2 * channels, size=(1, 1))
        shape = side, side, channels
        halves = [
            self._add(Slice((0, 0, 0, first), (1, *shape), (1,) * 4), (y,), shape)
            for first in (0, channels)
        ]
        halves[0] = self._conv(halves[0], channels, same=True)
        z = self._add(Concat(3), tuple(halves), (side, side, 2 * channels))
        z = self._average(self._conv(z, 4, size=(1, 1)))
        return verify(Graph("net", (self._input,), (z,), tuple(self._nodes)), "building")

    def small(self, height: int) -> Graph:
        """Return two convolutions of an image with one column."""
        x = self._input = self._image("x", height, 1, 3)
        x = self._conv(self._conv(x, 4, same=True), 4, same=True)
        return verify(Graph("net", (self._input,), (x,), tuple(self._nodes)), "building")

    def separable(self, layers: int) -> Graph:
        """Return pairs of a depthwise and a 1x1 convolution, then an average of the whole image."""
        x = self._conv(self._input, 4 * self._unit, same=True)
        for _ in range(layers):
            x = self._depthwise(x, same=self._rng.random() < 0.7)
            fewer = max(x.type.shape[3] - 4 * int(self._rng.integers(0, 2)), 4)
            x = self._conv(x, fewer, size=(1, 1))
        x = self._average(x)
        return verify(Graph("net", (self._input,), (x,), tuple(self._nodes)), "building")

    def _average(self, x: Value) -> Value:
        """Add the average of the whole image."""
        activation = (Activation.NONE, Activation.RELU, Activation.RELU6)[self._rng.integers(3)]
        op = Pool2D("average", _size(x), activation=activation)
        return self._add(op, (x,), (1, 1, x.type.shape[3]))

    def _channels(self) -> int:
        return self._unit * int(self._rng.integers(1, 4))

    def _image(self, name: str, *shape: int) -> Value:
        return Value(name, TensorType((1, *shape), DType.INT8, _QUANT))

    def _add(self, op: Op, inputs: Sequence[Value | None], shape: Sequence[int]) -> Value:
        index = len(self._nodes)
        result = self._image(f"v{index}", *shape)
        origin = Origin(op.name, index, result.name)
        self._nodes.append(Node(op, tuple(inputs), (result,), origin, Rounding.TFLM))
        return result

    def _block(self, x: Value) -> Value:
        kind = self._rng.choice(["conv", "depthwise", "pool", "residual", "concat"], p=_CHANCES)
        match kind:
            case "conv":
                return self._conv(x)
            case "depthwise":
                return self._depthwise(x)
            case "pool":
                return self._pool(x)
            case "residual":
                y = self._conv(self._depthwise(x, same=True), x.type.shape[3], same=True)
                return self._add(Binary("add"), (x, y), x.type.shape[1:])
            case _:
                y = self._conv(x, same=True)
                _, h, w, c = x.type.shape
                return self._add(Concat(3), (x, y), (h, w, c + y.type.shape[3]))

    def _window(self, x: Value, *, same: bool) -> tuple[tuple[int, int], Op]:
        """Return a window that fits, with stride, padding and dilation."""
        rng, (_, h, w, _) = self._rng, x.type.shape
        while True:
            size = int(rng.choice([1, 2, 3, 5, 7])), int(rng.choice([1, 3]))
            dilation = int(rng.choice([1, 1, 1, 2])), 1
            reach = (size[0] - 1) * dilation[0]
            if same:
                stride, top = (1, 1), reach // 2
                rows = top, reach - top
                columns = (size[1] - 1) // 2, size[1] - 1 - (size[1] - 1) // 2
            else:
                stride = int(rng.choice([1, 1, 2, 3])), int(rng.choice([1, 2]))
                most = min(reach, 5)
                rows = int(rng.integers(0, most + 1)), int(rng.integers(0, most + 1))
                columns = (size[1] - 1, 0) if rng.random() < 0.3 else (0, size[1] - 1)
            padding: Padding2D = rows, columns
            if h + sum(rows) <= reach or w + sum(columns) < size[1]:
                continue
            height, _ = window_output((h, w), size, stride, padding, dilation)
            if height >= 4 or h < 6:
                return size, Conv2D(stride, padding, dilation)

    def _weights(self, shape: Sequence[int], outputs: int, axis: int) -> Value:
        data = self._rng.integers(-60, 61, shape).astype(np.int8)
        scales = tuple(float(s) for s in self._rng.uniform(0.001, 0.004, outputs))
        return Value.constant(f"w{len(self._nodes)}", data, Quant(scales, (0,) * outputs, axis))

    def _bias(self, count: int) -> Value:
        data = self._rng.integers(-400, 400, count).astype(np.int32)
        return Value.constant(f"b{len(self._nodes)}", data)

    def _conv(
        self,
        x: Value,
        outputs: int | None = None,
        *,
        same: bool = False,
        size: tuple[int, int] | None = None,
    ) -> Value:
        size, op = self._window(x, same=same) if size is None else (size, Conv2D())
        assert isinstance(op, Conv2D)
        count = outputs or self._channels()
        weights = self._weights((count, *size, x.type.shape[3]), count, 0)
        shape = window_output(_size(x), size, op.stride, op.padding, op.dilation)
        return self._add(op, (x, weights, self._bias(count)), (*shape, count))

    def _depthwise(self, x: Value, *, same: bool = False) -> Value:
        size, op = self._window(x, same=same)
        assert isinstance(op, Conv2D)
        count = x.type.shape[3]
        weights = self._weights((1, *size, count), count, 3)
        shape = window_output(_size(x), size, op.stride, op.padding, op.dilation)
        depthwise = DepthwiseConv2D(op.stride, op.padding, op.dilation)
        return self._add(depthwise, (x, weights, self._bias(count)), (*shape, count))

    def _pool(self, x: Value) -> Value:
        kind = str(self._rng.choice(["max", "average"]))
        h, w = x.type.shape[1:3]
        size = int(self._rng.integers(2, 4)), min(2, w)
        stride = int(self._rng.integers(1, size[0] + 1)), 1
        top = int(self._rng.integers(0, 2))
        padding: Padding2D = (top, 1 - top), (0, 0)
        if h < 8:
            stride = 1, 1
        shape = window_output((h, w), size, stride, padding)
        return self._add(Pool2D(kind, size, stride, padding), (x,), (*shape, x.type.shape[3]))


def _size(x: Value) -> tuple[int, int]:
    """Return height and width of an image."""
    _, height, width, _ = x.type.shape
    return height, width


def in_place(partitioner: Partitioner) -> Callable[[Node], bool]:
    """Return whether the kernel that is chosen for a node may overwrite its operand."""
    return lambda node: (0, 0) in partitioner.choose(node).taken.call.in_place


def chained(bands: RowBands, nodes: BandNodes, overwrites: Callable[[Node], bool]) -> Turns:
    """Return the turns of a segment with all its chains."""
    chains = chains_of(bands, partial(_overwrites, bands, nodes, overwrites))
    return Turns(bands, nodes, chains=chains)


def _overwrites(
    bands: RowBands, nodes: BandNodes, overwrites: Callable[[Node], bool], node: Node, made: range
) -> bool:
    band_node = nodes.of(bands.segment, node, made, bands.read(node, made))
    return band_node is not None and overwrites(band_node)


_CHANCES = (0.3, 0.25, 0.15, 0.2, 0.1)


def chain(*, strided: bool = False) -> Graph:
    """Return four convolutions of three by three pixels with usual padding; see above."""
    return RandomNetwork(0).chain(4, strided=strided)


def random_segments(
    graph: Graph,
    rng: np.random.Generator,
    word: int = 1,
    overwrites: Callable[[Node], bool] = lambda _: False,
) -> tuple[Turns, ...]:
    """Return random segments that cover as much of a graph as they can.

    Args:
        graph: The network.
        rng: Chooses lengths, rows, the order of rows, which tensors are moved, and whether the
            rows that bands keep are spilled.
        word: The bytes of which rows must be a multiple.
        overwrites: Whether the kernel of a node that computes a few rows may overwrite its operand.
            Some chains of such nodes are built.
    """
    nodes, found, start = BandNodes(), list[Turns](), 0
    made: set[Value] = set()
    while start < len(graph.nodes):
        lengths = rng.permutation(np.arange(1, 7))
        end = start + 1
        for length in (int(n) for n in lengths if start + n <= len(graph.nodes)):
            segment = segment_of(graph, graph.nodes[start : start + length])
            if segment is None:
                continue
            values = {v for n in segment.nodes for v in (*segment.operands(n), n.output)}
            if any(segment.row_bytes(value) % word for value in values):
                continue
            if rng.random() < 0.5:
                segment = segment.mirrored()
            rows = Fraction(int(rng.integers(1, 5)))
            bands = bands_of(segment, 1 / rows if rng.random() < 0.3 else rows)
            if bands is None:
                continue
            last = {v: i for i, n in enumerate(graph.nodes) for v in n.inputs if v is not None}
            ended = [v for v in values & made if last[v] < start + length]
            moved = sorted(ended, key=lambda v: v.name) if rng.random() < 0.5 else []
            early, spilled = (
                {n.output for n in segment.nodes if rng.random() < 0.4} & segment.banded
                for _ in range(2)
            )
            chains = chains_of(bands, partial(_overwrites, bands, nodes, overwrites))
            if rng.random() < 0.3:
                chains = ()
            found.append(Turns(bands, nodes, moved, early, spilled, chains))
            end = start + length
            break
        made |= {node.output for node in graph.nodes[start:end]}
        start = end
    return tuple(found)

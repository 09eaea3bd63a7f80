"""Random one-node int8 graphs of the operators that kernel libraries serve.

Shapes are small, odd and at limits. About half of the weights, biases and multipliers are extreme.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from smelt.ir import DType, Graph, Node, Op, Origin, Quant, Rounding, TensorType, Value, verify
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.softmax import Softmax
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.transpose import Transpose
from smelt.samples import Sample

Rng = np.random.Generator
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 20, 33, 37)
WIDE = (124, 125, 130)
"""Numbers of channels around the block size of MVE depthwise convolutions."""


def random_graph(rng: Rng) -> Graph:
    """Return a random graph of one node."""
    while True:
        make = _MAKERS[rng.integers(len(_MAKERS))]
        graph = make(rng)
        if graph is not None:
            return graph


def samples_of(graph: Graph, rng: Rng) -> list[Sample]:
    """Return inputs: random, all extreme, or extreme at random elements."""
    shapes = [value.type.shape for value in graph.inputs]
    ends = np.array([-128, 127], np.int8)
    return [
        tuple(rng.integers(-128, 128, shape).astype(np.int8) for shape in shapes),
        tuple(np.full(shape, ends[i % 2]) for i, shape in enumerate(shapes)),
        tuple(np.full(shape, ends[1 - i % 2]) for i, shape in enumerate(shapes)),
        tuple(rng.choice(ends, shape) for shape in shapes),
    ]


def graph_of(
    op: Op, inputs: list[Value | None], quant: Quant | None, rounding: Rounding | None = None
) -> Graph:
    """Return the graph of one node whose output has a quantization."""
    (inferred,) = op.infer([None if v is None else v.type for v in inputs])
    output = Value("y", TensorType(inferred.shape, inferred.dtype, quant))
    node = Node(op, tuple(inputs), (output,), Origin(op.name, 0), rounding or Rounding.TFLM)
    fed = tuple(v for v in inputs if v is not None and not v.is_constant)
    return verify(Graph("one", fed, (output,), (node,)), str(op))


def data(name: str, shape: tuple[int, ...], rng: Rng, scale: float = 0.5) -> Value:
    """Return an input with a random zero point."""
    return Value(name, TensorType(shape, DType.INT8, Quant.per_tensor(scale, _zero_point(rng))))


def _zero_point(rng: Rng) -> int:
    return int(rng.choice([-128, 127, 0, int(rng.integers(-128, 128))]))


def _activation(rng: Rng) -> Activation:
    return [Activation.NONE, Activation.RELU, Activation.RELU6][rng.integers(3)]


def _one_of(rng: Rng, *options: int) -> int:
    return int(rng.choice(options))


def products(
    op: Op, x: Value, weights: tuple[int, ...], axis: int | None, rng: Rng, *, bias: bool = True
) -> Graph:
    """Return a node with constant weights whose outputs exceed their range, or almost fill it."""
    outputs = weights[axis or 0]
    depth = math.prod(weights) // outputs
    extreme = rng.random() < 0.4
    values = rng.integers(-127, 128, weights).astype(np.int8)
    added = rng.integers(-3000, 3001, outputs).astype(np.int32)
    if extreme:
        values = rng.choice(np.array([-128, -127, 127], np.int8), weights)
        added = rng.choice(np.array([-(2**27), 0, 2**27], np.int32), outputs)
    spread = 2.0**27 if extreme and bias else 74 * 74 * math.sqrt(depth)
    scales = 64 / spread * 2.0 ** rng.uniform(-4, 3, 1 if axis is None else outputs)
    quant = Quant(tuple(float(np.float32(s)) for s in scales), (0,) * len(scales), axis)
    inputs: list[Value | None] = [x, Value("w", TensorType(weights, DType.INT8, quant), values)]
    if bias:
        inputs.append(Value("b", TensorType((outputs,), DType.INT32), added))
    return graph_of(op, inputs, Quant.per_tensor(0.5, _zero_point(rng)))


def _window(rng: Rng) -> tuple[tuple[int, int, int], ...]:
    """Return size, window and stride for each axis; sometimes for an image of one row."""
    row = rng.random() < 0.35
    height = (1, 1, 1) if row else (int(rng.integers(1, 10)), _one_of(rng, 1, 2, 3, 3, 5), 0)
    width = int(rng.integers(1, 24 if row else 10)), _one_of(rng, 1, 2, 3, 3, 4, 5), 0
    strides = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    return (height[0], height[1], strides[0]), (width[0], width[1], strides[1])


def _padding(rng: Rng, kernel: int) -> tuple[int, int]:
    style = rng.integers(4)
    if style == 0 or kernel == 1:
        return (0, 0) if rng.random() < 0.9 else (0, 1)
    half = (kernel - 1) // 2
    return (
        (half, kernel - 1 - half)
        if style < 3
        else (
            int(rng.integers(0, kernel)),
            int(rng.integers(0, kernel)),
        )
    )


def _fits(axes: tuple[tuple[int, int, int], ...], padding: tuple[tuple[int, int], ...]) -> bool:
    return all(n + sum(p) >= k for (n, k, _), p in zip(axes, padding, strict=True))


def _convolution(rng: Rng) -> Graph | None:
    axes = _window(rng)
    padding = _padding(rng, axes[0][1]), _padding(rng, axes[1][1])
    if not _fits(axes, padding):
        return None
    groups = _one_of(rng, 1, 1, 1, 1, 2, 3)
    depth, outputs = int(rng.choice(CHANNELS)), groups * int(rng.integers(1, 20))
    x = data("x", (_one_of(rng, 1, 1, 1, 2), axes[0][0], axes[1][0], depth * groups), rng)
    stride = axes[0][2], axes[1][2]
    op = Conv2D(stride, padding, activation=_activation(rng), groups=groups)
    weights = outputs, axes[0][1], axes[1][1], depth
    return products(op, x, weights, 0, rng, bias=rng.random() < 0.8)


def _pointwise(rng: Rng) -> Graph | None:
    size, stride = rng.integers(1, 8, 2), _one_of(rng, 1, 1, 2)
    depth, outputs = int(rng.choice(CHANNELS)), int(rng.integers(1, 40))
    x = data("x", (_one_of(rng, 1, 2), int(size[0]), int(size[1]), depth), rng)
    op = Conv2D((stride, stride), activation=_activation(rng))
    return products(op, x, (outputs, 1, 1, depth), 0, rng)


def _depthwise_3x3(rng: Rng) -> Graph | None:
    axes = tuple((int(rng.integers(1, 8)), 3, stride) for _, _, stride in _window(rng))
    padding = tuple((_one_of(rng, 0, 1), _one_of(rng, 0, 1, 2)) for _ in axes)
    if not _fits(axes, padding):
        return None
    channels = int(rng.choice(CHANNELS))
    x = data("x", (1, axes[0][0], axes[1][0], channels), rng)
    op = DepthwiseConv2D(
        (axes[0][2], axes[1][2]), (padding[0], padding[1]), (1, 1), _activation(rng)
    )
    return products(op, x, (1, 3, 3, channels), 3, rng)


def _depthwise(rng: Rng) -> Graph | None:
    axes = _window(rng)
    padding = _padding(rng, axes[0][1]), _padding(rng, axes[1][1])
    dilation = (1, 1) if rng.random() < 0.85 else (2, 3)
    spans = tuple((n, (k - 1) * d + 1, s) for (n, k, s), d in zip(axes, dilation, strict=True))
    if not _fits(spans, padding):
        return None
    multiplier = _one_of(rng, 1, 1, 1, 2, 3, 4, 8)
    channels = int(rng.choice(CHANNELS if multiplier > 1 else CHANNELS + WIDE))
    x = data("x", (_one_of(rng, 1, 1, 1, 2), axes[0][0], axes[1][0], channels), rng)
    op = DepthwiseConv2D((axes[0][2], axes[1][2]), padding, dilation, _activation(rng))
    weights = 1, axes[0][1], axes[1][1], channels * multiplier
    return products(op, x, weights, 3, rng, bias=rng.random() < 0.8)


def _dense(rng: Rng) -> Graph | None:
    rows, depth, outputs = _one_of(rng, 1, 1, 3), int(rng.integers(1, 80)), int(rng.integers(1, 30))
    x = data("x", (rows, depth), rng)
    axis = 0 if rng.random() < 0.5 else None
    op = FullyConnected(_activation(rng))
    return products(op, x, (outputs, depth), axis, rng, bias=rng.random() < 0.8)


def _matmul(rng: Rng) -> Graph | None:
    rows, depth, outputs = (int(n) for n in rng.integers(1, 30, 3))
    x, w = data("x", (rows, depth), rng), data("w", (outputs, depth), rng, 0.01)
    op = FullyConnected(_activation(rng))
    return graph_of(
        op, [x, w, None], Quant.per_tensor(float(rng.uniform(0.2, 3)), _zero_point(rng))
    )


def _pool(rng: Rng) -> Graph | None:
    axes = tuple((int(rng.integers(1, 9)), int(rng.integers(1, 5)), s) for _, _, s in _window(rng))
    padding = tuple((int(rng.integers(0, k)), int(rng.integers(0, k))) for _, k, _ in axes)
    if not _fits(axes, padding):
        return None
    x = data("x", (_one_of(rng, 1, 2), axes[0][0], axes[1][0], int(rng.choice(CHANNELS))), rng)
    op = Pool2D(
        "max" if rng.random() < 0.5 else "average",
        (axes[0][1], axes[1][1]),
        (axes[0][2], axes[1][2]),
        (padding[0], padding[1]),
        _activation(rng),
    )
    if any(0 in op.covered(axis, x.type) for axis in (0, 1)):
        return None
    return graph_of(op, [x], x.type.quant)


def _binary(rng: Rng) -> Graph | None:
    shape = (int(rng.integers(1, 40)),)
    scales = 2.0 ** rng.uniform(-8, 2, 3)
    a, b = (
        data(name, shape, rng, float(np.float32(s)))
        for name, s in zip("ab", scales[:2], strict=True)
    )
    op = Binary("add" if rng.random() < 0.5 else "mul", _activation(rng))
    return graph_of(op, [a, b], Quant.per_tensor(float(np.float32(scales[2])), _zero_point(rng)))


def _softmax(rng: Rng) -> Graph | None:
    shape = int(rng.integers(1, 4)), int(rng.choice([1, 2, 3, 4, 7, 10, 12, 33, 255]))
    x = data("x", shape, rng, float(np.float32(2.0 ** rng.uniform(-12, 3))))
    return graph_of(Softmax(float(rng.choice([1.0, 0.5]))), [x], Quant.per_tensor(1 / 256, -128))


def _pad(rng: Rng) -> Graph | None:
    rank = int(rng.integers(1, 5))
    x = data("x", tuple(int(n) for n in rng.integers(1, 6, rank)), rng)
    padding = tuple((int(a), int(b)) for a, b in rng.integers(0, 3, (rank, 2)))
    return graph_of(Pad(padding, None if rng.random() < 0.5 else -128), [x], x.type.quant)


def _transpose(rng: Rng) -> Graph | None:
    rank = int(rng.integers(2, 5))
    x = data("x", tuple(int(n) for n in rng.integers(1, 12, rank)), rng)
    return graph_of(Transpose(tuple(int(a) for a in rng.permutation(rank))), [x], x.type.quant)


def _concat(rng: Rng) -> Graph | None:
    shape, axis = rng.integers(1, 6, 3), int(rng.integers(0, 3))
    first = data("x0", tuple(map(int, shape)), rng)
    values: list[Value | None] = [first]
    for i in range(int(rng.integers(0, 3))):
        shape[axis] = rng.integers(1, 20)
        type_ = TensorType(tuple(map(int, shape)), DType.INT8, first.type.quant)
        values.append(Value(f"x{i + 1}", type_))
    return graph_of(Concat(axis), values, first.type.quant)


_MAKERS: tuple[Callable[[Rng], Graph | None], ...] = (
    *(_convolution,) * 5,
    *(_depthwise, _depthwise_3x3) * 3,
    *(_pointwise, _dense, _pool) * 2,
    *(_matmul, _binary, _softmax, _pad, _transpose, _concat),
)

"""Random networks, of building blocks quantized like the TensorFlow Lite converter does.

Some channels have no weights or no readers, as in networks trained with weight decay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import Phase
from hypothesis import strategies as st

from smelt.ir import (
    Array,
    DType,
    Graph,
    Node,
    Op,
    Origin,
    Quant,
    Rounding,
    TensorType,
    Value,
    verify,
)
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.case import quant_of_range, quantize, random_array
from smelt.ops.core.binary import BINARY, Binary
from smelt.ops.core.convolution import NO_PADDING, Conv2D, DepthwiseConv2D, Padding2D, same_padding
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.quantize import Quantize
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.softmax import Softmax
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.resize import Resize
from smelt.ops.tensor.transpose import Transpose
from tests.support.graphs import Member

SAMPLES = 3
LARGEST = 2000
"""Limit in elements; a tensor above it is used only by operators that do not enlarge it."""
# Shrinking takes minutes, and failing networks are small enough to understand.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
UNARIES = ("relu", "relu6", "leaky_relu", "logistic", "tanh", "hard_swish", "abs", "elu", "gelu")


@dataclass
class Builder:
    """A network under construction, with the real numbers of each value for some samples.

    The real numbers give the ranges for int8 quantization.
    """

    dtype: DType
    draw: st.DrawFn
    rng: np.random.Generator
    inputs: list[Value] = field(default_factory=list[Value])
    nodes: list[Node] = field(default_factory=list[Node])
    reals: dict[Value, list[Array]] = field(default_factory=dict[Value, list[Array]])
    names: int = 0

    @property
    def quantized(self) -> bool:
        return self.dtype is not DType.FLOAT32

    def pick(self, *choices: int) -> int:
        return self.draw(st.sampled_from(choices))

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def input(self, shape: tuple[int, ...]) -> Value:
        reals = [self.rng.uniform(-2, 2, shape).astype(np.float32) for _ in range(SAMPLES)]
        quant = quant_of_range(-2, 2, self.dtype) if self.quantized else None
        value = Value(self.name("x"), TensorType(shape, self.dtype, quant))
        self.inputs.append(value)
        self.reals[value] = reals
        return value

    def data(self, shape: tuple[int, ...]) -> Value:
        """Return a constant operand of an elementwise operator."""
        real = self.rng.uniform(-1.5, 1.5, shape).astype(np.float32)
        quant = quant_of_range(-1.5, 1.5, self.dtype) if self.quantized else None
        stored = real if quant is None else quantize(real, quant, self.dtype)
        value = Value.constant(self.name("k"), stored, quant)
        self.reals[value] = [real] * SAMPLES
        return value

    def weights(self, x: Value, shape: tuple[int, ...], axis: int | None) -> list[Value]:
        """Return weights, symmetric per channel of `axis`, and a bias."""
        fan_in = int(np.prod(shape)) // shape[axis or 0]
        real = (self.rng.uniform(-1, 1, shape) / np.sqrt(fan_in)).astype(np.float32)
        bias = self.rng.uniform(-0.5, 0.5, shape[axis or 0]).astype(np.float32)
        if self.quantized and self.draw(st.booleans()):
            self.prune(real, axis or 0)
        values = [Value.constant(self.name("w"), real), Value.constant(self.name("b"), bias)]
        if self.quantized:
            others = None if axis is None else tuple(i for i in range(len(shape)) if i != axis)
            peaks = np.maximum(np.atleast_1d(np.abs(real).max(axis=others)), 0.01)
            scale = tuple(float(np.float32(peak / 127)) for peak in peaks)
            quant = Quant(scale, (0,) * len(scale), axis)
            steps = tuple(float(np.float32(x.type.scale * s)) for s in scale)
            added = Quant(steps, (0,) * len(steps), None if axis is None else 0)
            stored = quantize(bias, added, DType.INT32)
            values = [
                Value.constant(self.name("w"), quantize(real, quant, DType.INT8), quant),
                Value.constant(self.name("b"), stored, added),
            ]
        for value, numbers in zip(values, (real, bias), strict=True):
            self.reals[value] = [numbers] * SAMPLES
        return values

    def prune(self, weights: Array, axis: int) -> None:
        """Zero the weights of some outputs and, if that is another axis, of some inputs."""
        for along in {axis, weights.ndim - 1}:
            without = self.rng.random(weights.shape[along]) < 0.4
            np.moveaxis(weights, along, 0)[without] = 0

    def apply(self, op: Op, *operands: Value) -> Value:
        """Add a node and return its output; the operator or the range decides the quantization."""
        shadows = tuple(Value(v.name, TensorType(v.type.shape, DType.FLOAT32)) for v in operands)
        (inferred,) = op.infer([v.type for v in shadows])
        shadow = Node(op, shadows, (Value("y", inferred),), Origin("REAL", 0))
        reals = [
            op.reference(shadow, [self.reals[v][i] for v in operands])[0] for i in range(SAMPLES)
        ]
        quant: Quant | None = None
        if self.quantized:
            low, high = (float(f([f(r) for r in reals])) for f in (np.min, np.max))
            quant = op.output_quant([v.type for v in operands])
            # Integer arithmetic cannot represent ranges far below those of the operands.
            quant = quant or quant_of_range(low, max(high, low + 0.1), self.dtype)
        return self.emit(op, operands, TensorType(inferred.shape, self.dtype, quant), reals)

    def emit(
        self, op: Op, operands: tuple[Value, ...], type_: TensorType, reals: list[Array]
    ) -> Value:
        value = Value(self.name("v"), type_)
        rounding = Rounding.TFLM if self.quantized else None
        origin = Origin(op.name.upper(), len(self.nodes), value.name)
        self.nodes.append(Node(op, operands, (value,), origin, rounding))
        self.reals[value] = reals
        return value

    def like(self, value: Value, other: Value) -> Value:
        """Requantize a value to the quantization of another."""
        if value.type.quant == other.type.quant:
            return value
        type_ = TensorType(value.type.shape, value.type.dtype, other.type.quant)
        return self.emit(Quantize(self.dtype), (value,), type_, self.reals[value])

    def computed(self) -> list[Value]:
        return [*self.inputs, *(node.output for node in self.nodes)]


def no_choice(strategy: st.SearchStrategy[Any]) -> object:
    """Return False in place of a drawn value, so that no weights are pruned."""
    del strategy
    return False


Block = Callable[[Builder, Value], Value]


def _padding(b: Builder, x: Value, window: tuple[int, int], stride: tuple[int, int]) -> Padding2D:
    """Return SAME, or VALID if the window fits into the image."""
    fits = all(k <= n for k, n in zip(window, x.type.shape[1:3], strict=True))
    if fits and b.draw(st.booleans()):
        return NO_PADDING
    return same_padding((x.type.shape[1], x.type.shape[2]), window, stride)


def _pair(b: Builder, *choices: int) -> tuple[int, int]:
    return b.pick(*choices), b.pick(*choices)


def _activation(b: Builder) -> Activation:
    return b.draw(st.sampled_from([Activation.NONE, Activation.RELU, Activation.RELU6]))


def conv(b: Builder, x: Value) -> Value:
    window, stride = _pair(b, 1, 2, 3), _pair(b, 1, 2)
    op = Conv2D(stride, _padding(b, x, window, stride), activation=_activation(b))
    shape = (b.pick(1, 2, 3, 4, 5, 8), *window, x.type.shape[3])
    return b.apply(op, x, *b.weights(x, shape, 0))


def depthwise(b: Builder, x: Value) -> Value:
    window, stride = _pair(b, 1, 3, 5), _pair(b, 1, 2)
    op = DepthwiseConv2D(stride, _padding(b, x, window, stride), activation=_activation(b))
    shape = (1, *window, x.type.shape[3] * b.pick(1, 1, 2))
    return b.apply(op, x, *b.weights(x, shape, 3))


def pool(b: Builder, x: Value) -> Value:
    window, stride = _pair(b, 1, 2, 3), _pair(b, 1, 2)
    kind = b.draw(st.sampled_from(["max", "average"]))
    return b.apply(Pool2D(kind, window, stride, _padding(b, x, window, stride)), x)


def resize(b: Builder, x: Value) -> Value:
    kind = b.draw(st.sampled_from(["nearest", "bilinear"]))
    corners, centers = b.draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    return b.apply(Resize(kind, _pair(b, 2, 3, 6), corners, centers), x)


def dense(b: Builder, x: Value) -> Value:
    x = b.apply(Reshape((1, x.type.size)), x)
    axis = b.draw(st.sampled_from([None, 0]))
    shape = (b.pick(1, 3, 4, 10), x.type.size)
    return b.apply(FullyConnected(_activation(b)), x, *b.weights(x, shape, axis))


def mean(b: Builder, x: Value) -> Value:
    axes = b.draw(st.sampled_from([(1,), (1, 2), (3,), (2, 3)]))
    return b.apply(Reduce("mean", axes, keep_dims=True), x)


def pad(b: Builder, x: Value) -> Value:
    pairs = tuple((b.pick(0, 1, 2), b.pick(0, 1)) for _ in x.type.shape[1:])
    return b.apply(Pad(((0, 0), *pairs)), x)


def transpose(b: Builder, x: Value) -> Value:
    order = b.draw(st.permutations(range(1, len(x.type.shape))))
    return b.apply(Transpose((0, *order)), x)


def reshape(b: Builder, x: Value) -> Value:
    *front, channels = x.type.shape
    shape = b.draw(st.sampled_from([(*front, channels), (1, 1, x.type.size // channels, channels)]))
    return b.apply(Reshape(shape), x)


def unary(b: Builder, x: Value) -> Value:
    kind = b.draw(st.sampled_from(UNARIES))
    return b.apply(Unary(kind, {"leaky_relu": 0.3, "elu": 1.0}.get(kind, 0.0)), x)


def softmax(b: Builder, x: Value) -> Value:
    return b.apply(Softmax(), x)


def binary(b: Builder, x: Value) -> Value:
    """Combine with an earlier value of this shape or a constant per channel, in any order."""
    same = [v for v in b.computed() if v.type.shape == x.type.shape]
    constant = b.draw(st.booleans())
    other = b.data(x.type.shape[-1:]) if constant else b.draw(st.sampled_from(same))
    kind = b.draw(st.sampled_from(["add", "sub", "mul", "maximum", "minimum"]))
    activation = _activation(b) if BINARY[kind].rescales else Activation.NONE
    if not BINARY[kind].rescales:
        if constant:
            other = x
        other = b.like(other, x)
    operands = (x, other) if b.draw(st.booleans()) else (other, x)
    return b.apply(Binary(kind, activation), *operands)


def concat(b: Builder, x: Value) -> Value:
    axis = b.draw(st.integers(1, len(x.type.shape) - 1))
    fitting = [
        v
        for v in b.computed()
        if len(v.type.shape) == len(x.type.shape)
        and all(i == axis or v.type.shape[i] == n for i, n in enumerate(x.type.shape))
    ]
    others = b.draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=2))
    return b.apply(Concat(axis), *(b.like(v, x) for v in (*others, x)))


GROWING: tuple[Block, ...] = (conv, depthwise, pad, concat, resize)
BLOCKS: tuple[Block, ...] = (
    *GROWING,
    *(binary, pool, mean, transpose, reshape, unary, softmax, dense),
)


@st.composite
def members(draw: st.DrawFn, dtype: DType) -> Member:
    """Return a random network with random samples, one of them extreme."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    b = Builder(dtype, draw, rng)
    shape = (1, b.pick(1, 3, 4, 7), b.pick(1, 2, 5, 6), b.pick(1, 2, 3, 4))
    b.input(shape)
    if draw(st.booleans()):
        b.input(shape)
    for _ in range(draw(st.integers(1, 7))):
        images = [v for v in b.computed() if len(v.type.shape) == 4]
        x = draw(st.sampled_from(images[-3:]))
        blocks = BLOCKS if x.type.size <= LARGEST else BLOCKS[len(GROWING) :]
        draw(st.sampled_from(blocks))(b, x)
    used = {v for node in b.nodes for v in node.inputs}
    outputs = [node.output for node in b.nodes if node.output not in used]
    outputs += draw(st.lists(st.sampled_from(b.computed()), max_size=2))
    graph = Graph("random", tuple(b.inputs), tuple(dict.fromkeys(outputs)), tuple(b.nodes))
    samples = [tuple(random_array(v.type, rng) for v in b.inputs) for _ in range(2)]
    limits = (-2, 2) if dtype is DType.FLOAT32 else dtype.limits
    extreme = [rng.choice(np.array(limits, dtype.numpy), v.type.shape) for v in b.inputs]
    return Member(verify(graph, "drawing"), [*samples, tuple(extreme)])

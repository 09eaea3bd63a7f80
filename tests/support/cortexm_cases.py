"""int8 nodes for kernels of small cores, with their inputs and the kernels that serve them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from smelt.codegen.backends.armv6m import convolution as armv6m_convolution
from smelt.codegen.backends.armv6m import dense as armv6m_dense
from smelt.codegen.backends.armv6m import depthwise as armv6m_depthwise
from smelt.codegen.backends.armv7m import convolution as armv7m_convolution
from smelt.codegen.backends.armv7m import depthwise as armv7m_depthwise
from smelt.codegen.lower.backend import Backend
from smelt.codegen.lower.halfword_convolution import HalfwordConvolution
from smelt.codegen.lower.kernel import KernelCall, Refusal, Request
from smelt.codegen.lower.plain_add import PlainAdd
from smelt.ir import Array, DType, Graph, Node, Quant, Rounding, TensorType, Value, evaluate
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D, Padding2D, Pair
from smelt.ops.core.fully_connected import FullyConnected
from smelt.samples import Sample
from smelt.targets import Optimize, get
from tests.support.guarded import Core
from tests.support.library_nodes import graph_of, samples_of

NONE, SAME, AFTER = ((0, 0), (0, 0)), ((1, 1), (1, 1)), ((0, 1), (0, 1))
RELU, FREE, NARROW = Activation.RELU, Activation.NONE, Activation.RELU6
BACKENDS = {
    "cortex-m0": Backend(
        "armv6m",
        (
            PlainAdd(),
            *armv6m_convolution.KERNELS,
            *armv6m_dense.KERNELS,
            *armv6m_depthwise.KERNELS,
        ),
    ),
    "cortex-m3": Backend(
        "armv7m",
        (PlainAdd(), HalfwordConvolution(armv7m_convolution.CORE), *armv7m_depthwise.KERNELS),
    ),
}


def core_of(target: str) -> Core:
    """Return a simulated Cortex-M3, which also runs Cortex-M0 code, for a target."""
    return Core(
        target,
        "mps2-an385",
        (0x0000_0000, 0x10_0000),
        (0x0010_0000, 0x30_0000),
        (0x2000_0000, 0x10_0000),
        (0x2100_0000, 0x2200_0000),
    )


@dataclass(frozen=True)
class Case:
    """A node, its inputs, the goal of optimization, and whether there is no scratch."""

    name: str
    graph: Graph
    samples: Sequence[Sample]
    optimize: Optimize
    no_scratch: bool = False

    @property
    def node(self) -> Node:
        return self.graph.nodes[0]

    def call(self, target: str) -> KernelCall | None:
        """Return the call of the kernel that serves the node on a target; None for the fallback."""
        request = Request(get(target), self.optimize)
        if self.no_scratch:
            request = replace(request, scratch_limit=0, limited=True)
        call = BACKENDS[target].find(self.node, request)
        return None if isinstance(call, Refusal) else call

    def expected(self) -> list[Array]:
        return [evaluate(self.graph, sample).outputs[0] for sample in self.samples]


def node_case(
    op: Conv2D | DepthwiseConv2D | FullyConnected,
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    axis: int | None,
    *,
    points: Pair = (-128, -128),
    extreme: bool = False,
    largest: int = 127,
    steep: float = 1.0,
    rounding: Rounding = Rounding.TFLM,
    optimize: Optimize = "speed",
    no_scratch: bool = False,
) -> Case:
    """Return a case with constant weights.

    Args:
        op: the operator.
        shape: of the input.
        weights: shape of the weights.
        axis: axis of the weights' scales; None for one scale.
        points: zero points of input and output.
        extreme: whether weights are only -127 and 127.
        largest: largest magnitude of other weights.
        steep: factor of the scales, so that outputs exceed their range several times.
        rounding: rounding mode of the model.
        optimize: goal of optimization.
        no_scratch: whether the kernel must do without scratch.
    """
    rng = np.random.default_rng(crc32(f"{op} {shape} {weights} {points}".encode()))
    outputs = weights[axis if axis is not None else 0]
    depth = int(np.prod(weights)) // outputs
    values = rng.integers(-largest, largest + 1, weights).astype(np.int8)
    if extreme:
        values = rng.choice(np.array([-127, 127], np.int8), weights)
    spread = largest * 0.6 * depth**0.5
    scales = steep * rng.uniform(0.5, 8, 1 if axis is None else outputs) / spread
    quant = Quant(tuple(float(np.float32(s)) for s in scales), (0,) * len(scales), axis)
    bias = rng.integers(-9000, 9000, outputs).astype(np.int32)
    x = Value("x", TensorType(shape, DType.INT8, Quant.per_tensor(0.5, points[0])))
    graph = graph_of(
        op,
        [
            x,
            Value("w", TensorType(weights, DType.INT8, quant), values),
            Value("b", TensorType((outputs,), DType.INT32), bias),
        ],
        Quant.per_tensor(0.5, points[1]),
        rounding,
    )
    name = f"{op} {shape} {weights} {points} {optimize}{' without scratch' * no_scratch}"
    return Case(name, graph, samples_of(graph, rng), optimize, no_scratch)


def convolution(
    shape: tuple[int, int, int, int],
    outputs: int,
    kernel: Pair = (1, 1),
    stride: Pair = (1, 1),
    padding: Padding2D = NONE,
    activation: Activation = RELU,
    dilation: Pair = (1, 1),
    **more: object,
) -> Case:
    op = Conv2D(stride=stride, padding=padding, dilation=dilation, activation=activation)
    return node_case(op, shape, (outputs, *kernel, shape[3]), 0, **more)  # pyright: ignore[reportArgumentType]


def depthwise(
    shape: tuple[int, int, int, int],
    kernel: Pair = (3, 3),
    stride: Pair = (1, 1),
    padding: Padding2D = SAME,
    activation: Activation = RELU,
    multiplier: int = 1,
    **more: object,
) -> Case:
    op = DepthwiseConv2D(stride=stride, padding=padding, activation=activation)
    return node_case(op, shape, (1, *kernel, shape[3] * multiplier), 3, **more)  # pyright: ignore[reportArgumentType]


def dense(
    rows: int, depth: int, outputs: int, activation: Activation = RELU, **more: object
) -> Case:
    op = FullyConnected(activation=activation)
    return node_case(op, (rows, depth), (outputs, depth), None, **more)  # pyright: ignore[reportArgumentType]


def binary(
    kind: str,
    count: int,
    scales: tuple[float, float, float],
    points: tuple[int, int, int],
    activation: Activation = FREE,
    optimize: Optimize = "speed",
) -> Case:
    values: list[Value | None] = [
        Value(name, TensorType((1, count), DType.INT8, Quant.per_tensor(scale, point)))
        for name, scale, point in zip("ab", scales, points, strict=False)
    ]
    graph = graph_of(Binary(kind, activation), values, Quant.per_tensor(scales[2], points[2]))
    rng = np.random.default_rng(count)
    return Case(f"{kind} {scales} {points}", graph, samples_of(graph, rng), optimize)

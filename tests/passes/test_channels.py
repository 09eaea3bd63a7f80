"""Removal of channels that are constant or never read; outputs do not change in any bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from smelt.codegen.passes.channels.constant_channels import drop_channels, plan_channels
from smelt.codegen.passes.context import PassContext, Removal
from smelt.frontend import load
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
    evaluate,
    verify,
)
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.convolution_nd import ConvTranspose
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.reduce import Reduce
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.reshape import Reshape
from tests.support.graphs import Member
from tests.support.random_networks import members
from tests.support.shared import shared

QUANT = Quant.per_tensor(0.05, -3)
OUT = Quant.per_tensor(0.11, 5)
SAME = ((1, 1), (1, 1))


class Network:
    """A network under construction; int8 by default."""

    def __init__(self, *shape: int, dtype: DType = DType.INT8, quant: Quant = QUANT) -> None:
        self.x = Value("x", TensorType(shape, dtype, quant))
        self.nodes: list[Node] = []
        self.rng = np.random.default_rng(5)

    def add(self, op: Op, *inputs: Value, quant: Quant = OUT) -> Value:
        (type_,) = op.infer([v.type for v in inputs])
        y = Value(f"v{len(self.nodes)}", TensorType(type_.shape, self.x.type.dtype, quant))
        origin = Origin("OP", len(self.nodes))
        self.nodes.append(Node(op, inputs, (y,), origin, Rounding.TFLM))
        return y

    def product(
        self, op: Op, x: Value, weights: Array, bias: Array | None = None, quant: Quant = OUT
    ) -> Value:
        axis = 3 if isinstance(op, ConvTranspose | DepthwiseConv2D) else 0
        count = weights.shape[axis]
        scales = tuple(float(np.float32(s)) for s in self.rng.uniform(0.01, 0.02, count))
        w = Value.constant(f"w{len(self.nodes)}", weights, Quant(scales, (0,) * count, axis))
        if bias is None:
            return self.add(op, x, w, quant=quant)
        return self.add(op, x, w, Value.constant(f"b{len(self.nodes)}", bias), quant=quant)

    def weights(self, *shape: int) -> Array:
        return self.rng.integers(-127, 128, shape).astype(np.int8)

    def bias(self, count: int) -> Array:
        return self.rng.integers(-3000, 3000, count).astype(np.int32)

    def graph(self, *outputs: Value) -> Graph:
        return verify(Graph("net", (self.x,), outputs, tuple(self.nodes)), "building")


def narrowed(graph: Graph, granularity: int = 1) -> Graph:
    """Return the graph after `drop_channels`; assert that it computes the same."""
    narrow = verify(drop_channels(graph, PassContext(granularity)), "drop_channels")
    rng = np.random.default_rng(1)
    for kind in ("random", "least", "greatest", "random"):
        inputs: list[Array] = []
        for value in graph.inputs:
            low, high = value.type.dtype.limits
            ends = {"least": (low, low), "greatest": (high, high)}.get(kind, (low, high))
            array = rng.integers(ends[0], ends[1] + 1, value.type.shape)
            inputs.append(array.astype(value.type.dtype.numpy))
        for ours, theirs in zip(
            evaluate(narrow, inputs).outputs, evaluate(graph, inputs).outputs, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    return narrow


def shapes(graph: Graph) -> list[tuple[int, ...]]:
    return [node.output.type.shape for node in graph.nodes]


def test_a_constant_channel_becomes_part_of_the_bias() -> None:
    net = Network(1, 4, 4, 3)
    first = net.weights(6, 1, 1, 3)
    first[[1, 4]] = 0
    a = net.product(Conv2D(), net.x, first, net.bias(6))
    graph = net.graph(net.product(Conv2D(), a, net.weights(5, 1, 1, 6), net.bias(5)))
    narrow = narrowed(graph)
    assert shapes(narrow) == [(1, 4, 4, 4), (1, 4, 4, 5)]
    assert plan_channels(graph).removals() == (Removal(Origin("OP", 0), 6, 2, 0),)


def test_channels_are_removed_in_multiples_of_the_granularity() -> None:
    net = Network(1, 4, 4, 3)
    first = net.weights(12, 1, 1, 3)
    first[[0, 1, 4, 5, 8]] = 0
    a = net.product(Conv2D(), net.x, first, net.bias(12))
    graph = net.graph(net.product(Conv2D(), a, net.weights(5, 1, 1, 12), net.bias(5)))
    assert shapes(narrowed(graph)) == [(1, 4, 4, 7), (1, 4, 4, 5)]
    assert shapes(narrowed(graph, 4)) == [(1, 4, 4, 8), (1, 4, 4, 5)]
    assert shapes(narrowed(graph, 16)) == [(1, 4, 4, 12), (1, 4, 4, 5)]


def test_a_constant_channel_adds_a_bias_to_a_layer_without() -> None:
    net = Network(1, 2, 2, 2)
    first = net.weights(3, 1, 1, 2)
    first[1] = 0
    a = net.product(Conv2D(), net.x, first, np.array([9, 4000, 7], np.int32))
    narrow = narrowed(net.graph(net.product(Conv2D(), a, net.weights(4, 1, 1, 3))))
    assert [len(node.inputs) for node in narrow.nodes] == [3, 3]


def test_padded_layers_keep_nonzero_constant_channels() -> None:
    """At the border, fewer products with the constant are summed than inside."""
    for bias, left in ((4000, 3), (0, 2)):
        net = Network(1, 4, 4, 2)
        first = net.weights(3, 1, 1, 2)
        first[1] = 0
        a = net.product(Conv2D(), net.x, first, np.array([9, bias, 7], np.int32))
        y = net.product(Conv2D(padding=SAME), a, net.weights(4, 3, 3, 3), net.bias(4))
        assert shapes(narrowed(net.graph(y)))[0][-1] == left


def test_channels_of_transposed_convolutions_are_removed() -> None:
    """A constant input channel is removed only if it is zero: outputs use only some of the taps."""
    for bias, left in ((4000, 3), (0, 2)):
        net = Network(1, 4, 4, 2)
        first = net.weights(3, 1, 1, 2)
        first[1] = 0
        a = net.product(Conv2D(), net.x, first, np.array([9, bias, 7], np.int32))
        op = ConvTranspose((2, 2), ((1, 0), (0, 1)), (1, 1))
        b = net.product(op, a, net.weights(3, 3, 3, 6), net.bias(6))
        last = net.weights(4, 1, 1, 6)
        last[..., [0, 5]] = 0
        y = net.product(Conv2D(), b, last, net.bias(4))
        assert [s[-1] for s in shapes(narrowed(net.graph(y)))] == [left, 4, 4]


def test_an_unread_channel_is_not_computed() -> None:
    net = Network(1, 5, 5, 3)
    a = net.product(Conv2D(padding=SAME), net.x, net.weights(6, 3, 3, 3), net.bias(6))
    b = net.product(DepthwiseConv2D(padding=SAME), a, net.weights(1, 3, 3, 6), net.bias(6))
    last = net.weights(4, 1, 1, 6)
    last[..., [0, 3, 5]] = 0
    graph = net.graph(net.product(Conv2D(), b, last, net.bias(4)))
    assert shapes(narrowed(graph)) == [(1, 5, 5, 3), (1, 5, 5, 3), (1, 5, 5, 4)]
    assert [r.unread for r in plan_channels(graph).removals()] == [3, 3]


def test_saturation_makes_a_channel_constant() -> None:
    net = Network(1, 3, 3, 2)
    bias = np.array([-(2**24), 5, 2**24], np.int32)
    a = net.product(
        Conv2D(activation=Activation.RELU),
        net.x,
        net.weights(3, 1, 1, 2),
        bias,
        Quant.per_tensor(0.1, -128),
    )
    narrow = narrowed(net.graph(net.product(Conv2D(), a, net.weights(2, 1, 1, 3))))
    assert shapes(narrow)[0] == (1, 3, 3, 1)


def test_a_sum_keeps_channels_that_are_constant_on_one_side_only() -> None:
    net = Network(1, 4, 4, 4)
    first, second = net.weights(4, 1, 1, 4), net.weights(4, 1, 1, 4)
    first[[0, 1]] = 0
    second[[1, 2]] = 0
    a = net.product(Conv2D(), net.x, first, net.bias(4))
    b = net.product(Conv2D(), a, second, net.bias(4))
    y = net.add(Binary("add"), a, b)
    narrow = narrowed(net.graph(net.product(Conv2D(), y, net.weights(3, 1, 1, 4), net.bias(3))))
    assert shapes(narrow)[2] == (1, 4, 4, 3)  # Channel 1 is constant on both sides.


def test_unread_channels_of_an_input_stay() -> None:
    net = Network(1, 4, 4, 3)
    a = net.add(Pool2D("max", (2, 2)), net.x, quant=QUANT)
    weights = net.weights(2, 1, 1, 3)
    weights[..., 1] = 0
    graph = net.graph(net.product(Conv2D(), a, weights, net.bias(2)))
    assert narrowed(graph) is graph or shapes(drop_channels(graph)) == shapes(graph)


def test_channels_are_removed_through_pooling_concat_mean_and_reshape() -> None:
    net = Network(1, 4, 4, 3)
    first, second = net.weights(5, 1, 1, 3), net.weights(4, 1, 1, 3)
    first[[0, 4]] = 0
    second[[2]] = 0
    a = net.product(Conv2D(), net.x, first, net.bias(5))
    b = net.product(Conv2D(), net.x, second, net.bias(4))
    c = net.add(Pool2D("average", (2, 2), (2, 2)), net.add(Concat(3), a, b))
    flat = net.add(Reshape((1, 36)), c)
    d = net.add(Reduce("mean", (1, 2)), c)
    y = net.product(FullyConnected(), flat, net.weights(3, 36), net.bias(3))
    z = net.product(FullyConnected(), d, net.weights(2, 9), net.bias(2))
    narrow = narrowed(net.graph(y, z))
    assert narrow.nodes[4].output.type.shape == (1, 24)
    assert narrow.nodes[5].output.type.shape == (1, 6)


def test_one_channel_stays_if_all_are_constant() -> None:
    net = Network(1, 3, 3, 2)
    a = net.product(Conv2D(), net.x, np.zeros((4, 1, 1, 2), np.int8), net.bias(4))
    narrow = narrowed(net.graph(net.product(Conv2D(), a, net.weights(3, 1, 1, 4), net.bias(3))))
    assert shapes(narrow) == [(1, 3, 3, 1), (1, 3, 3, 3)]


def test_sums_that_may_wrap_have_no_bounds() -> None:
    net = Network(1, 2, 2, 2)
    bias = np.array([2**31 - 5, 0], np.int32)
    a = net.product(Conv2D(), net.x, net.weights(2, 1, 1, 2), bias)
    bounds = plan_channels(net.graph(a)).bounds[a]
    assert (bounds.low[0], bounds.high[0]) == (-128, 127)


MEAN, SUM = Reduce("mean", (1, 2)), Reduce("sum", (1, 2))


@pytest.mark.parametrize(
    ("op", "dtype", "scale"),
    [
        (MEAN, DType.INT8, 2.0**-23),
        (SUM, DType.INT8, 2.0**-21),
        (Binary("mul"), DType.INT8, 2.0**-29),
        (MEAN, DType.INT16, 0.75 * 2.0**-17),
        (SUM, DType.INT16, 0.75 * 2.0**-15),
        (Binary("mul", activation=Activation.RELU), DType.INT16, 0.75 * 2.0**-2),
    ],
)
def test_results_that_may_wrap_when_scaled_have_no_bounds(
    op: Op, dtype: DType, scale: float
) -> None:
    """After a left shift beyond 32 bits, extreme operands do not give extreme results."""
    zero_points = (-3, 5) if dtype is DType.INT8 else (0, 0)
    given, finer = (
        Quant.per_tensor(0.05 * s, z) for s, z in zip((1.0, scale), zero_points, strict=True)
    )
    net = Network(1, 2, 2, 2, dtype=dtype, quant=given)
    operands = [net.x, net.x] if isinstance(op, Binary) else [net.x]
    a = net.add(op, *operands, quant=finer)
    bounds = plan_channels(net.graph(a)).bounds[a]
    assert (bounds.low[0], bounds.high[0]) == dtype.limits


@given(member=members(DType.INT8))
@settings(max_examples=60)
def test_random_networks_compute_the_same(member: Member) -> None:
    graph = narrowed(member.graph)
    for sample in member.samples:
        for ours, theirs in zip(
            evaluate(graph, sample).outputs, evaluate(member.graph, sample).outputs, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "macs"), [("vww_int8", 3_727_313), ("ic_int8", 12_501_632), ("kws_int8", 2_656_768)]
)
def test_mlperf_networks_have_fewer_products(name: str, macs: int) -> None:
    graph = load(shared(f"models/mlperf_tiny/{name}.tflite")).graph
    assert drop_channels(graph).macs == macs

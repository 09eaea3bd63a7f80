"""Which layers are stored as float16, and where conversions between the types are inserted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from smelt.codegen.backends.vulkan.assignment import PricedTensor
from smelt.codegen.backends.vulkan.float16 import conversion, use_float16
from smelt.codegen.backends.vulkan.gpus import gpu_called
from smelt.codegen.backends.vulkan.placement import Costs, device_share, priced
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.device import layer_key
from smelt.codegen.lower.kernel import Request
from smelt.codegen.partition.partitioner import Partitioner, Place
from smelt.ir import (
    Array,
    DType,
    Graph,
    Node,
    Op,
    Origin,
    State,
    TensorType,
    Value,
    evaluate,
    verify,
)
from smelt.ops.core.binary import Binary
from smelt.ops.core.cast import Cast
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.softmax import Softmax
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.copy import Copy
from smelt.ops.tensor.reshape import Reshape
from smelt.targets import get


class Net:
    """Builder of a graph; layers are named after their operators."""

    def __init__(self, *shape: int) -> None:
        self.x = Value("x", TensorType(shape, DType.FLOAT32))
        self.nodes: list[Node] = []

    def add(self, op: Op, *operands: Value | Array) -> Value:
        n = len(self.nodes)
        inputs = tuple(
            v if isinstance(v, Value) else Value.constant(f"c{n}_{i}", v)
            for i, v in enumerate(operands)
        )
        (type_,) = op.infer([v.type for v in inputs])
        y = Value(f"{type(op).__name__.lower()}{n}", type_)
        self.nodes.append(Node(op, inputs, (y,), Origin(op.name, n)))
        return y

    def graph(self, *outputs: Value, states: tuple[State, ...] = ()) -> Graph:
        nodes = tuple(self.nodes)
        return verify(Graph("net", (self.x,), outputs, nodes, states), "building a test")


def partitioned(cpu: Sequence[str] = ()) -> Partitioner:
    target, c = get("vulkan"), backend("c")
    places = {name: Place(c) for name in cpu}
    return Partitioner([[backend("vulkan"), c]], Request(target), places)


def narrowed(graph: Graph, cpu: Sequence[str] = ()) -> Graph:
    partitioner = partitioned(cpu)
    return use_float16(graph, replace(partitioner, share=device_share(graph, partitioner, None)))


def types(graph: Graph) -> dict[str, str]:
    """Return the element type of each layer's result; conversions are marked with `*`."""
    return {
        node.name + "*" * (node.op.name == "Cast"): node.output.type.dtype.value
        for node in graph.nodes
    }


def floats(*shape: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(1).normal(size=shape) * scale).astype(np.float32)


def convolved(net: Net, scale: float = 1.0) -> Value:
    return net.add(Conv2D(), net.x, floats(4, 1, 1, 4, scale=scale), floats(4))


def test_one_conversion_at_each_border() -> None:
    net = Net(1, 3, 3, 4)
    conv = convolved(net)
    second, third = net.add(Unary("neg"), net.x), net.add(Unary("abs"), conv)
    total = net.add(Binary("add"), second, third)
    found = narrowed(net.graph(total, conv))
    assert types(found) == {
        "x_f16*": "f16",
        "conv2d0_f16": "f16",
        "conv2d0*": "f32",
        "unary1": "f16",
        "unary2": "f16",
        "binary3_f16": "f16",
        "binary3*": "f32",
    }
    assert [v.name for v in found.outputs] == ["binary3", "conv2d0"]


def test_layers_of_the_cpu_are_float32() -> None:
    """Both readers of one tensor share a conversion."""
    net = Net(1, 3, 3, 4)
    conv = convolved(net)
    first, second = net.add(Unary("neg"), conv), net.add(Unary("abs"), conv)
    last = net.add(Binary("mul"), first, second)
    found = narrowed(net.graph(last), ("unary1", "unary2"))
    assert types(found) == {
        "x_f16*": "f16",
        "conv2d0": "f16",
        "conv2d0_f32*": "f32",
        "unary1": "f32",
        "unary2": "f32",
        "unary1_f16*": "f16",
        "unary2_f16*": "f16",
        "binary3_f16": "f16",
        "binary3*": "f32",
    }


def test_conversions_for_the_cpu_have_no_submission_of_their_own() -> None:
    """Conversions follow the last GPU layer directly, not before the layer that reads."""
    net = Net(1, 3, 3, 4)
    conv = convolved(net)
    second = net.add(Unary("neg"), conv)
    own = net.add(Unary("abs"), net.x)
    last = net.add(Binary("mul"), own, net.add(Reshape((1, 3, 3, 4)), second))
    found = narrowed(net.graph(last, own), ("unary2", "binary4"))
    assert list(types(found)) == [
        "x_f16*",
        "conv2d0",
        "unary1",
        "unary1_f32*",
        "reshape3_f32",
        "unary2",
        "binary4",
    ]


def test_priced_conversions_equal_inserted_conversions() -> None:
    """For every assignment: through reshapes of inputs, of results, and of float32 tensors."""
    net = Net(1, 3, 3, 4)
    conv = convolved(net)
    rows = net.add(Reshape((9, 4)), net.add(Unary("neg"), conv))
    dense = net.add(FullyConnected(), rows, floats(4, 4))
    power = net.add(Unary("exp"), net.add(Unary("abs"), rows))
    last = net.add(Reshape((36,)), net.add(Binary("add"), dense, rows))
    flat = net.add(Unary("abs"), net.add(Reshape((36,)), conv))
    other = net.add(Binary("mul"), net.add(Reshape((36,)), net.x), flat)
    graph = net.graph(last, conv, net.add(Unary("neg"), power), other)
    costs = Costs(gpu_called("generic"), measured_conversions(graph))
    found = priced(graph, partitioned(), costs, float16=True)
    names = [node.name for node in found.nodes]
    for way in product((True, False), repeat=len(names)):
        made = narrowed(graph, [name for name, there in zip(names, way, strict=True) if not there])
        conversions = [costs.of(node)[0] for node in made.nodes if isinstance(node.op, Cast)]
        expected = [time for time in (converted(t, way) for t in found.tensors) if time]
        assert sorted(conversions) == sorted(expected), way
    wide = priced(graph, partitioned(), costs, float16=False)
    assert not wide.tensors
    for number, (half, full) in enumerate(zip(found.layers, wide.layers, strict=True)):
        fewer = half.times[0] < full.times[0]
        assert fewer == (number in {t.maker for t in found.tensors}), names[number]


def measured_conversions(graph: Graph) -> dict[str, tuple[float, None]]:
    """Return a cost of one nanosecond for each tensor to float16, and two for the way back."""
    found: dict[str, tuple[float, None]] = {}
    for value in graph.values():
        half = Value("half", replace(value.type, dtype=DType.FLOAT16))
        for time, source, target in ((1.0, value, half), (2.0, half, value)):
            found[layer_key(conversion(source, target, Origin("C", 0)))] = time, None
    return found


def converted(tensor: PricedTensor, on_gpu: Sequence[bool]) -> float:
    """Return the cost of converting a tensor, if a conversion is needed."""
    halves = [on_gpu[reader] for reader in tensor.readers]
    if tensor.maker is not None and on_gpu[tensor.maker]:
        return tensor.times[1] if tensor.wide or not all(halves) else 0.0
    return tensor.times[0] if any(halves) else 0.0


def test_biases_stay_float32() -> None:
    net = Net(1, 3, 3, 4)
    conv = next(n for n in narrowed(net.graph(convolved(net))).nodes if n.op == Conv2D())
    kinds = [v.type.dtype for v in conv.inputs if v is not None]
    assert kinds == [DType.FLOAT16, DType.FLOAT16, DType.FLOAT32]


def test_reshapes_have_the_type_of_their_operand() -> None:
    net = Net(1, 3, 3, 4)
    rows = net.add(Reshape((9, 4)), net.x)
    dense = net.add(FullyConnected(), rows, floats(2, 4))
    found = types(narrowed(net.graph(net.add(Reshape((18,)), dense))))
    assert found == {
        "x_f16*": "f16",
        "reshape0_f16": "f16",
        "fullyconnected1": "f16",
        "fullyconnected1_f32*": "f32",
        "reshape2": "f32",
    }


def test_sums_of_exponentials_stay_float32() -> None:
    """Sums stay float32 until an operator scales them back to a normal magnitude."""
    net = Net(8, 4)
    first = net.add(FullyConnected(), net.x, floats(4, 4))
    powers = net.add(Unary("exp"), first)
    sums = net.add(Reduce("sum", (1,), keep_dims=True), powers)
    parts = net.add(Binary("div"), powers, sums)
    last = net.add(FullyConnected(), parts, floats(4, 4))
    found = types(narrowed(net.graph(net.add(Softmax(), last))))
    assert found["fullyconnected0"] == found["fullyconnected4"] == "f16"
    assert [found[name] for name in ("unary1", "reduce2", "binary3")] == ["f32"] * 3


def test_reshaped_large_tensors_stay_float32() -> None:
    net = Net(1, 4)
    powers = net.add(Reshape((4,)), net.add(Unary("exp"), net.x))
    graph = narrowed(net.graph(net.add(Unary("neg"), powers)))
    assert "f16" not in types(graph).values()


@pytest.mark.parametrize(
    ("constant", "stored"),
    [(-3e38, [-65504.0]), (-np.inf, [-np.inf]), (0.0, [0.0]), (1e-5, None), (0.1, [0.099976])],
)
def test_constants(constant: float, stored: list[float] | None) -> None:
    """Masks are clamped; constants that would become zero keep the layer in float32."""
    net = Net(2, 4)
    y = net.add(Binary("add"), net.x, np.array([constant], np.float32))
    node = next(n for n in narrowed(net.graph(y)).nodes if isinstance(n.op, Binary))
    kind = DType.FLOAT32 if stored is None else DType.FLOAT16
    assert node.input(1).type.dtype is kind
    if stored is not None:
        np.testing.assert_allclose(node.input(1).array.astype(np.float64), stored, rtol=1e-5)


@pytest.mark.parametrize("kind", ["mul", "div"])
def test_factors_are_not_clamped_like_masks(kind: str) -> None:
    for factor, stored in ((7e4, DType.FLOAT32), (6e4, DType.FLOAT16)):
        net = Net(2, 4)
        y = net.add(Binary(kind), net.x, np.array([factor], np.float32))
        node = next(n for n in narrowed(net.graph(y)).nodes if isinstance(n.op, Binary))
        assert node.input(1).type.dtype is stored


def test_constants_that_are_results_stay_float32() -> None:
    net = Net(2, 4)
    constant = net.add(Copy(), floats(2, 4))
    found = narrowed(net.graph(constant, net.add(Unary("neg"), net.x)))
    assert types(found)[constant.name] == "f32"
    assert f"{constant.name}_f16" not in types(found)


def test_weights_beyond_float16_stay_float32() -> None:
    net = Net(1, 3, 3, 4)
    assert "f16" not in types(narrowed(net.graph(convolved(net, 1e5)))).values()


def test_state_is_float32() -> None:
    net = Net(1, 4)
    before = Value("before", TensorType((1, 4), DType.FLOAT32))
    after = net.add(Binary("add"), net.x, before)
    state = State(before, after, np.zeros((1, 4), np.float32))
    graph = narrowed(net.graph(net.add(Unary("neg"), after), states=(state,)))
    assert graph.states[0].after.type == before.type
    assert types(graph)["binary0_f16"] == "f16"
    x = np.array([[1, 2, 3, 2000.5]], np.float32)
    first = evaluate(graph, [x])
    (found,) = evaluate(graph, [x], first.states).outputs
    np.testing.assert_array_equal(found, [[-2, -4, -6, -4000]])


def test_numpy_computes_halves_as_float32() -> None:
    """2048 + 1 + 1: in halves, each sum would be rounded."""
    op, type_ = Reduce("sum", (0,)), TensorType((3,), DType.FLOAT16)
    x, y = Value("x", type_), Value("y", replace(type_, shape=()))
    graph = Graph("sum", (x,), (y,), (Node(op, (x,), (y,), Origin("SUM", 0)),))
    (found,) = evaluate(graph, [np.array([2048, 1, 1], np.float16)]).outputs
    assert (found.dtype, float(found)) == (np.float16, 2050.0)

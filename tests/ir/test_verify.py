"""Tests of the verifier, which refuses invalid graphs, and of the evaluation of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from smelt.errors import ConfigError, GraphError, ModelError
from smelt.ir import (
    Array,
    DType,
    Graph,
    Node,
    Op,
    Origin,
    Quant,
    State,
    TensorType,
    Value,
    evaluate,
    verify,
)

F32 = TensorType((2,), DType.FLOAT32)
I8 = TensorType((2,), DType.INT8)


@dataclass(frozen=True)
class Sum(Op):
    """An operator that adds all operands, which are float32."""

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        for type_ in inputs:
            if type_ is not None and type_.dtype is not DType.FLOAT32:
                raise ModelError(f"Sum needs float32, got {type_}")
        return (F32,)

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        return (np.asarray(sum(x for x in inputs if x is not None), np.float32),)

    def macs(self, node: Node) -> int:
        return node.output.type.size * len(node.inputs)


@dataclass(frozen=True)
class Holder(Op):
    """An operator with a graph that it does not evaluate."""

    graph: Graph

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return (F32,)


X, Y, H = Value("x", F32), Value("y", F32), Value("h", F32)
ZERO = np.zeros(2, np.float32)


def sum_node(*inputs: Value | None, result: Value = Y) -> Node:
    return Node(Sum(), inputs, (result,), Origin("SUM", 3, "total"))


GOOD = Graph("g", (X,), (Y,), (sum_node(X),))


def quantized(dtype: DType, quant: Quant, shape: tuple[int, ...] = (2,)) -> Graph:
    return Graph("g", (Value("q", TensorType(shape, dtype, quant)),), (), ())


def with_state(before: Value, after: Value, initial: Array) -> Graph:
    return replace(GOOD, states=(State(before, after, initial),))


def constant(data: Array, type_: TensorType) -> Graph:
    return Graph("g", (), (Value("c", type_, data),), ())


def test_a_valid_graph_is_returned_unchanged() -> None:
    assert verify(GOOD, "a pass") is GOOD


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (replace(GOOD, nodes=(sum_node(X, H),)), r"'h' is used by Sum \(SUM #3 'total'\) before"),
        (replace(GOOD, nodes=(sum_node(Y),)), "'y' is used by Sum .* before"),
        (replace(GOOD, outputs=(H,)), "'h' is used by the graph's outputs before"),
        (replace(GOOD, nodes=(sum_node(X), sum_node(X))), "'y' is defined a second time, by Sum"),
        (replace(GOOD, inputs=(X, X)), "'x' is defined a second time, by the graph's inputs"),
        (
            replace(GOOD, nodes=(sum_node(X, Value.constant("y", ZERO)),)),
            "two values are called 'y'",
        ),
        (
            replace(GOOD, inputs=(X, Value("q", I8)), nodes=(sum_node(Value("q", I8)),)),
            "two values|before it is defined",
        ),
        (
            Graph("g", (X,), (), (sum_node(X, result=Value("y", I8)),)),
            r"makes f32\[2\], but 'y' is",
        ),
        (
            Graph("g", (X,), (), (replace(sum_node(X), outputs=(Y, H)),)),
            "makes 1 values, but has 2",
        ),
        (Graph("g", (Value("q", I8),), (), ()), None),
        (replace(GOOD, inputs=(X, Value.constant("c", ZERO))), "'c' is constant and cannot be"),
        (
            replace(GOOD, nodes=(sum_node(X, result=Value.constant("c", ZERO)),)),
            "'c' is constant and cannot be one of Sum",
        ),
        (constant(np.zeros(3, np.float32), F32), r"'c' is f32\[2\], but its array is float32\[3\]"),
        (constant(np.zeros(2, np.float64), F32), r"'c' is f32\[2\], but its array is float64\[2\]"),
        (quantized(DType.FLOAT32, Quant.per_tensor(1.0)), r"'q' is f32\[2\] and cannot be"),
        (quantized(DType.BOOL, Quant.per_tensor(1.0)), "cannot be quantized"),
        (quantized(DType.INT8, Quant((1.0,), (0,), 0)), "needs 2 scales and zero points, has 1"),
        (quantized(DType.INT8, Quant((1.0, 1.0), (0,), 0)), "has 2 and 1"),
        (quantized(DType.INT8, Quant((1.0,), (0,), 1)), "has no axis 1"),
        (quantized(DType.INT8, Quant((0.0,), (0,))), "scale that is not positive and finite"),
        (quantized(DType.INT8, Quant((float("nan"),), (0,))), "not positive and finite"),
        (quantized(DType.INT8, Quant((float("inf"),), (0,))), "not positive and finite"),
        (with_state(X, Y, ZERO), "'x' is defined a second time, by a state"),
        (with_state(H, Value("z", F32), ZERO), "'z' is used by a state before it is defined"),
        (with_state(Value("h", I8), Y, ZERO), r"state 'h' is i8\[2\] before and f32\[2\] after"),
        (with_state(H, Y, np.zeros(3, np.float32)), r"is f32\[2\] but starts with float32\[3\]"),
        (with_state(H, Y, np.zeros(2, np.int8)), r"is f32\[2\] but starts with int8\[2\]"),
        (
            replace(GOOD, nodes=(replace(sum_node(X), op=Holder(replace(GOOD, inputs=()))),)),
            r"Holder \(SUM #3 'total'\), in graph 'g': value 'x' is used",
        ),
    ],
)
def test_an_invalid_graph_is_refused(graph: Graph, message: str | None) -> None:
    if message is None:
        verify(graph, "a pass")
        return
    with pytest.raises(GraphError, match=message) as caught:
        verify(graph, "fold_everything")
    assert "after fold_everything, in graph 'g'" in str(caught.value)


def test_an_error_of_an_operator_is_reported_with_the_pass() -> None:
    q = Value("q", I8)
    graph = Graph("g", (q,), (Y,), (sum_node(q),))
    with pytest.raises(GraphError, match=r"after import.*Sum needs float32, got i8\[2\]"):
        verify(graph, "import")


def test_state_is_carried_from_one_inference_to_the_next() -> None:
    initial = np.array([10, 20], np.float32)
    graph = Graph("g", (X,), (Y,), (sum_node(X, H, None),), (State(H, Y, initial),))
    verify(graph, "building it")
    one = np.array([1, 2], np.float32)
    first = evaluate(graph, [one])
    np.testing.assert_array_equal(first.outputs[0], [11, 22])
    second = evaluate(graph, [one], first.states)
    np.testing.assert_array_equal(second.outputs[0], [12, 24])
    np.testing.assert_array_equal(evaluate(graph, [one]).outputs[0], [11, 22])
    np.testing.assert_array_equal(initial, [10, 20])


def test_evaluation_returns_every_value() -> None:
    c = Value.constant("c", np.array([3, 4], np.float32))
    graph = Graph("g", (X,), (Y, c, X), (sum_node(X, c),))
    found = evaluate(graph, [np.ones(2, np.float32)])
    assert {value.name: array.tolist() for value, array in found.values.items()} == {
        "x": [1, 1],
        "c": [3, 4],
        "y": [4, 5],
    }
    assert [array.tolist() for array in found.outputs] == [[4, 5], [3, 4], [1, 1]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "'g' takes 1 inputs, but 0 were given"),
        ([np.zeros(3, np.float32)], r"input 'x' of 'g' is f32\[2\]; got float32\[3\]"),
        ([np.zeros(2, np.float64)], r"got float64\[2\]"),
    ],
)
def test_evaluation_refuses_inputs_of_the_wrong_type(inputs: list[Array], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(GOOD, inputs)


@pytest.mark.parametrize("zero_point", [1 << 63, -(1 << 63), 10**40])
def test_zero_points_beyond_64_bits_are_refused(zero_point: int) -> None:
    with pytest.raises(ModelError, match="zero point does not fit in 64 bits"):
        Quant((0.5, 0.5), (0, zero_point), 0)

"""Sequences, which exist only during import, and derivatives (Gradient)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.ir import Array, evaluate
from tests.support.onnx_networks import graph, ints, model, node, tensor_info

RNG = np.random.default_rng(8)
X = RNG.uniform(-1, 1, (5, 3)).astype(np.float32)
FLOAT = onnx.TensorProto.FLOAT
POSITIONS = {
    "first": np.asarray(0, np.int64),
    "last": np.asarray(-1, np.int64),
    "two": np.asarray(2, np.int64),
    "yes": np.asarray(True),
}


def agrees(nodes: Sequence[onnx.NodeProto], constants: Mapping[str, Array] | None = None) -> None:
    """Assert that the graph from x to y computes the same as ONNX's reference."""
    proto = model(graph(nodes, {"x": (5, 3)}, "y", {**POSITIONS, **(constants or {})}))
    results: Any = ReferenceEvaluator(proto).run(None, {"x": X})
    wanted: Array = results[0]
    (found,) = evaluate(load(proto.SerializeToString()).graph, [X]).outputs
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


JOIN = node("ConcatFromSequence", "s", "y", axis=0)


@pytest.mark.parametrize("position", ["first", "last", "two"])
def test_split_without_sizes_gives_single_rows(position: str) -> None:
    agrees([node("SplitToSequence", "x", "s"), node("SequenceAt", f"s {position}", "y")])
    dropped = node("SplitToSequence", "x", "s", axis=1, keepdims=0)
    agrees([dropped, node("SequenceAt", f"s {position}", "y")])


@pytest.mark.parametrize("sizes", [np.asarray(2), np.asarray(7), ints(1, 3, 1)])
def test_split_by_sizes_agrees_with_the_reference(sizes: Array) -> None:
    split = node("SplitToSequence", "x n", "s")
    agrees([split, node("SequenceAt", "s last", "y")], {"n": sizes.astype(np.int64)})


def test_insert_and_erase_agree_with_the_reference() -> None:
    steps = [
        node("SequenceEmpty", "", "none", dtype=FLOAT),
        node("Relu", "x", "r"),
        node("SequenceInsert", "none x", "one"),
        node("SequenceInsert", "one r first", "two_"),
        node("SequenceInsert", "two_ x last", "three"),
        node("SequenceErase", "three first", "left"),
        node("SequenceErase", "left", "s"),
        node("SequenceInsert", "s r", "t"),
    ]
    agrees([*steps, node("ConcatFromSequence", "t", "y", axis=1)])
    agrees([*steps, node("ConcatFromSequence", "t", "y", axis=-1, new_axis=1)])


def test_a_known_branch_may_return_a_sequence() -> None:
    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name="b")])

    then = branch("then", node("Neg", "x", "m"), node("SequenceConstruct", "x m x", "b"))
    other = branch("other", node("SequenceConstruct", "x", "b"))
    chosen = node("If", "yes", "a", then_branch=then, else_branch=other)
    agrees([chosen, node("Identity", "a", "s"), JOIN])


def test_a_loop_may_append_to_a_sequence() -> None:
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    body = helper.make_graph(
        [
            node("Identity", "c", "more"),
            node("Cast", "i", "f", to=FLOAT),
            node("Add", "x f", "row"),
            node("SequenceInsert", "t row", "u"),
        ],
        "body",
        [
            tensor_info("i", (), "l"),
            tensor_info("c", (), "b"),
            helper.make_value_info("t", sequence),
        ],
        [tensor_info("more", (), "b"), helper.make_value_info("u", sequence)],
    )
    start = node("SequenceConstruct", "x", "start")
    agrees([start, node("Loop", "two yes start", "s", body=body), JOIN])


def test_sequence_map_is_applied_to_each_element() -> None:
    body = helper.make_graph(
        [node("Neg", "e", "n")], "body", [tensor_info("e", None)], [tensor_info("n", None)]
    )
    split = node("SplitToSequence", "x", "t")
    agrees([split, node("SequenceMap", "t", "s", body=body), JOIN])


def test_the_length_of_a_sequence_is_a_constant() -> None:
    steps = [node("SplitToSequence", "x", "s"), node("SequenceLength", "s", "n")]
    agrees([*steps, node("Cast", "n", "f", to=FLOAT), node("Mul", "x f", "y")])


@pytest.mark.parametrize(
    ("nodes", "error", "message"),
    [
        (
            [node("SplitToSequence", "x", "y")],
            UnsupportedError,
            "output 'y' is a sequence.*SequenceAt",
        ),
        (
            [
                node("SplitToSequence", "x", "s"),
                node("ArgMax", "x", "i", axis=0, keepdims=0),
                node("Gather", "i first", "at"),
                node("SequenceAt", "s at", "y"),
            ],
            UnsupportedError,
            "position in a sequence 'at.*' is computed at run time",
        ),
        (
            [node("SequenceConstruct", "x", "s"), node("SequenceAt", "s two", "y")],
            ModelError,
            "position 2 does not exist in a sequence of 1 tensors",
        ),
        (
            [node("SequenceConstruct", "x", "s"), node("Relu", "s", "y")],
            ModelError,
            "takes a tensor as input 0, not a sequence",
        ),
        ([node("SequenceAt", "x first", "y")], ModelError, "takes a sequence as input 0"),
        (
            [node("SequenceConstruct", "x yes", "s"), node("SequenceAt", "s first", "y")],
            ModelError,
            "'yes' is bool.*the elements of the sequence are",
        ),
        (
            [node("SequenceEmpty", "", "s"), node("ConcatFromSequence", "s", "y", axis=0)],
            ModelError,
            "its sequence is empty",
        ),
    ],
)
def test_wrong_uses_of_sequences_are_refused(
    nodes: Sequence[onnx.NodeProto], error: type[Exception], message: str
) -> None:
    proto = model(graph(nodes, {"x": (5, 3)}, "y", POSITIONS))
    with pytest.raises(error, match=message):
        load(proto.SerializeToString())


def test_gradient_computes_derivatives() -> None:
    """y = (a - e^b) b / a, with b broadcast."""
    nodes = [
        node("Exp", "b", "e"),
        node("Sub", "a e", "d"),
        node("Mul", "d b", "p"),
        node("Div", "p a", "y"),
        node("Gradient", "a b", "da db", "ai.onnx.preview.training", xs=["a", "b"], y="y"),
    ]
    proto = model(graph(nodes, {"a": (4, 3), "b": (3,)}, "y da db"), ai_onnx_preview_training=1)
    a, b = RNG.uniform(1, 2, (4, 3)), RNG.uniform(-1, 1, 3)
    fed = [a.astype(np.float32), b.astype(np.float32)]
    _, da, db = evaluate(load(proto.SerializeToString()).graph, fed).outputs
    np.testing.assert_allclose(da, np.exp(b) * b / a**2, rtol=1e-5, atol=1e-6)
    by_b = ((a - np.exp(b)) - b * np.exp(b)) / a
    np.testing.assert_allclose(db, by_b.sum(axis=0), rtol=1e-5, atol=1e-6)


def test_a_derivative_without_rule_is_refused() -> None:
    nodes = [
        node("Erf", "a", "y"),
        node("Gradient", "a", "da", "ai.onnx.preview.training", xs=["a"], y="y"),
    ]
    proto = model(graph(nodes, {"a": (2,)}, "y da"), ai_onnx_preview_training=1)
    with pytest.raises(UnsupportedError, match=r"the derivative of .*Erf.* is not supported"):
        load(proto.SerializeToString())

"""Topological sorting of operators; cycles and tensors computed twice are refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from smelt.api.compile import compile_model
from smelt.errors import ModelError
from smelt.frontend import load
from smelt.frontend.onnx.topological_order import sort_operators
from smelt.ir import Array, evaluate
from smelt.proof.run import run
from tests.support.onnx_networks import agrees, graph, model, node, tensor_info
from tests.support.shared import ROOT

X = np.asarray([1, -2, 3], np.float32)


def imported(proto: onnx.ModelProto) -> Any:
    return load(proto.SerializeToString(), "net").graph


def _results(proto: onnx.ModelProto, **feeds: Array) -> tuple[Array, ...]:
    found = imported(proto)
    return evaluate(found, [feeds[value.name] for value in found.inputs]).outputs


def _shuffled(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return the model with the operators of its graph and sub-graphs in a random order."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    rng, waiting = random.Random(seed), [result.graph]
    while waiting:
        inner = waiting.pop()
        nodes = list(inner.node)
        rng.shuffle(nodes)
        del inner.node[:]
        inner.node.extend(nodes)
        waiting += [a.g for n in inner.node for a in n.attribute if a.HasField("g")]
    return result


def _branches() -> onnx.ModelProto:
    """Return an If whose branches read outer tensors; one names a tensor like the If's output."""
    then = graph([node("Exp", "deep", "y"), node("Neg", "late", "deep")], [], "y", name="then")
    other = graph([node("Abs", "x", "z")], [], "z", name="other")
    nodes = [
        node("Add", "y x", "result"),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
        node("Sigmoid", "x", "late"),
    ]
    inputs = [tensor_info("x", [3]), tensor_info("c", [], "b")]
    return model(graph(nodes, inputs, "result"))


def test_tensors_that_branches_read_are_computed_first() -> None:
    proto = _branches()
    for condition in (True, False):
        given = np.asarray(condition)
        (found,) = _results(proto, x=X, c=given)
        expected = np.exp(-1 / (1 + np.exp(-X))) if condition else np.abs(X)
        np.testing.assert_allclose(found, X + expected, 1e-6)


def test_unsorted_operators_agree_with_onnxruntime() -> None:
    nodes = [
        node("Neg", "e", "y"),
        node("Mul", "d b", "e"),
        node("Add", "a b", "d"),
        node("Sigmoid", "x", "a"),
        node("Exp", "x", "b"),
    ]
    agrees(model(graph(nodes, {"x": [3]}, "y")), {"x": X})


def test_every_order_gives_the_same_network() -> None:
    proto = onnx.load(ROOT / "examples/digits/digits.onnx")
    image = np.random.default_rng(1).uniform(0, 1, imported(proto).inputs[0].type.shape)
    expected = _results(proto, **{imported(proto).inputs[0].name: image.astype(np.float32)})
    for seed in range(5):
        shuffled = _shuffled(proto, seed)
        feeds = {imported(shuffled).inputs[0].name: image.astype(np.float32)}
        for found, wanted in zip(_results(shuffled, **feeds), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_sorted_files_are_not_changed() -> None:
    proto = onnx.load(ROOT / "examples/digits/digits.onnx")
    before = proto.SerializeToString(deterministic=True)
    sort_operators(proto)
    assert proto.SerializeToString(deterministic=True) == before


def test_operators_move_only_as_far_as_needed() -> None:
    nodes = [node("Neg", "b", "y"), node("Abs", "x", "c"), node("Exp", "x", "b")]
    nodes += [node("Relu", "x", "d"), node("Sum", "y c d", "z")]
    proto = model(graph(nodes, {"x": [3]}, "z"))
    sort_operators(proto)
    assert [n.op_type for n in proto.graph.node] == ["Abs", "Exp", "Neg", "Relu", "Sum"]


def test_bodies_of_functions_are_sorted() -> None:
    """Otherwise, the onnx package's inliner would read the caller's tensor `t`."""
    body = [node("Neg", "t", "b"), node("Sigmoid", "a", "t")]
    opsets = [helper.make_opsetid("", 21)]
    function = helper.make_function("own", "Turned", ["a"], ["b"], body, opsets)
    nodes = [node("Turned", "t", "y", "own"), node("Abs", "x", "t")]
    proto = model(graph(nodes, {"x": [3]}, "y"), own=1)
    proto.functions.append(function)
    (found,) = _results(proto, x=X)
    np.testing.assert_allclose(found, -1 / (1 + np.exp(-np.abs(X))), 1e-6)


def test_old_operator_sets_are_sorted() -> None:
    nodes = [node("Neg", "a", "y"), node("Abs", "x", "a")]
    proto = model(graph(nodes, {"x": [3]}, "y"), 6)
    np.testing.assert_array_equal(_results(proto, x=X)[0], -np.abs(X))


def test_generated_code_of_a_sorted_network_is_correct() -> None:
    outputs = list(
        run(compile_model(_branches().SerializeToString()), [(X, np.asarray(True))]).outputs
    )
    np.testing.assert_allclose(outputs[0][0], X + np.exp(-1 / (1 + np.exp(-X))), 1e-5)


@pytest.mark.thorough
def test_long_chains_are_sorted_without_recursion() -> None:
    count = 100_000
    nodes = [helper.make_node("Neg", [f"t{i}"], [f"t{i + 1}"]) for i in range(count)]
    proto = model(graph(nodes[::-1], {"t0": [1]}, f"t{count}"))
    sort_operators(proto)
    assert [n.input[0] for n in proto.graph.node] == [f"t{i}" for i in range(count)]


def test_the_message_lists_the_operators_of_a_cycle() -> None:
    nodes = [
        node("Relu", "x", "a", name="first"),
        node("Add", "a d", "b", name="join"),
        node("Sigmoid", "b", "c"),
        node("Neg", "c", "d", name="back"),
        node("Exp", "d", "y"),
    ]
    with pytest.raises(ModelError) as refusal:
        imported(model(graph(nodes, {"x": [3]}, "y")))
    text = str(refusal.value)
    for step in (
        "Add #1 'join' reads 'd' of Neg #3 'back'",
        "Sigmoid #2 reads 'b' of Add #1 'join'",
        "Neg #3 'back' reads 'c' of Sigmoid #2",
    ):
        assert step in text
    assert "Relu" not in text
    assert "Exp" not in text


def test_an_operator_that_reads_its_own_output_is_refused() -> None:
    with pytest.raises(ModelError, match=r"cycle: Add #0 'me' reads 'y' of Add #0 'me': the file"):
        imported(model(graph([node("Add", "x y", "y", name="me")], {"x": [3]}, "y")))


def test_a_cycle_through_a_branch_is_refused() -> None:
    proto = _branches()
    branch = proto.graph.node[1].attribute[1].g
    branch.node[0].input[0] = "result"
    with pytest.raises(ModelError, match=r"If #1 reads 'result' of Add #0"):
        imported(proto)


def test_the_message_shortens_a_long_cycle() -> None:
    nodes = [node("Neg", f"t{i}", f"t{(i + 1) % 1000}") for i in range(1000)]
    with pytest.raises(ModelError, match="and 992 more") as refusal:
        imported(model(graph([*nodes, node("Add", "x t0", "y")], {"x": [3]}, "y")))
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize(
    ("first", "constants", "maker"),
    [
        ("y", {}, "Relu #0 'one'"),
        ("a", {"y": np.zeros(3, np.float32)}, "the constants"),
    ],
)
def test_a_tensor_that_is_computed_twice_is_refused(
    first: str, constants: dict[str, Array], maker: str
) -> None:
    nodes = [node("Relu", "x", first, name="one"), node("Sigmoid", "x", "y", name="two")]
    with pytest.raises(ModelError, match=f"Sigmoid #1 'two' computes tensor 'y', which {maker}"):
        imported(model(graph(nodes, {"x": [3]}, "y", constants)))


def test_a_tensor_that_is_computed_twice_in_a_branch_is_refused() -> None:
    proto = _branches()
    proto.graph.node[1].attribute[0].g.node.append(node("Abs", "x", "z"))
    proto.graph.node[1].attribute[1].g.node.append(node("Abs", "x", "y"))
    with pytest.raises(ModelError, match=r"Abs #\d computes tensor '[yz]'"):
        imported(proto)


def test_an_operator_that_computes_an_input_is_refused() -> None:
    with pytest.raises(ModelError, match=r"Relu #0 computes tensor 'x', which the inputs already"):
        imported(model(graph([node("Relu", "x", "x")], {"x": [3]}, "x")))

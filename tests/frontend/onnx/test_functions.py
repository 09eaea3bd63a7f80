"""Functions that an ONNX model defines: their results, and limits on the operators they copy."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.onnx.checks import LARGEST_NETWORK
from smelt.ir import Array
from tests.support.onnx_networks import agrees, graph, imported, model, node, uniform


def doubling(levels: int, *first: onnx.NodeProto) -> onnx.ModelProto:
    """Return a network of functions: F0 has the nodes `first`, F1 calls F0 twice, F2 calls F1 …."""
    calls = [
        [node(f"F{level}", f"{a}", b, "own") for a, b in (("a", "t"), ("t", "b"))]
        for level in range(levels)
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    proto = model(graph([node(f"F{levels}", "x", "y", "own")], {"x": [2]}, "y"), own=1)
    proto.functions.extend(
        helper.make_function("own", f"F{level}", ["a"], ["b"], body, opsets)
        for level, body in enumerate([list(first), *calls])
    )
    return proto


def test_exponentially_growing_functions_are_refused_within_seconds() -> None:
    start = time.process_time()
    with pytest.raises(UnsupportedError, match=rf"more than {LARGEST_NETWORK:,} operators"):
        imported(doubling(60, node("Relu", "a", "b")))
    older = doubling(60, node("Relu", "a", "b"))
    older.opset_import[0].version = 3  # converted to a later version after functions are inlined
    with pytest.raises(UnsupportedError, match=rf"more than {LARGEST_NETWORK:,} operators"):
        imported(older)
    assert time.process_time() - start < 5
    assert len(imported(doubling(5, node("Neg", "a", "b"))).graph.nodes) == 32


def test_recursive_functions_are_refused() -> None:
    with pytest.raises(ModelError, match=r"never end: 'F\d' calls 'F\d'"):
        imported(doubling(2, node("F2", "a", "b", "own")))


OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]


def calling(calls: int, body: list[onnx.NodeProto], **large: Array) -> onnx.ModelProto:
    """Return a network of consecutive calls of a function.

    Args:
        calls: number of calls.
        body: nodes of the function, from `a` to `b`.
        large: tensor attributes of each call.
    """
    names = [f"t{index}" for index in range(calls)]
    tensors = {name: numpy_helper.from_array(array) for name, array in large.items()}
    nodes = [node("F", a, b, "own", **tensors) for a, b in pairwise(["x", *names[1:], "y"])]
    proto = model(graph(nodes, {"x": [1]}, "y"), own=1)
    proto.functions.append(
        helper.make_function("own", "F", ["a"], ["b"], body, OPSETS, list(large))
    )
    return proto


def adding_constants(times: int, **attributes: Any) -> list[onnx.NodeProto]:
    """Return a function's body that adds the maxima of `times` constants to `a`.

    Args:
        times: number of constants.
        attributes: of each node Constant.
    """
    nodes = [node("Identity", "a", "t0")]
    for i in range(times):
        nodes += [
            node("Constant", "", f"c{i}", "", **attributes),
            node("ReduceMax", f"c{i}", f"m{i}", keepdims=0),
            node("Add", f"t{i} m{i}", f"t{i + 1}"),
        ]
    return [*nodes, node("Identity", f"t{times}", "b")]


def with_attribute_as_value(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Give each Constant among the nodes the function's attribute `big` as value."""
    for step in nodes:
        if step.op_type == "Constant":
            step.attribute.add(name="value", ref_attr_name="big", type=onnx.AttributeProto.TENSOR)
    return nodes


_LARGE = np.ones(2**18, np.float32)


def _doubled() -> onnx.ModelProto:
    """Return a network that inlining would give 2^10 copies of a large constant."""
    return doubling(10, *adding_constants(1, value=numpy_helper.from_array(_LARGE)))


@pytest.mark.parametrize(
    "made",
    [
        lambda: calling(2**9, adding_constants(1, value=numpy_helper.from_array(_LARGE))),
        _doubled,
        lambda: calling(1, with_attribute_as_value(adding_constants(2**9)), big=_LARGE),
    ],
    ids=["called often", "doubled", "attribute that is copied"],
)
def test_functions_that_copy_large_constants_are_refused(
    made: Callable[[], onnx.ModelProto],
) -> None:
    with pytest.raises(
        UnsupportedError,
        match=r"functions take [\d,]{11,} bytes after.* at most 3\d,\d{3},\d{3} for",
    ):
        imported(made())


def test_doc_strings_and_metadata_of_functions_are_not_copied() -> None:
    proto = calling(2**9, [node("Neg", "a", "b", doc_string="n" * 2**18)])
    proto.functions[0].doc_string = "f" * 2**18
    proto.functions[0].node[0].metadata_props.add(key="k", value="m" * 2**13)
    assert len(imported(proto).graph.nodes) == 2**9


def test_functions_that_nothing_calls_are_not_counted() -> None:
    proto = calling(4, [node("Neg", "a", "b")])
    body = [node("F", "a", "t", "own"), node("Unused", "t", "b", "own")]
    proto.functions.append(helper.make_function("own", "Unused", ["a"], ["b"], body, OPSETS))
    assert len(imported(proto).graph.nodes) == 4


def test_calls_without_an_attribute_use_the_default_of_the_function() -> None:
    """An attribute of an operator and a constant have defaults; a call is in another function."""
    body = [node("Constant", "", "k"), node("LeakyRelu", "a", "t"), node("Mul", "t k", "b")]
    for step, own, outer in ((body[0], "value_float", "factor"), (body[1], "alpha", "slope")):
        step.attribute.add(name=own, ref_attr_name=outer, type=onnx.AttributeProto.FLOAT)
    defaults = [helper.make_attribute("factor", 3.0), helper.make_attribute("slope", 0.25)]
    calls = [node("F", "a", "t", "own"), node("F", "t", "b", "own", factor=2.0)]
    nodes = [node("F", "x", "t", "own", slope=0.5), node("G", "t", "y", "own")]
    proto = model(graph(nodes, {"x": [4]}, "y"), own=1)
    inner = helper.make_function("own", "F", ["a"], ["b"], body, OPSETS, [], defaults)
    outer = helper.make_function("own", "G", ["a"], ["b"], calls, OPSETS)
    proto.functions.extend([inner, outer])
    agrees(proto, {"x": uniform(4)})


def passing_on(*defaults: float, bare: bool = False) -> onnx.ModelProto:
    """Return a call, without attribute, of a function that passes its attribute `q` on.

    Args:
        defaults: default of the attribute for each function that it is passed to.
        bare: pass the attribute also to an operator, which has its own default.
    """
    functions: list[onnx.FunctionProto] = []
    calls: list[onnx.NodeProto] = []
    for i, default in enumerate(defaults):
        leaky = node("LeakyRelu", "a", "b")
        leaky.attribute.add(name="alpha", ref_attr_name="s", type=onnx.AttributeProto.FLOAT)
        given = [helper.make_attribute("s", default)]
        functions.append(
            helper.make_function("own", f"F{i}", ["a"], ["b"], [leaky], OPSETS, [], given)
        )
        calls.append(node(f"F{i}", f"t{i}", f"t{i + 1}", "own"))
    if bare:
        calls.append(node("LeakyRelu", f"t{len(calls)}", f"t{len(calls) + 1}"))
    for call in calls:
        name = "s" if call.domain else "alpha"
        call.attribute.add(name=name, ref_attr_name="q", type=onnx.AttributeProto.FLOAT)
    outer = helper.make_function("own", "G", ["t0"], [f"t{len(calls)}"], calls, OPSETS, ["q"])
    proto = model(graph([node("G", "x", "y", "own")], {"x": [4]}, "y"), own=1)
    proto.functions.extend([*functions, outer])
    return proto


def test_an_attribute_that_is_passed_on_has_the_default_of_its_receiver() -> None:
    agrees(passing_on(0.25), {"x": uniform(4)})
    agrees(passing_on(0.25, 0.25), {"x": uniform(4)})


@pytest.mark.parametrize("proto", [passing_on(0.25, 0.5), passing_on(0.25, bare=True)])
def test_an_attribute_passed_on_to_different_defaults_is_refused(proto: onnx.ModelProto) -> None:
    with pytest.raises(UnsupportedError, match="'q' of the model's function 'G' has no default"):
        imported(proto)


@pytest.mark.parametrize("version", [13, 20, 22])
def test_functions_may_be_of_another_operator_set(version: int) -> None:
    own = [helper.make_opsetid("", version)]
    body = [node("Softmax", "a", "t"), node("Neg", "t", "b")]
    proto = model(graph([node("F", "x", "y", "own")], {"x": [2, 3, 4]}, "y"), own=1)
    proto.functions.append(helper.make_function("own", "F", ["a"], ["b"], body, own))
    agrees(proto, {"x": uniform(2, 3, 4)})


def test_long_names_that_are_passed_to_functions_are_counted() -> None:
    body = [*(node("Neg", "a", f"v{i}") for i in range(10_000)), node("Neg", "a", "b")]
    name = "n" * 16_000
    proto = model(graph([node("Neg", "x", name), node("F", name, "y", "own")], {"x": [4]}, "y"))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.functions.append(helper.make_function("own", "F", ["a"], ["b"], body, OPSETS))
    with pytest.raises(UnsupportedError, match=r"functions take [\d,]{11,} bytes"):
        imported(proto)


def test_deeply_nested_functions_are_refused_by_smelt() -> None:
    chain = doubling(0, node("Neg", "a", "b"))
    chain.graph.node[0].op_type = "F65"
    for level in range(1, 66):
        body = [node(f"F{level - 1}", "a", "b", "own")]
        chain.functions.append(helper.make_function("own", f"F{level}", ["a"], ["b"], body, OPSETS))
    words = r"66 levels deep \(from 'F65'\).*64 levels: export"
    with pytest.raises(UnsupportedError, match=words):
        imported(chain)

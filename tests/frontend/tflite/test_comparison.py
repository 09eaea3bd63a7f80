"""TFLite operators that compare, select, or make constants, against both of TFLite's engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

from smelt.codegen.passes import run_passes
from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.frontend.tflite.comparison import CONVERTERS
from smelt.frontend.tflite.file import read
from smelt.ir import Array, evaluate
from smelt.ops.core.table import Table
from tests.differential.oracles import tflite_micro_outputs
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.tflite_networks import O, T, const, edited, litert, network

RNG = np.random.default_rng(29)
COMPARISONS = ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")


def _quant(scale: float, zero_point: int) -> dict[str, Any]:
    return {"scale": (scale,), "zero_point": (zero_point,)}


SCALES = {
    "equal": (_quant(0.05, 3), _quant(0.05, 3)),
    "different": (_quant(0.05, -7), _quant(0.031, 20)),
    # Real numbers are rounded to multiples of 1/256 before they are compared.
    "small": (_quant(0.0011, 3), _quant(0.0007, -3)),
    "large": (_quant(0.9, 3), _quant(0.7, -128)),
}


def comparison(kind: str, dtype: type, scales: str = "equal", other: T | None = None) -> bytes:
    """Return a comparison of the inputs `a` and `b`, broadcast, or of `a` and a constant."""
    left, right = SCALES[scales] if dtype is np.int8 else ({}, {})
    a = T("a", (3, 40), dtype, **left)
    b = other or T("b", (2, 3, 1), dtype, **right)
    shape = np.broadcast_shapes(a.shape, b.shape)
    y = T("y", shape, np.bool_)
    fed = [t.name for t in (a, b) if t.data is None]
    return network([a, b, y], [O(kind, ["a", b.name], ["y"])], fed, ["y"])


def selection(kind: str, condition: Sequence[int], dtype: type) -> bytes:
    quant = _quant(0.05, 3) if dtype is np.int8 else {}
    tensors = [
        T("c", tuple(condition), np.bool_),
        *(T(name, (4, 3, 5), dtype, **quant) for name in "aby"),
    ]
    return network(tensors, [O(kind, "cab", ["y"])], list("cab"), ["y"])


def reduction(kind: str, *, keep: bool) -> bytes:
    shape = (3, 1) if keep else (3,)
    tensors = [T("x", (3, 6), np.bool_), const("axis", [-1], np.int32), T("y", shape, np.bool_)]
    fields = {"keepDims": keep}
    reduce = O(kind, ["x", "axis"], ["y"], schema.ReducerOptionsT, fields)
    return network(tensors, [reduce], ["x"], ["y"])


def logical(kind: str) -> bytes:
    names = "a" if kind == "LOGICAL_NOT" else "ab"
    tensors = [*(T(n, (3, 4), np.bool_) for n in names), T("y", (3, 4), np.bool_)]
    return network(tensors, [O(kind, names, ["y"])], list(names), ["y"])


def fill(dtype: type) -> bytes:
    quant = _quant(0.05, 3) if dtype is np.int8 else {}
    tensors = [
        const("shape", [2, 3, 4], np.int32),
        T("value", (), dtype, **quant),
        T("y", (2, 3, 4), dtype, **quant),
    ]
    return network(tensors, [O("FILL", ["shape", "value"], ["y"])], ["value"], ["y"])


def fill_like() -> bytes:
    """Return a network that fills a tensor of the shape of its input, broadcast with another."""
    tensors = [
        *(T("x", (4, 1)), T("value", ()), const("other", [3, 1, 5], np.int32)),
        *(T("size", (2,), np.int32), T("shape", (3,), np.int32), T("y", (3, 4, 5))),
    ]
    types = {"outType": schema.TensorType.INT32}
    operators = [
        O("SHAPE", ["x"], ["size"], schema.ShapeOptionsT, types),
        O("BROADCAST_ARGS", ["size", "other"], ["shape"]),
        O("FILL", ["shape", "value"], ["y"]),
    ]
    return network(tensors, operators, ["x", "value"], ["y"])


def zeros(dtype: type) -> bytes:
    """Return the sum of an input and of zeros like it; LiteRT needs a computed output."""
    x, z, y = (T(name, (2, 5), dtype) for name in "xzy")
    add = O("ADD", "xz", ["y"], schema.AddOptionsT)
    return network([x, z, y], [O("ZEROS_LIKE", "x", ["z"]), add], ["x"], ["y"])


NETWORKS = {
    **{
        f"{kind.lower()}_{np.dtype(dtype).name}": comparison(kind, dtype)
        for kind in COMPARISONS
        for dtype in (np.float32, np.int32, np.int64, np.bool_)
        if dtype is not np.bool_ or ("EQUAL" in kind[-9:] and kind[0] in "EN")
    },
    **{
        f"{kind.lower()}_int8_{scales}": comparison(kind, np.int8, scales)
        for kind in COMPARISONS
        for scales in SCALES
    },
    **{kind.lower(): logical(kind) for kind in ("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT")},
    **{
        f"select_{len(shape)}d_{np.dtype(dtype).name}": selection("SELECT", shape, dtype)
        for shape in ((4,), (4, 3, 5))
        for dtype in (np.float32, np.int8)
    },
    **{
        f"select_v2_{'x'.join(map(str, shape))}": selection("SELECT_V2", shape, np.float32)
        for shape in ((4, 3, 5), (3, 1), (1,))
    },
    "select_v2_int8": selection("SELECT_V2", (4, 3, 5), np.int8),
    **{f"fill_{np.dtype(d).name}": fill(d) for d in (np.float32, np.int8, np.int32)},
    **{
        f"{kind.lower()}_{keep:d}": reduction(kind, keep=keep)
        for kind in ("REDUCE_ALL", "REDUCE_ANY")
        for keep in (False, True)
    },
    "fill_like": fill_like(),
    "zeros_like_float32": zeros(np.float32),
}


def inputs_of(file: bytes) -> list[Array]:
    """Return inputs with many equal elements; 8-bit ones are over the whole range."""
    found: list[Array] = []
    for value in load(file).graph.inputs:
        dtype, shape = value.type.dtype.numpy, value.type.shape
        low, high = {"int8": (-128, 128), "bool": (0, 2)}.get(np.dtype(dtype).name, (-3, 4))
        found.append(RNG.integers(low, high, shape).astype(dtype))
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_operators_agree_with_litert(name: str) -> None:
    file = NETWORKS[name]
    inputs = inputs_of(file)
    expected = litert(file, *inputs)
    imported = load(file).graph
    for graph in (imported, run_passes(imported)):
        for output, wanted in zip(evaluate(graph, inputs).outputs, expected, strict=True):
            assert (output.shape, output.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_array_equal(output, wanted)


def test_generated_code_equals_the_reference() -> None:
    members: list[Member] = []
    for file in NETWORKS.values():
        graph = load(file).graph
        members.append(Member(graph, [tuple(inputs_of(file)) for _ in range(2)]))
    for member, found in zip(members, run_together(members, SETUPS["host"]), strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(found, expected, member.graph.name)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("kind", COMPARISONS)
def test_8_bit_comparisons_equal_tflite_micro(kind: str, scales: str) -> None:
    pytest.importorskip("tflite_micro", reason="TensorFlow Lite Micro is not installed")
    file = comparison(kind, np.int8, scales)
    inputs = inputs_of(file)
    ((expected,),) = tflite_micro_outputs(file, [inputs])
    np.testing.assert_array_equal(evaluate(load(file).graph, inputs).outputs[0], expected)


def _swap_operands(model: Any) -> None:
    (operator,) = model.subgraphs[0].operators
    operator.inputs = operator.inputs[::-1]


@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_comparison_with_a_constant_is_a_table(kind: str, *, swapped: bool) -> None:
    quant = SCALES["different"][1]
    file = comparison(kind, np.int8, "different", const("b", [-4], np.int8, **quant))
    if swapped:
        file = edited(file, _swap_operands)
    graph = load(file).graph
    (node,) = graph.nodes
    assert isinstance(node.op, Table)
    inputs = [np.arange(-60, 60, dtype=np.int8).reshape(3, 40)]
    np.testing.assert_array_equal(evaluate(graph, inputs).outputs[0], litert(file, *inputs)[0])


def test_every_converter_is_tested() -> None:
    kinds = {o.kind for file in NETWORKS.values() for o in read(file)[0].operators}
    assert kinds - {"ADD", "SHAPE", "BROADCAST_ARGS"} == set(CONVERTERS)


def _two_values(model: Any) -> None:
    model.subgraphs[0].tensors[1].shape = [2]


def test_wrong_operators_are_refused_with_the_reason() -> None:
    with pytest.raises(ModelError, match=r"FILL #0.*its value .* must have one element"):
        load(edited(fill(np.float32), _two_values))
    mixed = comparison("LESS", np.int8, other=T("b", (3, 1), np.float32))
    with pytest.raises(ModelError, match=r"LESS #0"):
        load(mixed)
    with pytest.raises(UnsupportedError, match=r"EQUAL #0.*legacy quantization"):
        load(comparison("EQUAL", np.uint8))

"""TFLite's IF and WHILE, against LiteRT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

from smelt.codegen.passes import run_passes
from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.ir import evaluate
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.tflite_networks import (
    O,
    T,
    const,
    edited,
    litert,
    network,
    with_subgraphs,
)

SHAPE = (2, 3)
ADD, MUL = schema.AddOptionsT, schema.MulOptionsT


def data(*names: str, dtype: type = np.float32) -> list[T]:
    quant: dict[str, Any] = {"scale": (0.05,), "zero_point": (3,)} if dtype is np.int8 else {}
    return [T(name, SHAPE, dtype, **quant) for name in names]


def combined(kind: str, options: Any, dtype: type) -> bytes:
    """Return a branch: a sum or a product of two inputs."""
    tensors = data("a", "b", "y", dtype=dtype)
    return network(tensors, [O(kind, "ab", ["y"], options)], "ab", ["y"])


def first(dtype: type) -> bytes:
    """Return a branch that returns its first input."""
    return network(data("a", "b", dtype=dtype), [], "ab", ["a"])


def fixed() -> bytes:
    """Return a branch that returns a constant."""
    tensors = [*data("a", "b"), const("c", np.arange(6).reshape(SHAPE))]
    return network(tensors, [], "ab", ["c"])


def choice(*branches: bytes, dtype: type = np.float32, then: int = 1, other: int = 2) -> bytes:
    """Return a network that runs one of two branches: the first one if `c` is true."""
    tensors = [T("c", (1,), np.bool_), *data("a", "b", "y", dtype=dtype)]
    fields = {"thenSubgraphIndex": then, "elseSubgraphIndex": other}
    operator = O("IF", "cab", ["y"], schema.IfOptionsT, fields)
    return with_subgraphs(network(tensors, [operator], "cab", ["y"]), *branches)


def nested() -> bytes:
    """Return a choice, in one branch of which there is another choice by a comparison."""
    tensors = [
        *data("a", "b", "y"),
        *(T("s", (), np.float32), T("c", (), np.bool_), const("zero", 0.0)),
        const("axes", [0, 1], np.int32),
    ]
    fields = {"thenSubgraphIndex": 3, "elseSubgraphIndex": 4}
    operators = [
        O("SUM", ["a", "axes"], ["s"], schema.ReducerOptionsT),
        O("GREATER", ["s", "zero"], ["c"], schema.GreaterOptionsT),
        O("IF", "cab", ["y"], schema.IfOptionsT, fields),
    ]
    inner = network(tensors, operators, "ab", ["y"])
    sums = combined("ADD", ADD, np.float32)
    return choice(inner, sums, sums, combined("MUL", MUL, np.float32))


def loop() -> bytes:
    """Return a network that doubles `x` while a counter is below its limit."""
    carried = [T("i", (), np.int32), T("x", SHAPE)]
    results = [T("j", (), np.int32), T("y", SHAPE)]
    fields = {"condSubgraphIndex": 1, "bodySubgraphIndex": 2}
    operator = O("WHILE", ["i", "x"], ["j", "y"], schema.WhileOptionsT, fields)
    main = network([*carried, *results], [operator], ["i", "x"], ["j", "y"])
    less = O("LESS", ["i", "limit"], ["more"], schema.LessOptionsT)
    tensors = [*carried, const("limit", 5, np.int32), T("more", (), np.bool_)]
    condition = network(tensors, [less], ["i", "x"], ["more"])
    body = network(
        [*carried, *results, const("one", 1, np.int32)],
        [O("ADD", ["i", "one"], ["j"], ADD), O("ADD", ["x", "x"], ["y"], ADD)],
        ["i", "x"],
        ["j", "y"],
    )
    return with_subgraphs(main, condition, body)


NETWORKS = {
    **{
        f"if_{np.dtype(dtype).name}": choice(
            combined("ADD", ADD, dtype), combined("MUL", MUL, dtype), dtype=dtype
        )
        for dtype in (np.float32, np.int8)
    },
    "if_unchanged": choice(first(np.float32), combined("ADD", ADD, np.float32)),
    "if_constant": choice(fixed(), combined("ADD", ADD, np.float32)),
    "if_same_branch": choice(combined("ADD", ADD, np.float32), then=1, other=1),
    "if_nested": nested(),
    "while": loop(),
}


def samples_of(file: bytes) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """Return samples with true and false conditions, and counters from 0 to 6."""
    rng = np.random.default_rng(1)
    found: list[tuple[np.ndarray[Any, Any], ...]] = []
    for i in range(4):
        sample: list[np.ndarray[Any, Any]] = []
        for value in load(file).graph.inputs:
            dtype, shape = value.type.dtype.numpy, value.type.shape
            if dtype == np.bool_:
                sample.append(np.full(shape, i % 2 == 0))
            elif dtype == np.int32:
                sample.append(np.full(shape, 2 * i, np.int32))
            else:
                sample.append(rng.integers(-5, 6, shape).astype(dtype))
        found.append(tuple(sample))
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_operators_agree_with_litert(name: str) -> None:
    file = NETWORKS[name]
    imported = load(file)
    assert imported.notes == ()
    for sample in samples_of(file):
        expected = litert(file, *sample)
        for graph in (imported.graph, run_passes(imported.graph)):
            for output, wanted in zip(evaluate(graph, sample).outputs, expected, strict=True):
                np.testing.assert_array_equal(output, wanted)


def test_generated_code_equals_the_reference() -> None:
    members = [Member(load(file).graph, samples_of(file)) for file in NETWORKS.values()]
    for member, found in zip(members, run_together(members, SETUPS["host"]), strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(found, expected, member.graph.name)


def _wider(model: Any) -> None:
    for tensor in model.subgraphs[1].tensors:
        tensor.shape = [2, 4]


def _call(then: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.subgraphs[0].operators[0].builtinOptions.thenSubgraphIndex = then

    return change


def _variable(model: Any) -> None:
    operator = model.subgraphs[1].operators[0]
    operator.builtinOptions, operator.builtinOptionsType = None, 0
    code = model.operatorCodes[operator.opcodeIndex]
    code.deprecatedBuiltinCode, code.builtinCode = 127, schema.BuiltinOperator.VAR_HANDLE


WRONG: Sequence[tuple[Callable[[Any], None], type[Exception], str]] = (
    (_call(7), ModelError, r"IF #0.* calls subgraph 7, but the file has 3"),
    (_call(-1), ModelError, r"IF #0.* calls subgraph -1, but the file has 3"),
    (_call(0), ModelError, r"IF #0.* calls subgraph 0, which calls itself"),
    (_wider, ModelError, r"IF #0.* If passes to 'subgraph1'"),
    (_variable, UnsupportedError, r"subgraph 1, which has VAR_HANDLE: .* only in the main"),
)


@pytest.mark.parametrize(("change", "error", "message"), WRONG, ids=[w[2] for w in WRONG])
def test_wrong_calls_are_refused_with_the_reason(
    change: Callable[[Any], None], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load(edited(NETWORKS["if_float32"], change))

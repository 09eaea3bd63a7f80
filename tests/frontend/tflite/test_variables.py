"""TFLite's variables over several inferences, against TensorFlow Lite Micro."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.ir import Array, Graph, evaluate
from tests.differential.oracles import tflite_micro_outputs
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.tflite_networks import O, T, const, edited, network, with_subgraphs

STEPS, ROWS, COLUMNS = 6, 4, 3
QUANT: dict[str, Any] = {"scale": (0.05,), "zero_point": (-9,)}


def data(name: str, shape: Sequence[int], dtype: type) -> T:
    return T(name, tuple(shape), dtype, **(QUANT if dtype is np.int8 else {}))


def ints(name: str, values: Sequence[int]) -> T:
    return const(name, list(values), np.int32)


def handle(name: str, variable: str = "") -> O:
    fields = {"container": "", "sharedName": variable or name}
    return O("VAR_HANDLE", [], [name], schema.VarHandleOptionsT, fields)


def read(variable: str, result: str) -> O:
    return O("READ_VARIABLE", [variable], [result], schema.ReadVariableOptionsT)


def assign(variable: str, value: str) -> O:
    return O("ASSIGN_VARIABLE", [variable, value], [], schema.AssignVariableOptionsT)


def resources(*names: str) -> list[T]:
    return [T(name, (), np.int32) for name in names]


def joined(first: str, second: str, result: str) -> O:
    options = schema.ConcatenationOptionsT
    return O("CONCATENATION", [first, second], [result], options, {"axis": 1})


def finished(file: bytes, *handles: str, start: Array | None = None) -> bytes:
    """Give handles their type, and let another subgraph start the variable `ring`.

    That subgraph assigns `start`; the operator that calls it comes first.
    """
    file = edited(file, lambda model: _retype(model, handles))
    if start is None:
        return file
    quant = QUANT if start.dtype == np.int8 else {}
    tensors = [*resources("h"), T("start", start.shape, start.dtype.type, start, **quant)]
    first = network(tensors, [handle("h", "ring"), assign("h", "start")], [], [])
    file = with_subgraphs(file, edited(first, lambda model: _retype(model, ["h"])))
    return edited(file, _call_once)


def _retype(model: Any, handles: Sequence[str]) -> None:
    for tensor in model.subgraphs[0].tensors:
        if tensor.name.decode() in handles:
            tensor.type = schema.TensorType.RESOURCE


def _call_once(model: Any) -> None:
    kind = schema.BuiltinOperator.CALL_ONCE
    code = schema.OperatorCodeT(deprecatedBuiltinCode=127, builtinCode=kind, version=1)
    model.operatorCodes.append(code)
    call = schema.OperatorT(opcodeIndex=len(model.operatorCodes) - 1, inputs=[], outputs=[])
    call.builtinOptionsType = schema.BuiltinOptions.CallOnceOptions
    call.builtinOptions = schema.CallOnceOptionsT(initSubgraphIndex=1)
    model.subgraphs[0].operators.insert(0, call)


def ring(dtype: type, start: Array | None = None) -> bytes:
    """Return a network that keeps the last rows of its input, and returns them with the new one."""
    whole, kept = (1, ROWS + 1, COLUMNS), (1, ROWS, COLUMNS)
    tensors = [
        *resources("ring"),
        *(data("x", (1, 1, COLUMNS), dtype), data("old", kept, dtype)),
        *(data("y", whole, dtype), data("new", kept, dtype)),
        *(ints("from", [0, 1, 0]), ints("size", [-1, -1, -1])),
    ]
    operators = [
        handle("ring"),
        read("ring", "old"),
        joined("old", "x", "y"),
        O("SLICE", ["y", "from", "size"], ["new"], schema.SliceOptionsT),
        assign("ring", "new"),
    ]
    return finished(network(tensors, operators, ["x"], ["y"]), "ring", start=start)


def delay() -> bytes:
    """Return a network that delays its input by two inferences, by two variables.

    The second variable takes the value of the first one, which takes the input.
    """
    shape = (1, COLUMNS)
    tensors = [*resources("one", "two"), *(T(name, shape) for name in ("x", "a", "b", "y"))]
    operators = [
        *(handle("one"), handle("two"), read("one", "a"), read("two", "b")),
        *(assign("two", "a"), assign("one", "x")),
        O("ADD", ["a", "b"], ["y"], schema.AddOptionsT),
    ]
    return finished(network(tensors, operators, ["x"], ["y"]), "one", "two")


def assigned_first() -> bytes:
    """Return a network that reads a variable again after it was assigned."""
    shape = (1, COLUMNS)
    tensors = [*resources("v", "w"), *(T(name, shape) for name in ("x", "a", "b", "c", "y"))]
    operators = [
        *(handle("v", "same"), handle("w", "same"), read("v", "a")),
        O("ADD", ["a", "x"], ["b"], schema.AddOptionsT),
        *(assign("v", "b"), read("w", "c")),
        O("MUL", ["c", "c"], ["y"], schema.MulOptionsT),
    ]
    return finished(network(tensors, operators, ["x"], ["y"]), "v", "w")


def constant() -> bytes:
    """Return a network that only reads a variable, which starts with numbers."""
    tensors = [*resources("ring"), *(T(name, (1, COLUMNS)) for name in ("x", "a", "y"))]
    add = O("ADD", ["a", "x"], ["y"], schema.AddOptionsT)
    file = network(tensors, [handle("ring"), read("ring", "a"), add], ["x"], ["y"])
    return finished(file, "ring", start=np.asarray([[1.5, -2, 7]], np.float32))


START = np.arange(ROWS * COLUMNS).reshape(1, ROWS, COLUMNS)
NETWORKS = {
    "ring_float32": ring(np.float32),
    "ring_int8": ring(np.int8),
    "ring_from_float32": ring(np.float32, START.astype(np.float32)),
    "ring_from_int8": ring(np.int8, START.astype(np.int8)),
    "delay": delay(),
    "assigned_first": assigned_first(),
    "constant": constant(),
}


def inputs_of(graph: Graph) -> list[Array]:
    type_ = graph.inputs[0].type
    rng = np.random.default_rng(5)
    return [rng.integers(-100, 100, type_.shape).astype(type_.dtype.numpy) for _ in range(STEPS)]


def consecutive(graph: Graph, inputs: Sequence[Array]) -> list[tuple[Array, ...]]:
    """Return the outputs of inferences one after another, each with the states of the last one."""
    states, found = None, list[tuple[Array, ...]]()
    for x in inputs:
        result = evaluate(graph, [x], states)
        states = result.states
        found.append(result.outputs)
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_inferences_in_a_row_equal_tflite_micro(name: str) -> None:
    pytest.importorskip("tflite_micro", reason="TensorFlow Lite Micro is not installed")
    graph = load(NETWORKS[name]).graph
    inputs = inputs_of(graph)
    expected = tflite_micro_outputs(NETWORKS[name], [[x] for x in inputs])
    for ours, theirs in zip(consecutive(graph, inputs), expected, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])


def test_generated_code_equals_the_reference() -> None:
    graphs = [load(file).graph for file in NETWORKS.values()]
    members = [Member(graph, [(x,) for x in inputs_of(graph)]) for graph in graphs]
    for member, found in zip(members, run_together(members, SETUPS["host"]), strict=True):
        inputs = [x for (x,) in member.samples]
        assert_same(found, consecutive(member.graph, inputs), member.graph.name)


def test_a_note_counts_the_states() -> None:
    (note,) = load(ring(np.int8, START.astype(np.int8))).notes
    assert note.startswith("1 state is kept from one inference to the next")


def _other_variable(model: Any) -> None:
    model.subgraphs[0].operators[2].inputs = [1]


def _call(subgraph: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.subgraphs[0].operators[0].builtinOptions.initSubgraphIndex = subgraph

    return change


def _call_inside(model: Any) -> None:
    main, inner = model.subgraphs
    inner.operators.append(main.operators[0])


def _longer(model: Any) -> None:
    tensor = model.subgraphs[1].tensors[1]
    tensor.shape = [1, ROWS, COLUMNS - 1]
    model.buffers[tensor.buffer].data = model.buffers[tensor.buffer].data[: ROWS * (COLUMNS - 1)]


WRONG: tuple[tuple[Callable[[Any], None], type[Exception], str], ...] = (
    (_other_variable, ModelError, "uses a variable that no VAR_HANDLE makes"),
    (_call(0), ModelError, "CALL_ONCE calls subgraph 0, which calls itself"),
    (_call(2), ModelError, "CALL_ONCE calls subgraph 2, but the file has 2"),
    (_call_inside, UnsupportedError, "subgraph 1.* calls another subgraph"),
    (_longer, ModelError, "variable 'ring' is .* but starts with int8 elements of shape"),
)


@pytest.mark.parametrize(("change", "error", "message"), WRONG, ids=[w[2] for w in WRONG])
def test_wrong_variables_are_refused_with_the_reason(
    change: Callable[[Any], None], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load(edited(ring(np.int8, START.astype(np.int8)), change))

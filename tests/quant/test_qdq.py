"""Tests of quantized networks that are exported to ONNX and run by onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from onnx import numpy_helper

from smelt.codegen.passes import run_passes
from smelt.errors import UnsupportedError
from smelt.frontend import load
from smelt.ir import Array, DType, Graph, Node, Op, evaluate
from smelt.ops import all_cases
from smelt.ops.case import Case, Data, build, sample_of
from smelt.ops.core.softmax import Softmax
from smelt.ops.core.table import Table
from smelt.ops.core.unary import Unary
from smelt.ops.sequence.lstm import Lstm
from smelt.ops.sequence.recurrence import Recurrence
from smelt.quant.qdq import EMITTERS, export
from smelt.quant.qdq.table_functions import functions_of
from smelt.quant.quantizer import quantize
from smelt.quant.recipe import RECIPES
from smelt.samples import Sample, bind_samples, dequantize, random_samples
from tests.support.graphs import Member
from tests.support.onnx_networks import session
from tests.support.quant_networks import MADE, made, stored_samples
from tests.support.random_networks import PHASES, members
from tests.support.tflite_networks import DIGITS

STEPS = {DType.INT8: 1.0, DType.INT16: 2.0, DType.FLOAT32: 0.0}
"""By dtype, most integers by which fixed-point arithmetic differs from rounded real numbers."""


def is_exported(op: type[Op]) -> bool:
    """Return whether some of the operator's nodes can be exported to ONNX."""
    return op in EMITTERS or op.onnx_form is not Op.onnx_form


CASES = [case for case in all_cases() if is_exported(type(case.op))]
_ROUGH = ("hard_swish", "logistic", "div")
"""Kinds whose integer form differs from the function by more than rounding."""

REAL = [
    (case, dtype)
    for case in CASES
    for dtype in (DType.FLOAT32, DType.INT8)
    if dtype in case.dtypes
    and not case.plain
    and not isinstance(case.op, Lstm)
    and not (dtype is DType.INT8 and getattr(case.op, "kind", None) in _ROUGH)
]
"""Cases with elements that represent real numbers; `test_lstm.py` tests the integer LSTM."""


def reals(graph: Graph, sample: Sample) -> dict[str, Array]:
    return {
        value.name: np.asarray(dequantize(array, value.type))
        for value, array in zip(graph.inputs, sample, strict=True)
    }


def compare(graph: Graph, samples: list[Sample], steps: float, data: bytes | None = None) -> float:
    """Return the share of the elements that differ; none may differ by more than `steps`."""
    proto = onnx.load_from_string(data or export(graph, graph))
    onnx.checker.check_model(proto)
    runtime = session(proto)
    differ = total = 0
    for sample in samples:
        found = runtime.run(None, reals(graph, sample))
        expected = evaluate(graph, sample).outputs
        for value, ours, theirs in zip(graph.outputs, expected, found, strict=True):
            real = dequantize(ours, value.type)
            assert theirs.shape == real.shape
            if value.type.quant is None:
                np.testing.assert_allclose(theirs, real, rtol=2e-4, atol=2e-5)
                continue
            apart = np.abs(theirs.astype(np.float64) - real) / value.type.scale
            assert apart.max(initial=0) < steps + 0.01
            differ += int((apart > 0.01).sum())
            total += apart.size
    return differ / max(total, 1)


@cache
def exported_operators() -> frozenset[type]:
    """Return the operators with a float32, int8 or int16 case that can be exported."""
    found: set[type] = set()
    for case in CASES:
        for dtype in set(case.dtypes) & set(STEPS):
            graph = build(case, dtype)
            try:
                export(graph, graph)
            except UnsupportedError:
                continue
            found.add(type(case.op))
    return frozenset(found)


@pytest.mark.quick(every=4)
@pytest.mark.parametrize(("case", "dtype"), REAL, ids=str)
def test_operators(case: Case, dtype: DType) -> None:
    graph = build(case, dtype)
    rng = np.random.default_rng(3)
    given = [a for a in case.arguments if isinstance(a, Data)]
    samples = [
        tuple(sample_of(a, v.type, rng) for a, v in zip(given, graph.inputs, strict=True))
        for _ in range(3)
    ]
    try:
        export(graph, graph)
    except UnsupportedError as error:
        pytest.skip(str(error))
    compare(graph, samples, STEPS[dtype])


@pytest.mark.parametrize("kind", MADE)
def test_layers_of_16_bits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.quant.mixed_precision._WORTH", -np.inf)
    graph, make = made(kind)
    found = quantize(graph, make.samples(16), allow=frozenset({"int16"}), measure=False)
    assert any(v.type.dtype is DType.INT16 for v in found.graph.values())
    compare(found.graph, stored_samples(found.graph, make.samples(3)), STEPS[DType.INT8])


def test_every_exported_operator_has_a_case() -> None:
    assert set(EMITTERS) <= exported_operators()
    assert {type(case.op) for case in CASES} == exported_operators()


@pytest.mark.thorough
@given(member=members(DType.FLOAT32))
@settings(max_examples=150, phases=PHASES)
def test_operators_in_any_order(member: Member) -> None:
    """Some of them may have their images with channels first."""
    graph = member.graph
    compare(graph, list(member.samples), 0.0, _export_or_skip(graph))


def _export_or_skip(graph: Graph) -> bytes:
    try:
        return export(graph, graph)
    except UnsupportedError:
        assume(False)
        raise


def digits() -> tuple[Graph, list[Sample]]:
    with np.load(DIGITS / "digits_test.npz") as data:
        images = data["images"].reshape(-1, 1, 8, 8, 1)
    return run_passes(load(DIGITS / "digits_float32.tflite").graph), [(x,) for x in images]


@pytest.mark.quick(recipe=("best",))
@pytest.mark.parametrize("recipe", ["fast", "best"])
def test_a_network_of_digits(recipe: str) -> None:
    original, samples = digits()
    graph = quantize(original, samples, RECIPES[recipe]).graph
    arrays = {value.name: np.stack([x for (x,) in samples]) for value in graph.inputs}
    data = export(graph, original)
    assert compare(graph, bind_samples(graph, arrays)[0], 4.0, data) < 0.2
    assert export(graph, original) == data


@pytest.mark.quick(recipe=("default",))
@pytest.mark.parametrize("recipe", ["fast", "default", "best"])
def test_the_logits_of_a_network(recipe: str) -> None:
    """Softmax makes many steps of one step of a logit, so the logits are compared."""
    whole, samples = digits()
    (last,) = (node for node in whole.nodes if isinstance(node.op, Softmax))
    nodes = tuple(node for node in whole.nodes if node is not last)
    original = replace(whole, outputs=(last.input(0),), nodes=nodes)
    graph = quantize(original, samples, RECIPES[recipe]).graph
    arrays = {value.name: np.stack([x for (x,) in samples]) for value in graph.inputs}
    data = export(graph, original)
    assert compare(graph, bind_samples(graph, arrays)[0], 2.0, data) < 0.5


def test_weights_are_int8_with_a_scale_per_channel() -> None:
    original, samples = digits()
    graph = quantize(original, samples).graph
    proto = onnx.load_from_string(export(graph, original)).graph
    arrays = {t.name: numpy_helper.to_array(t) for t in proto.initializer}
    made = {name: node for node in proto.node for name in node.output}
    products = [node for node in proto.node if node.op_type in ("Conv", "Gemm")]
    assert products
    for node in products:
        weights, bias = (made[name] for name in node.input[1:])
        assert {weights.op_type, bias.op_type} == {"DequantizeLinear"}
        assert arrays[weights.input[0]].dtype == np.int8
        assert arrays[weights.input[1]].shape == arrays[weights.input[0]].shape[:1]
        assert arrays[bias.input[0]].dtype == np.int32
    assert not any(array.dtype == np.float32 and array.ndim > 1 for array in arrays.values())


def tables() -> list[tuple[Node, Graph, Graph]]:
    """Return tables that replace a function, with their networks and the float networks."""
    found: list[tuple[Node, Graph, Graph]] = []
    for case in all_cases():
        if not isinstance(case.op, Unary) or DType.FLOAT32 not in case.dtypes or case.plain:
            continue
        if case.op.kind not in ("hard_swish", "gelu", "elu", "leaky_relu", "softplus"):
            continue
        original = build(case, DType.FLOAT32)
        rng = np.random.default_rng(0)
        (argument,) = case.arguments
        assert isinstance(argument, Data)
        samples = [(sample_of(argument, original.inputs[0].type, rng),) for _ in range(8)]
        graph = quantize(original, samples).graph
        found += [(n, graph, original) for n in graph.nodes if isinstance(n.op, Table)]
    return found


@pytest.mark.thorough
def test_tables_are_exported_as_the_functions_that_they_replace() -> None:
    cases = tables()
    assert len(cases) >= 4
    for node, graph, original in cases:
        assert node in functions_of([node], original)
        data = export(graph, original)
        assert "Gather" not in {n.op_type for n in onnx.load_from_string(data).graph.node}
        compare(graph, random_samples(graph, 4, 1), 1.0, data)


def test_tables_of_unknown_functions_are_exported_as_lookups() -> None:
    for node, graph, original in tables():
        table = node.input(1)
        if len(set(table.array.tolist())) == 1:
            continue
        other = np.roll(table.array, 1)
        changed = type(table).constant(table.name, other, table.type.quant)
        nodes = tuple(
            Node(n.op, (n.inputs[0], changed), n.outputs, n.origin, n.rounding) if n is node else n
            for n in graph.nodes
        )
        network = Graph(graph.name, graph.inputs, graph.outputs, nodes)
        data = export(network, original)
        assert "Gather" in {n.op_type for n in onnx.load_from_string(data).graph.node}
        assert compare(network, random_samples(network, 4, 1), 0.0, data) == 0.0


def test_an_operator_that_cannot_be_exported_is_named() -> None:
    refused = {case.op.name for case in all_cases() if not is_exported(type(case.op))}
    assert refused
    case = next(c for c in all_cases() if type(c.op).__name__ == "TopK")
    graph = build(case, DType.FLOAT32)
    with pytest.raises(UnsupportedError, match=r"TopK.*cannot be exported to ONNX"):
        export(graph, graph)
    assert Recurrence in exported_operators()

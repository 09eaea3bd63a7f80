"""Tests of integer attention: products of two computed tensors with a softmax between them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantFormat, QuantType

from bench import quantized_networks
from smelt.ir import DType, Graph, Node, Origin, Quant, Rounding, TensorType, Value, evaluate
from smelt.ops.core.binary import Binary
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.l2_normalization import L2Normalization
from smelt.ops.core.matmul import MatMul
from smelt.ops.core.normalization import Normalization
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.softmax import Softmax
from smelt.ops.tensor.select import Select
from smelt.ops.tensor.tile import Tile
from smelt.quant.plan import classify
from smelt.quant.qdq import export
from smelt.quant.quantizer import quantize
from smelt.quant.ranges.activation_statistics import observe
from smelt.quant.recipe import RECIPES
from smelt.quant.result import Quantized, sqnr
from smelt.quant.rewrites.attention import prepare_scores
from smelt.quant.weights.equalization import equalize
from tests.support.attention_networks import ATTENTION, attention
from tests.support.graphs import SETUPS, SIMULATED, Member, assert_same, run_together
from tests.support.onnx_networks import session
from tests.support.quant_networks import Builder, Sample, outputs, stored_samples

FLOAT = frozenset({"float"})
INTEGER = sorted(set(ATTENTION) - {"normed"})


def _quantized(kind: str, count: int = 24) -> tuple[Quantized, Builder]:
    graph, make = attention(kind)
    return quantize(graph, make.samples(count), RECIPES["fast"], measure=False), make


@pytest.mark.parametrize("kind", INTEGER)
def test_all_nodes_become_integer(kind: str) -> None:
    """A factor of the scores does not stay either: softmax applies it."""
    found, _ = _quantized(kind, 8)
    assert found.exceptions == ()
    kinds = [type(node.op) for node in found.graph.nodes]
    types = {v.type.dtype for v in found.graph.values()}
    assert types == {DType.INT8, DType.INT32}
    assert kinds.count(MatMul) == 2 * kinds.count(Softmax) > 0


def test_only_normalization_stays_in_float() -> None:
    graph, make = attention("normed")
    found = quantize(graph, make.samples(8), RECIPES["fast"], FLOAT, measure=False)
    left = {layer.op for layer in found.exceptions if not layer.chosen}
    assert left == {"Normalization"}


def _members() -> list[Member]:
    members: list[Member] = []
    for kind in INTEGER:
        found, make = _quantized(kind)
        members.append(Member(found.graph, stored_samples(found.graph, make.samples(2))))
    return members


@pytest.mark.quick(setup=("host",))
@pytest.mark.parametrize(
    "setup",
    ["host", *(pytest.param(s, marks=pytest.mark.qemu) for s in SIMULATED if s in ("m0", "m4"))],
)
def test_generated_code_equals_the_reference(setup: str) -> None:
    members = _members()
    for member, found in zip(members, run_together(members, SETUPS[setup]), strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(found, expected, member.graph.name)


@pytest.mark.quick(kind=("causal",))
@pytest.mark.parametrize(
    "kind",
    [k if k in ("causal", "long") else pytest.param(k, marks=pytest.mark.slow) for k in ATTENTION],
)
def test_no_more_noise_than_onnxruntime_makes(kind: str, tmp_path: Path) -> None:
    """Compare with its static quantizer, calibrated on the same samples, on new samples."""
    graph, make = attention(kind)
    samples, unseen = make.samples(48), make.samples(48)
    wanted = outputs(graph, unseen)
    ours = outputs(quantize(graph, samples, allow=FLOAT, measure=False).graph, unseen)
    proto = onnx.load_from_string(export(graph, graph))
    name = graph.inputs[0].name
    scheme = quantized_networks.Scheme(QuantFormat.QDQ, QuantType.QInt8, QuantType.QInt8, True)
    feeds = [{name: x} for (x,) in samples]
    theirs = session(quantized_networks.quantize(proto, scheme, feeds, tmp_path))
    found = np.stack([theirs.run(None, {name: x})[0] for (x,) in unseen])
    # onnxruntime's scale covers the mask's -1e9, so that all visible scores are one integer.
    gain = 15.0 if kind == "causal" else -0.6
    assert _decibels(wanted, ours) > _decibels(wanted, found) + gain


def _decibels(wanted: np.ndarray, found: np.ndarray) -> float:
    error = float(np.square(wanted - found).sum())
    return sqnr(float(np.square(wanted).sum()), error)


def _masked(kind: str, hidden: float) -> tuple[Graph, list[Sample]]:
    """Return attention with scaled scores and a mask of value `hidden`, in one of three forms."""
    make = Builder(3)
    x = make.input(1, 10, 8)
    q, k, v = (
        make.add(FullyConnected(keep_dims=True), x, make.constant(8, 8), make.constant(8))
        for _ in range(3)
    )
    scores = make.add(MatMul((), (0, 2, 1)), q, k)
    scores = make.add(Binary("mul"), scores, Value.constant("factor", np.array([0.35], np.float32)))
    later = np.triu(np.ones((10, 10), np.bool_), 1)
    if kind == "add":
        added = np.where(later, hidden, 0.0).astype(np.float32)
        scores = make.add(Binary("add"), Value.constant("mask", added), scores)
    else:
        fill = Value.constant("fill", np.array([hidden], np.float32))
        condition = Value.constant("later", later)
        if kind == "computed":
            condition = Value("given", TensorType((1, 1, 10), DType.BOOL))
            make.inputs.append(condition)
        scores = make.add(Select(), condition, fill, scores)
    graph = make.graph(make.add(MatMul(), make.add(Softmax(), scores), v))
    samples = [
        (array, *(np.arange(10).reshape(1, 1, 10) > make.rng.integers(2, 10) for _ in rest))
        for array, *rest in make.samples(24)
    ]
    return graph, samples


@pytest.mark.parametrize("hidden", [-1e9, -np.inf, -65504.0, -1e4])
@pytest.mark.parametrize("kind", ["add", "select", "computed"])
def test_masks_are_bounded(kind: str, hidden: float) -> None:
    """The outputs do not change, and the masked scores take only a small part of the range."""
    graph, samples = _masked(kind, hidden)
    prepared = prepare_scores(graph, samples)
    assert [n.op.beta for n in prepared.nodes if isinstance(n.op, Softmax)] == [pytest.approx(0.35)]
    assert len(prepared.nodes) == len(graph.nodes) - 1
    for sample in samples:
        wanted, found = (evaluate(g, sample).outputs[0] for g in (graph, prepared))
        np.testing.assert_allclose(found, wanted, atol=1e-3 * np.abs(wanted).max())
    bare, _ = _masked(kind, -1.0)
    ours, usual = (quantize(g, samples, RECIPES["fast"], measure=False) for g in (graph, bare))
    assert ours.exceptions == ()
    assert ours.sqnr > usual.sqnr - 2.0


def test_the_channels_of_values_are_equalized() -> None:
    """A factor of a column of the values passes through the product to the next layer's weights."""
    graph, make = attention("sequence")
    samples = make.samples(16)
    found, changed = equalize(graph, classify(graph), observe(graph, samples, 0), samples)
    contexts = {
        n.output
        for n in graph.nodes
        if isinstance(n.op, MatMul) and isinstance(graph.producer[n.input(0)].op, Softmax)
    }
    assert contexts
    assert contexts <= changed
    for sample in samples:
        wanted, ours = (evaluate(g, sample).outputs[0] for g in (graph, found))
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


def test_float_layers_read_sums_that_are_not_requantized() -> None:
    """The results of a dense layer that only float nodes read are not rounded to 8 bits."""
    make = Builder(5)
    x = make.input(6, 12)
    weights = make.constant(16, 12, scale=0.3)
    dense = make.add(FullyConnected(), x, weights, make.constant(16))
    normed = make.add(Normalization((1,), 1e-5), dense)
    graph = make.graph(make.add(FullyConnected(), normed, make.constant(4, 16, scale=0.3)))
    samples = make.samples(16)
    found = quantize(graph, samples, allow=FLOAT, measure=False)
    layer = next(n for n in found.graph.nodes if isinstance(n.op, FullyConnected))
    assert layer.op == FullyConnected(sums=True)
    types = [v.type.dtype for v in (*layer.inputs, *layer.outputs) if v is not None]
    assert types == [DType.INT8, DType.INT8, DType.INT32, DType.INT32]
    member = Member(found.graph, stored_samples(found.graph, samples[:4]))
    expected = [evaluate(found.graph, sample).outputs for sample in member.samples]
    assert_same(run_together([member], SETUPS["host"])[0], expected, "sums")


@pytest.mark.parametrize("form", ["plain", "bounded", "added", "repeated"])
def test_division_by_the_norm_becomes_l2_normalization(form: str) -> None:
    make = Builder(7)
    x = make.input(3, 12)
    rows = make.add(FullyConnected(), x, make.constant(20, 12), make.constant(20))
    norm = make.add(Reduce("l2", (1,), keep_dims=True), rows)
    tiny = Value.constant("tiny", np.array([1e-12], np.float32))
    if form in ("bounded", "repeated"):
        norm = make.add(Binary("maximum"), norm, tiny)
    elif form == "added":
        norm = make.add(Binary("add"), tiny, norm)
    if form == "repeated":
        norm = make.add(Tile((1, 20)), norm)
    graph = make.graph(make.add(Binary("div"), rows, norm))
    found = quantize(graph, make.samples(24), measure=False)
    kinds = [type(node.op) for node in found.graph.nodes]
    assert kinds == [FullyConnected, L2Normalization]
    assert found.sqnr > 32.0


def test_l2_normalization_equals_the_reference_for_all_norms() -> None:
    """The sums of squares have all magnitudes, including zero and the largest."""
    sizes = np.unique(np.geomspace(1, 127, 40).astype(np.int64))
    rows = np.zeros((2 * len(sizes) + 2, 300), np.int8)
    for row, size in enumerate(sizes):
        rows[2 * row, :1], rows[2 * row + 1, : size + 1] = size, size
    rows[-1] = -128
    x = Value("x", TensorType(rows.shape, DType.INT8, Quant.per_tensor(0.1)))
    y = Value("y", replace(x.type, quant=Quant.per_tensor(1 / 128)))
    origin = Origin("L2_NORMALIZATION", 0)
    node = Node(L2Normalization(), (x,), (y,), origin, Rounding.TFLM)
    graph = Graph("rows", (x,), (y,), (node,))
    expected = [evaluate(graph, (rows,)).outputs]
    assert_same(run_together([Member(graph, [(rows,)])], SETUPS["host"])[0], expected, "rows")
    lengths = np.sqrt(np.square(rows.astype(np.float64)).sum(axis=1, keepdims=True))
    real = np.clip(128.0 * rows / np.maximum(lengths, 1), -128, 127)
    assert np.abs(expected[0][0] - real).max() <= 1.0

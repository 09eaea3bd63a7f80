"""Tests of the noise of int8 networks: the generated C on the host against the float network."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.codegen.passes import run_passes
from smelt.frontend import load
from smelt.ir import Array, Graph, evaluate
from smelt.proof.run import run
from smelt.quant.quantizer import quantize
from smelt.quant.recipe import RECIPES
from smelt.quant.result import sqnr
from smelt.samples import Sample, dequantize
from tests.support.graphs import assert_same, compile_graph
from tests.support.quant_networks import MADE, digits, made, outputs, stored_samples

_FLOAT = frozenset({"float"})


def generated(graph: Graph, samples: list[Sample]) -> list[Array]:
    """Return each output of the generated C in real numbers, float64 `[samples, …]`.

    The first few samples are compared with the numpy reference, element by element.
    """
    stored = stored_samples(graph, samples)
    found = run(compile_graph(graph), stored).outputs
    few = [evaluate(graph, sample).outputs for sample in stored[:8]]
    assert_same([tuple(outputs) for outputs in found[:8]], few, graph.name)
    return [
        np.stack([dequantize(array, value.type) for array in column]).astype(np.float64)
        for column, value in zip(zip(*found, strict=True), graph.outputs, strict=True)
    ]


def decibels(wanted: Array, found: Array) -> float:
    return sqnr(float(np.square(wanted).sum()), float(np.square(wanted - found).sum()))


_SLOW = pytest.mark.slow


@pytest.mark.quick(every=6)
@pytest.mark.parametrize(
    ("name", "least", "points"),
    [
        pytest.param("dscnn_0", 35.0, 0.25, marks=_SLOW),
        pytest.param("dscnn_0_dfq1", 35.0, 0.25, marks=_SLOW),
        ("dscnn_0_dfq15", 35.0, 0.25),
        pytest.param("dscnn_0_outl60", 35.0, 0.25, marks=_SLOW),
        ("mbv3_0", 31.0, 0.25),
        ("mlp_0", 39.0, 0.25),
        ("c1d_0", 39.0, 0.25),
        ("gru_0", 41.6, 0.3),
    ],
)
def test_default_recipe_on_digits(name: str, least: float, points: float) -> None:
    """Compare on images that the quantizer has not seen. Only the recurrence stays float."""
    network = digits(name)
    quantized = quantize(network.graph, network.calibration, allow=_FLOAT, measure=False)
    layers = ["Recurrence(gru)"] if name == "gru_0" else []
    assert [layer.op for layer in quantized.exceptions] == layers
    wanted = outputs(network.graph, network.test)
    (found,) = generated(quantized.graph, network.test)
    assert decibels(wanted, found) >= least
    before, after = (
        100.0 * float((logits.reshape(len(logits), -1).argmax(axis=1) == network.labels).mean())
        for logits in (wanted, found)
    )
    assert before - after <= points + 1e-9


@pytest.mark.quick(every=5)
@pytest.mark.parametrize("kind", MADE)
def test_default_is_never_worse_than_fast(kind: str) -> None:
    """Compare many kinds of networks on new samples; 0.2 dB are left to chance."""
    graph, make = made(kind)
    samples, unseen = make.samples(48), make.samples(48)
    wanted = outputs(graph, unseen)
    fast, default = (
        decibels(wanted, outputs(quantize(graph, samples, recipe, measure=False).graph, unseen))
        for recipe in (RECIPES["fast"], RECIPES["default"])
    )
    assert default > fast - 0.2


@pytest.mark.slow
def test_best_beats_default_and_default_beats_fast() -> None:
    """Compare digits networks on images that the quantizer has not seen."""
    gains: list[tuple[float, float]] = []
    for name in ("dscnn_0", "dscnn_0_dfq15", "mbv3_0", "mlp_0", "c1d_0"):
        network = digits(name)
        wanted = outputs(network.graph, network.test)
        fast, default, best = (
            decibels(
                wanted,
                outputs(
                    quantize(network.graph, network.calibration, recipe, measure=False).graph,
                    network.test,
                ),
            )
            for recipe in (RECIPES["fast"], RECIPES["default"], RECIPES["best"])
        )
        gains.append((default - fast, best - default))
    assert min(gain for gain, _ in gains) > 0.0
    assert min(gain for _, gain in gains) > -0.3
    assert np.mean([gain for _, gain in gains]) > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ad", "ic", "kws", "vww"])
def test_no_worse_than_the_published_file(name: str) -> None:
    """On smooth inputs, MLPerf Tiny's networks have no more noise than the published int8 files."""
    data = pytest.importorskip("bench.quantization_data", reason="needs the extra `bench`")
    (candidate,) = (c for c in data.candidates(f"{name}_float32"))
    if isinstance(candidate, data.Missing):
        pytest.skip(candidate.reason)
    graph = run_passes(load(candidate.model).graph)
    quantized = quantize(graph, candidate.calibration, measure=False)
    assert quantized.exceptions == ()
    wanted = outputs(graph, candidate.tests)
    (ours,) = generated(quantized.graph, candidate.tests)
    (theirs,) = generated(run_passes(load(candidate.published).graph), candidate.tests)
    assert decibels(wanted, ours) >= decibels(wanted, theirs)


@pytest.mark.slow
def test_boxes_of_faces() -> None:
    """The boxes of UltraFace on photographs have at least 21 dB SQNR."""
    pytest.importorskip("skimage", reason="photographs need the extra `bench`")
    data = pytest.importorskip("bench.quantization_data", reason="needs the extra `bench`")
    (candidate,) = data.candidates("ultraface*")
    if isinstance(candidate, data.Missing):
        pytest.skip(candidate.reason)
    graph = run_passes(load(candidate.model).graph)
    quantized = quantize(graph, candidate.calibration, measure=False)
    assert quantized.exceptions == ()
    found = generated(quantized.graph, candidate.tests)
    (boxes,) = (i for i, value in enumerate(graph.outputs) if value.name == "boxes")
    wanted = np.stack(
        [sample[boxes] for sample in run(compile_graph(graph), candidate.tests).outputs]
    )
    assert decibels(wanted.astype(np.float64), found[boxes]) >= 21.0

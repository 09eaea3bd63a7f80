"""Tests of 16-bit layers in int8 networks: their choice, the saved noise, and generated C."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smelt.api.quantization_cost import non_int8_costs
from smelt.ir import DType, Graph, Rounding, Value, evaluate
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.quantize import Quantize
from smelt.quant.quantizer import quantize
from smelt.quant.recipe import RECIPES
from smelt.samples import Sample
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.quant_networks import MADE, Builder, digits, made, outputs, stored_samples

_INT16 = frozenset({"int16"})


def output_sqnr(graph: Graph, quantized: Graph, samples: list[Sample]) -> float:
    """Return the outputs' signal-to-quantization-noise ratio in dB."""
    wanted, found = outputs(graph, samples), outputs(quantized, samples)
    return float(10 * np.log10(np.square(wanted).sum() / np.square(wanted - found).sum()))


def network_with_outlier(by: float) -> tuple[Graph, Builder]:
    """Return dense layers of which one tensor has an outlier: an element that is larger by `by`.

    The biases of the next layer subtract what the outlier adds.
    """
    make = Builder(3)
    x = make.input(1, 24)
    for layer in range(4):
        weights, bias = make.constant(24, 24, scale=0.25), make.constant(24, scale=0.1)
        if layer == 1:
            bias = Value.constant(bias.name, bias.array + np.eye(24, dtype=np.float32)[0] * by)
        if layer == 2:
            bias = Value.constant(bias.name, bias.array - weights.array[:, 0] * np.float32(by))
        op = FullyConnected(Activation.RELU if layer < 3 else Activation.NONE)
        x = make.add(op, x, weights, bias)
    return make.graph(x), make


_RECIPE = replace(RECIPES["fast"], correct_bias=True)


def test_the_layers_around_an_outlier_become_int16() -> None:
    graph, make = network_with_outlier(100.0)
    samples, unseen = make.samples(64), make.samples(64)
    plain = quantize(graph, samples, _RECIPE, measure=False)
    found = quantize(graph, samples, _RECIPE, _INT16, measure=False)
    assert [layer.dtype for layer in found.exceptions] == ["int16", "int16"]
    assert [layer.name for layer in found.exceptions] == ["v1", "v2"]
    kinds = [n.outputs[0].type.dtype for n in found.graph.nodes if n.rounding is Rounding.TFLM16]
    assert kinds == [DType.INT16] * 2
    borders = [n for n in found.graph.nodes if isinstance(n.op, Quantize)]
    assert [n.output.type.dtype for n in borders] == [DType.INT16, DType.INT8]
    assert found.plain is not None
    before = output_sqnr(graph, found.plain, unseen)
    assert before == output_sqnr(graph, plain.graph, unseen)
    assert output_sqnr(graph, found.graph, unseen) > before + 10.0


def test_the_cost_of_an_int16_layer_is_reported() -> None:
    graph, make = network_with_outlier(100.0)
    found = quantize(graph, make.samples(64), _RECIPE, _INT16, measure=False)
    (cost,) = non_int8_costs(found)
    assert cost.gain_db is not None
    assert (cost.layers, cost.macs) == (2, 0.5)
    # A layer's input and output of 24 elements each; buffers begin at multiples of 16 bytes.
    assert (cost.arena_bytes_int8, cost.arena_bytes) == (2 * 32, 2 * 48)
    assert cost.gain_db == found.steps[-1].sqnr - found.steps[-2].sqnr > 10.0
    assert "2 layers of int16 with 50% of the multiply-accumulates" in str(cost)


def test_no_layer_is_chosen_if_none_saves_noise() -> None:
    """The noise is that of weights, inputs and outputs, which stay 8-bit."""
    network = digits("mlp_0")
    plain = quantize(network.graph, network.calibration, measure=False)
    found = quantize(network.graph, network.calibration, allow=_INT16, measure=False)
    assert (found.exceptions, found.plain, non_int8_costs(found)) == ((), None, ())
    assert found.steps == plain.steps


@pytest.mark.thorough
@pytest.mark.parametrize("setup", ["host", pytest.param("m4", marks=pytest.mark.qemu)])
def test_generated_code_equals_the_reference(setup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers with a 16-bit form take it: products, sums, pools, functions, concatenations."""
    monkeypatch.setattr("smelt.quant.mixed_precision._WORTH", -np.inf)
    members: list[Member] = []
    for kind in MADE:
        graph, make = made(kind)
        found = quantize(graph, make.samples(16), allow=_INT16, measure=False)
        assert len(found.exceptions) > 4
        members.append(Member(found.graph, stored_samples(found.graph, make.samples(3))))
    ran = run_together(members, SETUPS[setup])
    for member, results in zip(members, ran, strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(results, expected, f"{member.graph.name} on {setup}")


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("kind", MADE)
def test_16_bit_layers_make_no_more_noise_than_int8(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smelt.quant.mixed_precision._WORTH", -np.inf)
    graph, make = made(kind)
    samples, unseen = make.samples(32), make.samples(32)
    found = quantize(graph, samples, allow=_INT16, measure=False)
    assert found.plain is not None
    assert output_sqnr(graph, found.graph, unseen) > output_sqnr(graph, found.plain, unseen) - 0.3

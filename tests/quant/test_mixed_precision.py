"""Tests of float layers where int8 is too noisy, of separate ranges, and of recipe `best`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smelt.api.quantization_cost import non_int8_costs
from smelt.ir import DType, Graph, Node, Value, evaluate
from smelt.ops.core.binary import Binary
from smelt.ops.core.quantize import Dequantize, Quantize
from smelt.ops.tensor.concat import Concat
from smelt.proof.run import run
from smelt.quant.plan import classify
from smelt.quant.quantizer import quantize
from smelt.quant.ranges.activation_statistics import observe
from smelt.quant.ranges.shared_ranges import Group, find_groups
from smelt.quant.recipe import RECIPES
from tests.quant.test_int16 import network_with_outlier, output_sqnr
from tests.support.graphs import assert_same, compile_graph
from tests.support.quant_networks import MADE, Builder, digits, made, stored_samples

_FLOAT = frozenset({"float"})
_BOTH = frozenset({"float", "int16"})
_CORRECTED = replace(RECIPES["fast"], correct_bias=True)


def test_the_layers_around_an_outlier_become_float() -> None:
    graph, make = network_with_outlier(300.0)
    samples, unseen = make.samples(64), make.samples(64)
    plain = quantize(graph, samples, measure=False)
    found = quantize(graph, samples, allow=_FLOAT, measure=False)
    assert plain.exceptions == ()
    assert [(layer.name, layer.dtype, layer.chosen) for layer in found.exceptions] == [
        ("v1", "float32", True),
        ("v2", "float32", True),
    ]
    borders = [n.op for n in found.graph.nodes if isinstance(n.op, (Quantize, Dequantize))]
    assert borders == [Dequantize(), Quantize(DType.INT8)]
    assert output_sqnr(graph, found.graph, unseen) > output_sqnr(graph, plain.graph, unseen) + 10.0
    (cost,) = non_int8_costs(found)
    assert (cost.layers, cost.macs) == (2, 0.5)
    # Two tensors of 24 floats instead of 24 bytes; buffers begin at multiples of 16 bytes.
    assert cost.arena_bytes_int8 == 2 * 32
    assert cost.arena_bytes == 2 * 96
    assert cost.gain_db == found.steps[-1].sqnr - plain.sqnr > 10.0
    assert str(cost).startswith("2 layers of float32 with 50% of the multiply-accumulates bring +")


def test_generated_code_of_mixed_types_equals_the_reference() -> None:
    graph, make = network_with_outlier(300.0)
    found = quantize(graph, make.samples(64), allow=_FLOAT, measure=False)
    stored = stored_samples(found.graph, make.samples(3))
    ran = run(compile_graph(found.graph), stored).outputs
    expected = [evaluate(found.graph, sample).outputs for sample in stored]
    assert_same([tuple(outputs) for outputs in ran], expected, "layers")


def test_int16_is_preferred_if_it_saves_as_much_noise() -> None:
    graph, make = network_with_outlier(100.0)
    samples = make.samples(64)
    found = quantize(graph, samples, _CORRECTED, _BOTH, measure=False)
    assert {layer.dtype for layer in found.exceptions} == {"int16"}
    only = quantize(graph, samples, _CORRECTED, frozenset({"int16"}), measure=False)
    assert found.steps == only.steps


def test_float_is_taken_where_16_bits_do_not_help() -> None:
    """Without bias correction, nearly all noise is that of 8-bit weights times the outlier."""
    graph, make = network_with_outlier(100.0)
    found = quantize(graph, make.samples(64), RECIPES["fast"], _BOTH, measure=False)
    assert {layer.dtype for layer in found.exceptions} == {"float32"}


def test_good_networks_stay_int8() -> None:
    network = digits("mlp_0")
    found = quantize(network.graph, network.calibration, allow=_BOTH, measure=False)
    assert (found.exceptions, found.plain) == ((), None)


def sum_and_concatenation() -> tuple[Graph, Builder, Node]:
    """Return a sum of two inputs, and a concatenation of their maximum and a far wider product."""
    make = Builder(5)
    a, b = make.input(1, 4, 4, 6), make.input(1, 4, 4, 6)
    greater = make.add(Binary("maximum"), a, b)
    total = make.add(Binary("add"), a, b)
    wide = make.add(Binary("mul"), make.add(Binary("mul"), a, b), make.constant(6, scale=8.0))
    both = make.add(Concat(3), greater, wide)
    graph = make.graph(total, both)
    return graph, make, graph.producer[greater]


def test_operands_do_not_take_the_range_of_a_far_wider_tensor() -> None:
    graph, make, greater = sum_and_concatenation()
    samples, unseen = make.samples(64), make.samples(64)
    plan = classify(graph)
    alike, apart = find_groups(graph, plan), find_groups(graph, plan, observe(graph, samples, 0))

    def members(groups: list[Group], value: Value) -> tuple[Value, ...]:
        (found,) = (group.values for group in groups if value in group.values)
        return found

    a, b = graph.inputs
    assert members(alike, a) == members(alike, graph.outputs[1])
    assert members(apart, a) == (a,)
    assert members(apart, b) == (b,)
    assert members(apart, greater.output) == members(apart, graph.outputs[1])
    found = quantize(graph, samples, measure=False)
    # The sum has the noise of two 8-bit operands with their own ranges, and of one more rounding.
    assert output_sqnr(graph, found.graph, unseen) > 35.0


def test_tensors_of_similar_range_share_it() -> None:
    make = Builder(6)
    a, b = make.input(1, 4, 4, 6), make.input(1, 4, 4, 6)
    both = make.add(Concat(3), a, b)
    graph = make.graph(make.add(Binary("add"), a, b), both)
    groups = find_groups(graph, classify(graph), observe(graph, make.samples(64), 0))
    assert {a, b, both} in [set(group.values) for group in groups]


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("kind", MADE)
def test_best_is_no_worse_than_default_on_its_calibration_data(kind: str) -> None:
    graph, make = made(kind)
    samples = make.samples(48)
    best, default = (
        quantize(graph, samples, RECIPES[name], measure=False) for name in ("best", "default")
    )
    assert best.sqnr >= default.sqnr
    if best.recipe.rounding == "compensated":
        assert best.steps == default.steps
        np.testing.assert_array_equal(
            evaluate(best.graph, stored_samples(best.graph, samples)[0]).outputs[0],
            evaluate(default.graph, stored_samples(default.graph, samples)[0]).outputs[0],
        )

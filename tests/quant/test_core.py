"""Tests of quantization after training: the result for each operator, and its noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from smelt.errors import QuantizationError, SmeltError, UnsupportedError
from smelt.ir import Array, DType, Graph, Node, Rewrite, Value, evaluate
from smelt.ops import all_cases
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.case import Case, build
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.normalization import Normalization
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.quantize import Quantize
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.softmax import Softmax
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.reshape import Reshape
from smelt.quant.data.samples import outliers
from smelt.quant.plan import NodeKind, classify
from smelt.quant.quantizer import quantize
from smelt.quant.ranges.activation_statistics import observe
from smelt.quant.ranges.shared_ranges import find_groups
from smelt.quant.recipe import RECIPES, Recipe
from smelt.quant.result import Quantized
from smelt.quant.weights.equalization import equalize
from smelt.quant.weights.fitting import Noise, fitted
from smelt.quant.weights.integers import nearest, unclipped_scales
from smelt.quant.weights.rescaling import Classes
from smelt.quant.weights.rounding import compensated, damped, searched
from smelt.samples import Sample, random_samples
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.quant_networks import Builder, digits, measured, outputs, stored_samples

_RELU = Activation.RELU
_SAME = ((1, 1), (1, 1))
_FLOAT = frozenset({"float"})


def _network(seed: int = 0) -> tuple[Graph, Builder]:
    """Return a network of most operators that equalization passes through."""
    make = Builder(seed)
    x = make.input(1, 6, 6, 3)
    a = make.add(
        Conv2D(padding=_SAME, activation=_RELU), x, make.constant(8, 3, 3, 3), make.constant(8)
    )
    b = make.add(
        DepthwiseConv2D(padding=_SAME, activation=_RELU),
        a,
        make.constant(1, 3, 3, 8),
        make.constant(8),
    )
    c = make.add(Conv2D(), b, make.constant(8, 1, 1, 8, scale=0.3), make.constant(8))
    total = make.add(Binary("add", _RELU), a, c)
    pooled = make.add(Pool2D("max", (2, 2), (2, 2)), total)
    leaky = make.add(Unary("leaky_relu", 0.1), make.add(Pool2D("average", (2, 2), (2, 2)), c))
    joined = make.add(Concat(3), pooled, leaky)
    padded = make.add(Pad(((0, 0), (0, 1), (0, 1), (0, 0))), joined)
    grouped = make.add(
        Conv2D(groups=2, activation=_RELU), padded, make.constant(6, 2, 2, 8), make.constant(6)
    )
    flat = make.add(Reshape((1, 54)), grouped)
    dense = make.add(FullyConnected(), flat, make.constant(4, 54, scale=0.1), make.constant(4))
    mean = make.add(Reduce("mean", (1, 2)), grouped)
    other = make.add(FullyConnected(), mean, make.constant(4, 6), make.constant(4))
    return make.graph(make.add(Softmax(), make.add(Binary("sub"), dense, other)), other), make


_CASES = [c for c in all_cases() if DType.FLOAT32 in c.dtypes and not isinstance(c.op, Quantize)]


@pytest.mark.parametrize("case", _CASES, ids=str)
def test_every_operator_is_quantized_or_refused(case: Case) -> None:
    """An operator that is refused is named; others have little noise on well-scaled data."""
    graph = build(case, DType.FLOAT32)
    if any(v.type.size == 0 for v in graph.values()):
        pytest.skip("an empty tensor")
    samples = random_samples(graph, 6, seed=1)
    (node,) = graph.nodes
    found = _attempt(graph, samples)
    if not isinstance(found, Quantized):
        refused = isinstance(found, QuantizationError)
        assert refused or (node.op.name in str(found) and "allow float" in str(found))
        return
    quantizable = [v for v in found.graph.outputs if v.type.dtype is DType.INT8]
    floats = [v for v in graph.outputs if v.type.dtype is DType.FLOAT32]
    assert len(quantizable) == len(floats)
    if node.op.name.startswith(_LARGE_NOISE) or not floats:
        return
    (layer,) = [layer for layer in found.layers if layer.name == floats[0].name][:1]
    assert layer.added > 24.0 or case.name == "wide"


def _attempt(graph: Graph, samples: list[Sample]) -> Quantized | SmeltError:
    try:
        return quantize(graph, samples, RECIPES["fast"])
    except (UnsupportedError, QuantizationError) as error:
        return error


_LARGE_NOISE = ("Unary", "Binary(div)", "FillRows", "Softmax", "LogSoftmax")
"""Names of operators that reach infinity on normal data, or outputs far below a fixed scale."""


def test_equalization_preserves_the_function() -> None:
    """Equalization rescales tensors between inputs and outputs."""
    graph, make = _network()
    samples = make.samples(24)
    plan = classify(graph)
    equal, changed = equalize(graph, plan, observe(graph, samples, 0), samples)
    for sample in samples:
        for ours, theirs in zip(
            evaluate(equal, sample).outputs, evaluate(graph, sample).outputs, strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert {v.name for v in changed} >= {node.output.name for node in graph.nodes[:10]}
    assert not changed & {*graph.inputs, *graph.outputs}


def test_channels_that_were_scaled_apart_cost_nothing() -> None:
    """Equalization makes the network as good as the same network without these factors."""
    graph, make = _network()
    samples = make.samples(24)
    factors = 10.0 ** make.rng.uniform(-2, 2, 8)

    def scale(node: Node) -> Rewrite:
        if node.output.name not in ("v1", "v2"):
            return None
        weights, bias = node.input(1).array, node.input(2).array
        first = node.output.name == "v1"
        changed = (weights * factors, bias * factors) if first else (weights / factors, bias)
        constants = [
            Value.constant(f"{node.name}:{i}", array.astype(np.float32))
            for i, array in enumerate(changed)
        ]
        return [replace(node, inputs=(node.inputs[0], *constants))], node.outputs

    apart = graph.rewrite(scale)
    plain, default = (
        [quantize(g, samples, recipe, measure=False).sqnr for g in (graph, apart)]
        for recipe in (RECIPES["fast"], RECIPES["default"])
    )
    assert plain[1] < plain[0] - 10.0
    assert default[1] == pytest.approx(default[0], abs=2.0)


def test_classes_follow_channels_through_the_network() -> None:
    """Channels that need equal factors have equal classes, others have different classes."""
    graph, _ = _network()
    classes = Classes(graph, classify(graph))
    node = {n.output.name: n.output for n in graph.nodes}
    a, b, c, total, joined = (classes.of(node[f"v{i}"]) for i in (0, 1, 2, 3, 7))
    assert (a == c).all()
    assert (a == total).all()
    assert not set(a) & set(b)
    assert (joined == np.concatenate([a, a])).all()
    assert (classes.of(node["v10"]) == np.tile(classes.of(node["v9"]), 9)).all()
    assert not classes.of(graph.inputs[0]).any()


def test_functions_between_two_tensors_are_one_table() -> None:
    """A chain of functions becomes one table without rounding inside; `x` has two readers."""
    make = Builder()
    x = make.input(2, 9)
    gate = make.add(Unary("logistic"), x)
    swish = make.add(Binary("mul"), x, gate)
    graph = make.graph(make.add(Unary("exp"), make.add(Unary("tanh"), swish)))
    plan = classify(graph)
    assert set(plan.kind.values()) == {NodeKind.FUNCTION}
    assert plan.stored == (x, graph.outputs[0])
    found = quantize(graph, make.samples(20))
    assert [node.op.name for node in found.graph.nodes] == ["Table"]
    assert found.sqnr > 40.0


def test_tied_tensors_share_a_quantization() -> None:
    """Concatenations tie their operands, and pools their input; the output of softmax is fixed."""
    graph, _ = _network()
    groups = find_groups(graph, classify(graph))
    by_name = {value.name: group for group in groups for value in group.values}
    assert {"v4", "v6", "v7", "v8", "v3"} <= {v.name for v in by_name["v7"].values}
    assert by_name["v15"].fixed is not None


@pytest.mark.quick(recipe=("default",))
@pytest.mark.parametrize("recipe", RECIPES)
def test_generated_code_equals_the_reference(recipe: str) -> None:
    """Compare every element on the host."""
    members: list[Member] = []
    for seed in range(3):
        graph, make = _network(seed)
        found = quantize(graph, make.samples(20), RECIPES[recipe], measure=False)
        members.append(Member(found.graph, stored_samples(found.graph, make.samples(4))))
    results = run_together(members, SETUPS["host"])
    for member, result in zip(members, results, strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(result, expected, member.graph.name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dscnn_0", "gru_0"])
def test_generated_code_of_digits_networks_equals_the_reference(name: str) -> None:
    """Compare every element on a simulated Cortex-M4."""
    network = digits(name)
    graph = quantize(network.graph, network.calibration[:24], RECIPES["fast"], _FLOAT).graph
    member = Member(graph, stored_samples(graph, network.test[:3]))
    (result,) = run_together([member], SETUPS["m4"])
    assert_same(result, [evaluate(graph, sample).outputs for sample in member.samples], name)


@pytest.mark.thorough
def test_one_loud_sample_is_left_out() -> None:
    """The network is as good as without the sample."""
    network = digits("dscnn_0")
    damaged = network.calibration[:64]
    damaged[7] = (damaged[7][0] * np.float32(30),)
    found = quantize(network.graph, damaged, measure=False)
    assert found.ignored == (7,)
    decibels, lost = measured(network, found.graph)
    assert decibels >= 35.0
    assert lost <= 0.5
    assert outliers(network.graph, network.calibration) == ()


def test_the_same_seed_gives_the_same_network() -> None:
    graph, make = _network()
    samples = make.samples(20)
    first, second = (
        quantize(graph, samples, Recipe(seed=3), measure=False).graph for _ in range(2)
    )
    for a, b in zip(first.values(), second.values(), strict=True):
        assert (a.name, a.type) == (b.name, b.type)
        assert a.data is None or (b.data is not None and np.array_equal(a.data, b.data))


def test_every_step_can_be_switched_off_and_is_measured() -> None:
    """The result lists the steps of the recipe, and its layers are those of the last step."""
    graph, make = _network()
    found = quantize(graph, make.samples(20), Recipe(equalize=False, ranges="percentile"))
    names = [step.name for step in found.steps]
    assert names == ["minmax", "ranges", "weight clipping", "weight rounding", "bias correction"]
    assert not any(layer.equalized for layer in found.layers)
    assert all(layer.counts.sum() == 20 * _size(graph, layer.name) for layer in found.layers)


def _size(graph: Graph, name: str) -> int:
    (size,) = {v.type.size for v in graph.values() if v.name == name}
    return size


def test_measuring_changes_nothing() -> None:
    """Without measuring, only the noise of the result is known, and the result is the same."""
    graph, make = _network()
    samples = make.samples(20)
    measured_, plain = quantize(graph, samples), quantize(graph, samples, measure=False)
    assert plain.steps == measured_.steps[-1:]
    assert plain.layers == ()
    for a, b in zip(measured_.graph.values(), plain.graph.values(), strict=True):
        assert a.type == b.type
        assert a.data is None or (b.data is not None and np.array_equal(a.data, b.data))


def test_pixels_are_stored_exactly() -> None:
    """The inputs are integers that preprocessing has shifted and scaled."""
    make = Builder()
    x = make.input(1, 4, 4, 3)
    graph = make.graph(make.add(Conv2D(), x, make.constant(4, 3, 3, 3), make.constant(4)))
    for mean, std, most in ((0, 255, 200), (127, 128, 255), (0, 16, 16), (100, 1, 180)):
        pixels = make.rng.integers(0, most + 1, (20, *x.type.shape))
        samples = [(((p - mean) / std).astype(np.float32),) for p in pixels]
        found = quantize(graph, samples)
        assert found.layers[0].name == "x0"
        assert found.layers[0].sqnr > 100.0


def test_channels_that_do_not_reach_their_clamp_are_equalized() -> None:
    """Channels that reach ReLU6's limit are not; outputs of the samples do not change."""
    make = Builder()
    x = make.input(1, 8, 8, 4)
    factors = (10.0 ** make.rng.uniform(-2.5, -0.5, 8)).astype(np.float32)
    factors[0] = 3.0
    first = make.constant(8, 1, 1, 4)
    uneven = Value.constant("uneven", first.array * factors[:, None, None, None])
    second = make.constant(5, 1, 1, 8)
    even = Value.constant("even", second.array / factors)
    inner = make.add(Conv2D(activation=Activation.RELU6), x, uneven)
    graph = make.graph(make.add(Conv2D(), inner, even))
    samples, unseen = make.samples(40), make.samples(40)
    plan = classify(graph)
    seen = observe(graph, samples, 0)
    classes = Classes(graph, plan, {inner: seen[inner].channel_limits()})
    assert classes.of(inner)[0] == 0
    assert classes.of(inner)[1:].all()
    equal, _ = equalize(graph, plan, seen, samples)
    np.testing.assert_allclose(
        outputs(equal, samples), outputs(graph, samples), rtol=1e-4, atol=1e-4
    )
    wanted = outputs(graph, unseen)
    noise = [
        _power(outputs(quantize(graph, samples, r, measure=False).graph, unseen) - wanted)
        for r in (Recipe(), Recipe(equalize=False))
    ]
    assert noise[0] < 0.1 * noise[1]


def _power(array: Array) -> float:
    return float(np.square(array).sum())


def test_weights_are_fitted_to_noise_that_depends_on_the_input() -> None:
    """Noise that is independent of the input hardly changes the error."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(1, 3, 6))
    leak = 0.1 * rng.normal(size=(6, 6))

    def halves(*, dependent: bool) -> tuple[list[Noise], float]:
        x = rng.normal(size=(2, 400, 6))
        stored = x + (x @ leak if dependent else 0.05 * rng.normal(size=x.shape))
        moments = np.swapaxes(stored, 1, 2) @ stored / 400
        crossed = np.swapaxes(stored - x, 1, 2) @ stored / 400
        found = [Noise(moments[i : i + 1], crossed[i : i + 1]) for i in range(2)]
        made = fitted(weights, found)[0]
        errors = [np.square(stored @ w.T - x @ weights[0].T).sum() for w in (made, weights[0])]
        return found, float(errors[0] / errors[1])

    assert halves(dependent=True)[1] < 0.1
    assert halves(dependent=False)[1] < 1.1


def test_searched_scales_make_less_noise() -> None:
    """Compensated weights also make less noise than weights rounded to the nearest integer."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(2, 5, 12))
    inputs = rng.normal(size=(2, 50, 12)) @ rng.normal(size=(2, 12, 12))
    moments = damped(np.swapaxes(inputs, 1, 2) @ inputs / 50, 0.01)
    scales = unclipped_scales(weights)

    def noise(integers: Array, scales: Array) -> Array:
        error = integers * scales[..., None] - weights
        return np.einsum("got,gtu,gou->go", error, moments, error)

    alone = noise(compensated(weights, scales, moments), scales)
    found = noise(*searched(weights, [scales, 1.01 * scales, 1.02 * scales], moments))
    assert (found <= alone + 1e-12).all()
    assert found.sum() < 0.95 * alone.sum()
    assert alone.sum() < 0.7 * noise(nearest(weights, scales), scales).sum()


def test_dead_channels_and_large_biases_do_not_overflow() -> None:
    """Channels with tiny weights beside their bias keep their outputs."""
    make = Builder()
    x = make.input(1, 4, 4, 4)
    weights, bias = make.constant(6, 1, 1, 4), make.constant(6)
    weights.array.flags.writeable = bias.array.flags.writeable = True
    weights.array[:2], bias.array[:2] = weights.array[:2] * 1e-9, 3.0
    weights.array[2] = 0.0
    graph = make.graph(make.add(Conv2D(activation=_RELU), x, weights, bias))
    samples = make.samples(20)
    for recipe in RECIPES.values():
        found = quantize(graph, samples, recipe, measure=False)
        error = outputs(found.graph, samples) - outputs(graph, samples)
        assert np.abs(error).max() < 0.1


def test_float_layers_are_listed_if_allowed_and_else_refused() -> None:
    """Adjacent float operators have conversions only before the first and after the last."""
    make = Builder()
    op = Normalization((2,), 1e-5)
    between = make.add(Unary("logistic"), make.add(op, make.input(1, 3, 4)))
    graph = make.graph(make.add(op, between))
    with pytest.raises(UnsupportedError, match=r"Normalization .* allow float"):
        quantize(graph, make.samples(8))
    found = quantize(graph, make.samples(8), allow=_FLOAT)
    names = [node.op.name for node in found.graph.nodes]
    inside = ["Normalization", "Unary(logistic)", "Normalization"]
    assert names == ["Dequantize", *inside, "Quantize"]
    assert [layer.op for layer in found.exceptions] == inside


Damage = Callable[[Array], list[Sample]]
_DAMAGES: dict[str, Damage] = {
    "no calibration samples": lambda x: [],
    "sample 0 has 2 arrays": lambda x: [(x, x)],
    r"sample 1 of input 'x0' is float32\[1, 1, 3\]": lambda x: [(x,), (x[:, :1],)],
    "float64": lambda x: [(x.astype(np.float64),)],
    "5.0 everywhere": lambda x: [(x * 0 + 5,)] * 3,
    r"nan at \[": lambda x: [(np.where(x > 0, np.float32(np.nan), x),)],
    r"inf at \[0, 0, 0\]": lambda x: [(np.full_like(x, np.inf),)],
}


@pytest.mark.parametrize("message", _DAMAGES)
def test_unusable_samples_are_refused(message: str) -> None:
    """The message names the sample, the input, the element or the value."""
    make = Builder()
    graph = make.graph(make.add(Unary("relu"), make.input(1, 2, 3)))
    ((x,),) = make.samples(1)
    with pytest.raises(QuantizationError, match=message):
        quantize(graph, _DAMAGES[message](x))

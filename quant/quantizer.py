"""The quantizer: converts a float network and calibration data to a quantized network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.errors import UnsupportedError
from smelt.ir import Graph, Node, verify
from smelt.quant.data.samples import check_samples, outliers
from smelt.quant.float_network import FloatNetwork
from smelt.quant.layerwise import Converted
from smelt.quant.mixed_precision import wider_layers
from smelt.quant.plan import NodeKind, QuantizationPlan, classify
from smelt.quant.recipe import Recipe
from smelt.quant.result import NonInt8Layer, Quantized, StepGain, output_noise
from smelt.quant.rewrites.attention import prepare_scores
from smelt.quant.rewrites.sequence import prepare
from smelt.samples import Sample


def quantize(
    graph: Graph,
    samples: Sequence[Sample],
    recipe: Recipe | None = None,
    allow: frozenset[str] = frozenset(),
    *,
    measure: bool = True,
) -> Quantized:
    """Quantize a float network to int8.

    Args:
        graph: a float network after the passes.
        samples: calibration data: for each sample, one array per input, of exactly its type.
        recipe: quantization steps to take; None selects the default.
        allow: `float` lets operators without an int8 form stay in float, and also others for which
            int8 costs accuracy. `int16` lets layers compute in int16 if that improves the outputs.
        measure: whether to measure each step and layer, which takes several times as long as the
            quantization; otherwise only the result is measured.

    Raises:
        QuantizationError: the samples cannot be used.
        UnsupportedError: an operator has no int8 form and float is not allowed, or the network is
            already quantized.
    """
    recipe = recipe or Recipe()
    require_float(graph)
    check_samples(graph, samples)
    ignored = outliers(graph, samples)
    numbers = [index for index in range(len(samples)) if index not in ignored]
    kept = [samples[index] for index in numbers]
    graph = prepare_scores(prepare(graph), kept)
    exceptions = _float_layers(classify(graph), allow)
    plain = FloatNetwork.observed(graph, kept, recipe.seed, numbers)
    even = plain.equalized(kept, recipe.seed) if recipe.equalize else plain
    some = slice(None, None, _stride(graph, len(kept)))
    recipe, converted = _final_recipe(
        even, kept, _with_better_ranges(even, kept, recipe), measure=measure
    )
    steps: list[StepGain] = []
    *stages, (last, _) = _stages(recipe)
    for name, stage in stages if measure else ():
        early = (even if stage.equalize else plain).converted(kept[some], stage)
        steps.append(StepGain(name, *output_noise(early.expected, early.found)))
    steps.append(StepGain(last, *output_noise(converted.expected[some], converted.found[some])))
    int8 = None
    found = wider_layers(even, kept, kept[some], recipe, steps[-1].sqnr, allow)
    if found is not None:
        int8 = converted.graph
        converted = found.network.converted(kept, recipe, measure=measure, wide=found.wide)
        noise = output_noise(converted.expected[some], converted.found[some])
        steps.append(StepGain(found.level.name, *noise))
        exceptions += found.layers()
    return Quantized(
        graph=verify(converted.graph, "quantization"),
        exceptions=exceptions,
        steps=tuple(steps),
        layers=converted.layers,
        recipe=recipe,
        samples=len(samples),
        ignored=ignored,
        plain=int8,
    )


_MARGIN = 3.0
"""Gain in dB that min-max ranges must bring: half a bit. Their gain is overestimated, by less than
that, because equalization has seen all samples."""


def _with_better_ranges(network: FloatNetwork, samples: Sequence[Sample], recipe: Recipe) -> Recipe:
    """Return the recipe, with min-max ranges if those of least error make the outputs worse.

    Each range minimizes the error for the tensor's readers, which need not be best for the
    network's outputs. To be fair to clipping, the comparison is cross-validated: ranges from every
    second sample are evaluated on the other samples.
    """
    if recipe.ranges != "mse" or len(samples) < 2:
        return recipe
    half, others = network.with_statistics_of(slice(0, None, 2)), samples[1::2]
    plain = replace(recipe, clip_weights=False, rounding="nearest")
    searched, whole = (
        output_noise(converted.expected, converted.found)[0]
        for tried in (plain, replace(plain, ranges="minmax"))
        for converted in (half.converted(others, tried),)
    )
    return replace(recipe, ranges="minmax") if whole > searched + _MARGIN else recipe


def _final_recipe(
    network: FloatNetwork, samples: Sequence[Sample], recipe: Recipe, *, measure: bool
) -> tuple[Recipe, Converted]:
    """Return the recipe, without searched rounding if that makes the outputs worse, and its result.

    Each product's weights are optimized for its own outputs, which need not be best for the
    network's.
    """
    converted = network.converted(samples, recipe, measure=measure)
    if recipe.rounding != "searched":
        return recipe, converted
    plainer = replace(recipe, rounding="compensated")
    tried = network.converted(samples, plainer, measure=measure)
    reached, before = (output_noise(s.expected, s.found)[0] for s in (tried, converted))
    return (plainer, tried) if reached > before else (recipe, converted)


def _stages(recipe: Recipe) -> list[tuple[str, Recipe]]:
    """Return the recipe up to each of its steps, beginning with the plainest one."""
    stages = [("minmax", _PLAIN)]
    for name, fields in (
        ("equalization", ("equalize",)),
        ("ranges", ("ranges", "percentile")),
        ("weight clipping", ("clip_weights",)),
        ("weight rounding", ("rounding",)),
        ("bias correction", ("correct_bias",)),
    ):
        further = replace(stages[-1][1], **{field: getattr(recipe, field) for field in fields})
        if any(getattr(further, field) != getattr(_PLAIN, field) for field in fields[:1]):
            stages.append((name, further))
    return stages


def _stride(graph: Graph, samples: int) -> int:
    """Return the stride of samples for comparing steps, which limits the time this takes."""
    return max(round(samples / max(_MACS / max(graph.macs, 1), 8)), 1)


_MACS = 1e8
"""Multiply-accumulates of the float network to spend on one step."""

_PLAIN = Recipe(
    ranges="minmax", equalize=False, clip_weights=False, rounding="nearest", correct_bias=False
)


def require_float(graph: Graph) -> None:
    """Check that a network can be quantized, before reading calibration data.

    Raises:
        UnsupportedError: it is already quantized, or has sizes that are known only at run time.
    """
    for value in graph.values():
        if value.type.is_quantized:
            raise UnsupportedError(
                f"'{graph.name}' is already quantized ('{value.name}' is {value.type}): build it "
                "without --quantize, or quantize the float network that it was made from"
            )
    if graph.lengths:
        open_ = ", ".join(f"{x.name}={x.minimum}..{x.maximum}" for x in graph.lengths)
        name = graph.lengths[0].name
        raise UnsupportedError(
            f"'{graph.name}' has run-time sizes ({open_}), but quantization needs fixed sizes: "
            f"give --dim {name}=1"
        )


def _float_layers(plan: QuantizationPlan, allow: frozenset[str]) -> tuple[NonInt8Layer, ...]:
    """Return the layers that stay in float.

    Raises:
        UnsupportedError: there are such layers, but float is not allowed.
    """
    reasons = {node: _reason(node, found) for node, found in plan.reason.items()}
    for node, reason in reasons.items():
        if "float" not in allow:
            raise UnsupportedError(
                f"{node.op.name} of {node.origin} has no int8 form ({reason}); allow float "
                "for it (--allow float)"
            )
    return tuple(
        NonInt8Layer(node.name, node.op.name, str(node.origin), "float32", reasons[node])
        for node in plan.kind
        if plan.kind[node] is NodeKind.FLOAT
    )


def _reason(node: Node, found: str) -> str:
    """Return the reason without the node's origin and without remedies meant for other cases."""
    return found.removeprefix(f"{node.origin}: ").partition("; ")[0]

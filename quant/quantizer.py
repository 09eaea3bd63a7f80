"""Float network and data in, quantized network out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.errors import UnsupportedError
from smelt.ir import Graph, Node, verify
from smelt.quant.data.samples import check_samples, outliers
from smelt.quant.float_network import FloatNetwork
from smelt.quant.layerwise import Swept
from smelt.quant.mixed_precision import freed
from smelt.quant.plan import NodeKind, QuantizationPlan, classify
from smelt.quant.recipe import Recipe
from smelt.quant.result import Island, Quantized, StepGain, output_noise
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
        graph: a float network, as the passes leave it.
        samples: calibration data: one array per input each, of exactly its shape and type.
        recipe: the steps to take; the default one where None.
        allow: `float` lets operators without an int8 form stay in float, and others where int8
            costs accuracy; `int16` lets layers compute in 16 bits where that makes the outputs
            better.
        measure: whether each step is measured, which takes several times as long as all of them,
            and each layer; else only the result is.

    Raises:
        QuantizationError: the samples cannot be used.
        UnsupportedError: an operator has no int8 form, and float is not allowed; or the network
            is quantized already.
    """
    recipe = recipe or Recipe()
    require_float(graph)
    check_samples(graph, samples)
    ignored = outliers(graph, samples)
    numbers = [index for index in range(len(samples)) if index not in ignored]
    kept = [samples[index] for index in numbers]
    graph = prepare_scores(prepare(graph), kept)
    islands = _islands(classify(graph), allow)
    plain = FloatNetwork.observed(graph, kept, recipe.seed, numbers)
    even = plain.equalized(kept, recipe.seed) if recipe.equalize else plain
    some = slice(None, None, _stride(graph, len(kept)))
    recipe, swept = _settled(even, kept, _ranged(even, kept, recipe), measure=measure)
    steps: list[StepGain] = []
    *stages, (last, _) = _stages(recipe)
    for name, stage in stages if measure else ():
        early = (even if stage.equalize else plain).swept(kept[some], stage)
        steps.append(StepGain(name, *output_noise(early.expected, early.found)))
    steps.append(StepGain(last, *output_noise(swept.expected[some], swept.found[some])))
    int8 = None
    found = freed(even, kept, kept[some], recipe, steps[-1].sqnr, allow)
    if found is not None:
        int8 = swept.graph
        swept = found.network.swept(kept, recipe, measure=measure, wide=found.wide)
        noise = output_noise(swept.expected[some], swept.found[some])
        steps.append(StepGain(found.level.name, *noise))
        islands += found.islands()
    return Quantized(
        graph=verify(swept.graph, "quantization"),
        exceptions=islands,
        steps=tuple(steps),
        layers=swept.layers,
        recipe=recipe,
        samples=len(samples),
        ignored=ignored,
        plain=int8,
    )


_MARGIN = 3.0
"""dB that min-max ranges must bring: half a bit. They look better than they are, by less than that,
as equalization has seen all samples."""


def _ranged(network: FloatNetwork, samples: Sequence[Sample], recipe: Recipe) -> Recipe:
    """The recipe with min-max ranges where those of least error make the outputs worse.

    Each range is the best for those who read the tensor, which need not be best for the network's
    outputs. No sample is clipped by the min-max ranges that it had part in: what counts is how the
    ranges of every second sample serve the others.
    """
    if recipe.ranges != "mse" or len(samples) < 2:
        return recipe
    half, others = network.seeing(slice(0, None, 2)), samples[1::2]
    plain = replace(recipe, clip_weights=False, rounding="nearest")
    searched, whole = (
        output_noise(swept.expected, swept.found)[0]
        for tried in (plain, replace(plain, ranges="minmax"))
        for swept in (half.swept(others, tried),)
    )
    return replace(recipe, ranges="minmax") if whole > searched + _MARGIN else recipe


def _settled(
    network: FloatNetwork, samples: Sequence[Sample], recipe: Recipe, *, measure: bool
) -> tuple[Recipe, Swept]:
    """The recipe without its search for weights where that makes the outputs worse.

    Each product's weights are the best for its own outputs, which need not be best for the
    network's. What the recipe makes of the network comes with it.
    """
    swept = network.swept(samples, recipe, measure=measure)
    if recipe.rounding != "searched":
        return recipe, swept
    plainer = replace(recipe, rounding="compensated")
    tried = network.swept(samples, plainer, measure=measure)
    reached, before = (output_noise(s.expected, s.found)[0] for s in (tried, swept))
    return (plainer, tried) if reached > before else (recipe, swept)


def _stages(recipe: Recipe) -> list[tuple[str, Recipe]]:
    """The recipe as far as each of its steps, from the plainest one on."""
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
    """Of the samples that the steps are compared on, so that this takes no longer than the rest."""
    return max(round(samples / max(_MACS / max(graph.macs, 1), 8)), 1)


_MACS = 1e8
"""Multiply-accumulates of the float network that one step may take."""

_PLAIN = Recipe(
    ranges="minmax", equalize=False, clip_weights=False, rounding="nearest", correct_bias=False
)


def require_float(graph: Graph) -> None:
    """Demand a network that can be quantized, before anything is read for it.

    Raises:
        UnsupportedError: it is quantized already, or one of its sizes is known at run time only.
    """
    for value in graph.values():
        if value.type.is_quantized:
            raise UnsupportedError(
                f"'{graph.name}' is quantized already ('{value.name}' is {value.type}): build it "
                "as it is, or quantize the float network that it was made from"
            )
    if graph.lengths:
        open_ = ", ".join(f"{x.name}={x.minimum}..{x.maximum}" for x in graph.lengths)
        name = graph.lengths[0].name
        raise UnsupportedError(
            f"'{graph.name}' leaves sizes open until it runs ({open_}), and a network is quantized "
            f"at one size: give that, as --dim {name}=1"
        )


def _islands(plan: QuantizationPlan, allow: frozenset[str]) -> tuple[Island, ...]:
    """The layers that stay in float.

    Raises:
        UnsupportedError: that is not allowed.
    """
    reasons = {node: _reason(node, found) for node, found in plan.reason.items()}
    for node, reason in reasons.items():
        if "float" not in allow:
            raise UnsupportedError(
                f"{node.op.name} of {node.origin} has no int8 form ({reason}); allow float "
                "for it (--allow float)"
            )
    return tuple(
        Island(node.name, node.op.name, str(node.origin), "float32", reasons[node])
        for node in plan.kind
        if plan.kind[node] is NodeKind.FLOAT
    )


def _reason(node: Node, found: str) -> str:
    """Why a node stays in float, without where it is, and without what to do of other tools."""
    return found.removeprefix(f"{node.origin}: ").partition("; ")[0]

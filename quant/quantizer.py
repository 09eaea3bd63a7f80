"""Float network and data in, quantized network out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from smelt.errors import UnsupportedError
from smelt.ir import Graph, Quant, Value, verify
from smelt.quant.convert import Wide
from smelt.quant.equalization import equalize
from smelt.quant.forms import Form, Forms, apply, classify
from smelt.quant.observation import Observation, Sample, observe
from smelt.quant.quantized import Island, Quantized, StepGain, output_noise
from smelt.quant.ranges import View, choose, quant_of
from smelt.quant.recipe import Recipe
from smelt.quant.rewrites import prepare
from smelt.quant.samples import check_samples, outliers
from smelt.quant.sensitivity import Sensitivity
from smelt.quant.sixteen import candidates, wide_quants
from smelt.quant.sweep import Sweep, Swept
from smelt.quant.ties import Group, find_groups


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
        allow: `float` lets operators without an int8 form stay in float; `int16` lets layers
            compute in 16 bits where that makes the outputs better.
        measure: whether each step is measured, which takes several times as long as all of them,
            and each layer; else only the result is.

    Raises:
        QuantizationError: the samples cannot be used.
        UnsupportedError: an operator has no int8 form, and float is not allowed; or the network
            is quantized already.
    """
    recipe = recipe or Recipe()
    _require_float(graph)
    check_samples(graph, samples)
    ignored = outliers(graph, samples)
    kept = [sample for index, sample in enumerate(samples) if index not in ignored]
    graph = prepare(graph)
    islands = _islands(classify(graph), allow)
    plain = _prepared(graph, kept, recipe.seed)
    even = _equalized(plain, kept, recipe.seed) if recipe.equalize else plain
    steps: list[StepGain] = []
    *stages, (last, _) = _stages(recipe)
    some = slice(None, None, _stride(graph, len(kept)))
    for name, stage in stages if measure else ():
        swept = _run(even if stage.equalize else plain, kept[some], stage, measure=False)
        steps.append(StepGain(name, *output_noise(swept.expected, swept.found)))
    swept = _run(even, kept, recipe, measure=measure)
    steps.append(StepGain(last, *output_noise(swept.expected[some], swept.found[some])))
    plain = None
    if "int16" in allow:
        wide = _widened(even, kept, kept[some], recipe, steps[-1].sqnr)
        if wide is not None:
            plain, swept = swept.graph, _run(even, kept, recipe, measure=measure, wide=wide)
            steps.append(StepGain("int16", *output_noise(swept.expected[some], swept.found[some])))
            islands += _wide_islands(even, wide)
    return Quantized(
        verify(swept.graph, "quantization"),
        islands,
        tuple(steps),
        swept.layers,
        recipe,
        len(samples),
        ignored,
        plain,
    )


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


@dataclass(frozen=True)
class _Network:
    """A float network, how it is to be quantized, and what its values hold."""

    graph: Graph
    forms: Forms
    seen: Mapping[Value, Observation]
    rescaled: frozenset[Value]


def _prepared(
    graph: Graph, samples: Sequence[Sample], seed: int, rescaled: frozenset[Value] = frozenset()
) -> _Network:
    return _Network(graph, classify(graph), observe(graph, samples, seed), rescaled)


def _equalized(network: _Network, samples: Sequence[Sample], seed: int) -> _Network:
    graph, rescaled = equalize(network.graph, network.forms, network.seen, samples)
    return _prepared(graph, samples, seed, rescaled)


def _run(
    network: _Network,
    samples: Sequence[Sample],
    recipe: Recipe,
    *,
    measure: bool,
    wide: Wide | None = None,
) -> Swept:
    graph, forms = network.graph, network.forms
    quants = choose_quants(find_groups(graph, forms), forms, network.seen, recipe)
    equalized = network.rescaled if measure else None
    return Sweep(graph, forms, quants, samples, recipe, equalized, wide).run()


def _widened(
    network: _Network,
    samples: Sequence[Sample],
    some: Sequence[Sample],
    recipe: Recipe,
    sqnr: float,
) -> Wide | None:
    """The layers that are worth 16 bits; None where none are.

    Tensors are freed of noise in the order of how much it does to the outputs: one, two, four, …
    Each time the outputs are measured, and more layers are taken if they are worth it.
    """
    graph, forms = network.graph, network.forms
    groups = find_groups(graph, forms)
    quants = choose_quants(groups, forms, network.seen, recipe)
    found = candidates(graph, forms, quants, Sensitivity(graph, forms, samples))
    best: Wide | None = None
    share, count = 0.0, 1
    while found:
        count = min(count, len(found))
        nodes = list(dict.fromkeys(node for layers in found[:count] for node in layers))
        wide = Wide(frozenset(nodes), wide_quants(nodes, groups, quants, network.seen))
        swept = _run(network, some, recipe, measure=False, wide=wide)
        reached = output_noise(swept.expected, swept.found)[0]
        part = sum(node.op.macs(node) for node in nodes) / max(graph.macs, 1)
        if reached >= sqnr + _WORTH + _WORTH_OF_ALL * (part - share):
            best, sqnr, share = wide, reached, part
        if count == len(found):
            break
        count *= 2
    return best


_WORTH, _WORTH_OF_ALL = 1.0, 5.0
"""dB that further layers of 16 bits must bring, and more if they are all: one bit then."""


def _wide_islands(network: _Network, wide: Wide) -> tuple[Island, ...]:
    reason = "8 bits of its input or output would make most of the noise"
    return tuple(
        Island(node.name, node.op.name, str(node.origin), "int16", reason)
        for node in network.graph.nodes
        if node in wide.nodes
    )


def _require_float(graph: Graph) -> None:
    for value in graph.values():
        if value.type.is_quantized:
            raise UnsupportedError(
                f"'{graph.name}' is quantized already ('{value.name}' is {value.type}); give the "
                "float network"
            )
    if graph.lengths:
        raise UnsupportedError(
            f"'{graph.name}' has dimensions that are known at run time only "
            f"({', '.join(length.name for length in graph.lengths)}); give them one size to "
            "quantize it"
        )


def _islands(forms: Forms, allow: frozenset[str]) -> tuple[Island, ...]:
    """The layers that stay in float.

    Raises:
        UnsupportedError: that is not allowed.
    """
    for node, reason in forms.reason.items():
        if "float" not in allow:
            raise UnsupportedError(
                f"{node.op.name} of {node.origin} has no int8 form ({reason}); allow float "
                "for it (--allow float)"
            )
    return tuple(
        Island(node.name, node.op.name, str(node.origin), "float32", forms.reason[node])
        for node in forms.form
        if forms.form[node] is Form.FLOAT
    )


def choose_quants(
    groups: Sequence[Group], forms: Forms, seen: Mapping[Value, Observation], recipe: Recipe
) -> dict[Value, Quant]:
    """The quantization of every stored value and of the constants that native nodes read."""
    quants: dict[Value, Quant] = {}
    for group in groups:
        quant = group.fixed
        if quant is None:
            views = [view for value in group.values for view in _views(value, forms, seen)]
            quant = quant_of(choose(views, recipe))
        quants.update(dict.fromkeys(group.values, quant))
    return quants


def _views(value: Value, forms: Forms, seen: Mapping[Value, Observation]) -> list[View]:
    """What reads a value: operators that take it as it is, and functions."""
    if value.data is not None:
        return [View(Observation.of_constant(value.data))]
    functions = [
        View(seen[value], partial(apply, forms.path[result], value))
        for result in forms.stored
        if forms.root.get(result) is value
    ]
    as_it_is = value in forms.read or not functions
    return [*functions, *([View(seen[value])] if as_it_is else [])]

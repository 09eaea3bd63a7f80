"""Layers that are freed of the noise of 8 bits: computed in 16 bits, or in float.

A tensor is free of noise if the layer that computes it, and all that read it, compute in the other
type. Tensors are freed in the order of how much their noise does to the outputs: one, two, four, …
Each time the outputs are measured, and more are freed only if that is worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from smelt.ir import Graph, Node, Quant, Value
from smelt.quant.convert import Wide
from smelt.quant.float_network import FloatNetwork
from smelt.quant.plan import NodeKind, QuantizationPlan
from smelt.quant.ranges.int16 import serves as serves_sixteen
from smelt.quant.ranges.int16 import wide_quants
from smelt.quant.recipe import Recipe
from smelt.quant.result import Island, output_noise
from smelt.quant.sensitivity import Sensitivity
from smelt.quant.weights.rescaling import channels_of
from smelt.samples import Sample

REASON = "8 bits of its input or output would make most of the noise"


@dataclass(frozen=True)
class Level:
    """A type that layers may compute in instead of int8, and when that is worth it.

    Attributes:
        name: that it is allowed by.
        dtype: the type's.
        serves: whether a node of the float network can compute in it.
        each: dB that every tensor must bring, if several are taken at once.
        all: dB that all of the network's multiply-accumulates must bring beyond that.
        enough: dB from which on nothing is freed.
    """

    name: str
    dtype: str
    serves: Callable[[Node, QuantizationPlan], bool]
    each: float
    all: float
    enough: float


_WORTH = 1.0
"""dB that tensors must bring that are taken at once."""


def _serves_float(node: Node, plan: QuantizationPlan) -> bool:
    return plan.kind[node] is not NodeKind.PLAIN


LEVELS = (
    # All of them for one bit more: 6 dB.
    Level("int16", "int16", serves_sixteen, each=0.0, all=5.0, enough=float("inf")),
    # For three bits, and only where int8 costs accuracy: floats take four times the memory, and
    # on cores without a unit for them many times the instructions.
    Level("float", "float32", _serves_float, each=1.0, all=17.0, enough=30.0),
)
"""The cheapest first: a later one must bring more than those before."""


@dataclass(frozen=True)
class Freed:
    """What was found to be worth it.

    Attributes:
        level: the type.
        network: with what its layers become.
        wide: the layers of 16 bits; None for others.
        nodes: the layers.
        sqnr: dB of the outputs.
    """

    level: Level
    network: FloatNetwork
    wide: Wide | None
    nodes: frozenset[Node]
    sqnr: float

    def islands(self) -> tuple[Island, ...]:
        """The layers, in order."""
        return tuple(
            Island(node.name, node.op.name, str(node.origin), self.level.dtype, REASON, chosen=True)
            for node in self.network.graph.nodes
            if node in self.nodes
        )


def freed(
    network: FloatNetwork,
    samples: Sequence[Sample],
    some: Sequence[Sample],
    recipe: Recipe,
    sqnr: float,
    allow: frozenset[str],
) -> Freed | None:
    """The layers that are worth another type than int8; None where none are.

    Args:
        network: in int8, but for what has no int8 form.
        samples: calibration data.
        some: those of them that are measured on.
        recipe: the steps to take.
        sqnr: dB of the outputs on these, in int8.
        allow: names of levels.
    """
    best: Freed | None = None
    levels = [level for level in LEVELS if level.name in allow and sqnr < level.enough]
    if not levels:
        return None
    graph, plan = network.graph, network.plan
    quants = network.quants(recipe)
    noise = _noise(graph, plan, quants, Sensitivity(graph, plan, samples))
    for level in levels:
        if sqnr < level.enough:
            found = _search(network, some, recipe, level, noise, quants, sqnr)
            best = found or best
            sqnr = sqnr if found is None else found.sqnr
    return best


def _search(
    network: FloatNetwork,
    some: Sequence[Sample],
    recipe: Recipe,
    level: Level,
    noise: Sequence[Value],
    quants: Mapping[Value, Quant],
    sqnr: float,
) -> Freed | None:
    graph, groups = network.graph, network.groups()
    candidates = _candidates(network, noise, level)
    best: Freed | None = None
    share, tensors, count = 0.0, 0, 1
    while candidates:
        count = min(count, len(candidates))
        nodes = frozenset(node for layers in candidates[:count] for node in layers)
        if level.dtype == "int16":
            ordered = [node for node in graph.nodes if node in nodes]
            tried, wide = network, Wide(nodes, wide_quants(ordered, groups, quants, network.seen))
        else:
            tried, wide = network.in_float(nodes), None
            nodes = _in_float(tried) - _in_float(network)
        swept = tried.swept(some, recipe, wide=wide)
        reached = output_noise(swept.expected, swept.found)[0]
        part = sum(node.op.macs(node) for node in nodes) / max(graph.macs, 1)
        price = _WORTH + level.each * (count - tensors - 1) + level.all * (part - share)
        if reached >= sqnr + price:
            best = Freed(level, tried, wide, nodes, reached)
            sqnr, share, tensors = reached, part, count
        if count == len(candidates):
            break
        count *= 2
    return best


def _in_float(network: FloatNetwork) -> frozenset[Node]:
    kind = network.plan.kind
    return frozenset(node for node in kind if kind[node] is NodeKind.FLOAT)


def _noise(
    graph: Graph, plan: QuantizationPlan, quants: Mapping[Value, Quant], sensitivity: Sensitivity
) -> list[Value]:
    """The stored tensors that nodes compute and that are no results, the noisiest first."""
    found: list[tuple[float, Value]] = []
    for value in plan.stored:
        if value not in graph.producer or value in graph.results or value not in quants:
            continue
        pixels = value.type.size / channels_of(value)
        noise = float(sensitivity.of(value).sum()) * quants[value].scale[0] ** 2 * pixels / 12.0
        found.append((noise, value))
    return [value for _, value in sorted(found, key=lambda pair: -pair[0])]


def _candidates(
    network: FloatNetwork, values: Sequence[Value], level: Level
) -> list[tuple[Node, ...]]:
    """For each tensor that can be freed, the layers that must compute in the level's type."""
    plan = network.plan
    found: list[tuple[Node, ...]] = []
    for value in values:
        maker = network.graph.producer[value]
        makers = plan.path.get(value, (maker,))
        readers = _readers(network.graph, plan, value)
        nodes = (*makers, *readers)
        free = all(plan.kind[node] is NodeKind.FLOAT for node in nodes)
        if readers and not free and all(level.serves(node, plan) for node in nodes):
            found.append(nodes)
    return found


def _readers(graph: Graph, plan: QuantizationPlan, value: Value) -> list[Node]:
    """The nodes that read a stored tensor: those on paths of functions from it, and others."""
    ends = [v for v in plan.stored if plan.root.get(v) is value]
    on_paths = [node for v in ends for node in plan.path[v]]
    direct = [
        node
        for node in graph.nodes
        if value in node.inputs and plan.kind[node] is not NodeKind.FUNCTION
    ]
    return [*dict.fromkeys((*on_paths, *direct))]

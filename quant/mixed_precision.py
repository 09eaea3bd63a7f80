"""Choice of layers that compute in int16 or float because int8 adds too much noise.

A tensor has no int8 noise if the layer that computes it and all layers that read it compute in the
other type. Tensors are ordered by the effect of their noise on the outputs. The first 1, 2, 4, …
tensors are tried. After each try the outputs are measured, and the larger set is kept only if the
gain is worth the cost.
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
from smelt.quant.result import NonInt8Layer, output_noise
from smelt.quant.sensitivity import Sensitivity
from smelt.quant.weights.rescaling import channels_of
from smelt.samples import Sample

REASON = "8 bits for its input or output would cause most of the noise"


@dataclass(frozen=True)
class Level:
    """A type that layers may use instead of int8, and the gain that it must bring.

    Attributes:
        name: name for `allow`.
        dtype: the type.
        serves: whether a node of the float network can compute in the type.
        each: gain in dB required for each additional tensor of a try.
        all: gain in dB required for all multiply-accumulates of the network; proportionally less
            for a part of them.
        enough: SQNR in dB above which no layer is changed.
    """

    name: str
    dtype: str
    serves: Callable[[Node, QuantizationPlan], bool]
    each: float
    all: float
    enough: float


_WORTH = 1.0
"""Gain in dB required for each try."""


def _serves_float(node: Node, plan: QuantizationPlan) -> bool:
    return plan.kind[node] is not NodeKind.PLAIN


LEVELS = (
    # int16 everywhere must gain about one bit: 6 dB.
    Level("int16", "int16", serves_sixteen, each=0.0, all=5.0, enough=float("inf")),
    # float must gain three bits, and is used only where int8 costs accuracy: floats take four times
    # the memory and, on cores without an FPU, many times the instructions.
    Level("float", "float32", _serves_float, each=1.0, all=17.0, enough=30.0),
)
"""In order of cost: a later level must gain more than the earlier ones."""


@dataclass(frozen=True)
class WiderLayers:
    """A selection of layers that is worth its cost.

    Attributes:
        level: type of the layers.
        network: float network with the plan for these layers.
        wide: the layers if they are int16, else None.
        nodes: the layers.
        sqnr: SQNR of the outputs in dB.
    """

    level: Level
    network: FloatNetwork
    wide: Wide | None
    nodes: frozenset[Node]
    sqnr: float

    def layers(self) -> tuple[NonInt8Layer, ...]:
        """Return the layers in order."""
        return tuple(
            NonInt8Layer(
                node.name, node.op.name, str(node.origin), self.level.dtype, REASON, chosen=True
            )
            for node in self.network.graph.nodes
            if node in self.nodes
        )


def wider_layers(
    network: FloatNetwork,
    samples: Sequence[Sample],
    some: Sequence[Sample],
    recipe: Recipe,
    sqnr: float,
    allow: frozenset[str],
) -> WiderLayers | None:
    """Return the layers for which another type than int8 is worth its cost, or None.

    Args:
        network: the network, in int8 except for layers without an int8 form.
        samples: calibration data.
        some: subset of `samples` to measure on.
        recipe: quantization steps to take.
        sqnr: SQNR in dB of the outputs in int8, measured on `some`.
        allow: names of the allowed levels.
    """
    best: WiderLayers | None = None
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
) -> WiderLayers | None:
    graph, groups = network.graph, network.groups()
    candidates = _candidates(network, noise, level)
    best: WiderLayers | None = None
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
        converted = tried.converted(some, recipe, wide=wide)
        reached = output_noise(converted.expected, converted.found)[0]
        part = sum(node.op.macs(node) for node in nodes) / max(graph.macs, 1)
        price = _WORTH + level.each * (count - tensors - 1) + level.all * (part - share)
        if reached >= sqnr + price:
            best = WiderLayers(level, tried, wide, nodes, reached)
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
    """Return the computed stored tensors except results, sorted by decreasing noise."""
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
    """For each tensor that can change type, return the layers that must change with it."""
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
    """Return the nodes that read a stored tensor, directly or through paths of functions."""
    ends = [v for v in plan.stored if plan.root.get(v) is value]
    on_paths = [node for v in ends for node in plan.path[v]]
    direct = [
        node
        for node in graph.nodes
        if value in node.inputs and plan.kind[node] is not NodeKind.FUNCTION
    ]
    return [*dict.fromkeys((*on_paths, *direct))]

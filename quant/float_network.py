"""A float network prepared for quantization: its plan, its observed values, and its conversion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from smelt.ir import Graph, Node, Quant, Value
from smelt.quant.convert import Wide
from smelt.quant.layerwise import Converted, LayerwiseConversion
from smelt.quant.plan import NodeKind, QuantizationPlan, apply, classify, only_moves
from smelt.quant.ranges.activation_ranges import ReaderView, choose, quant_of
from smelt.quant.ranges.activation_statistics import Observation, observe
from smelt.quant.ranges.shared_ranges import Group, find_groups
from smelt.quant.recipe import Recipe
from smelt.quant.weights.equalization import equalize
from smelt.quant.weights.lstm import cell_quant
from smelt.samples import Sample


@dataclass(frozen=True)
class FloatNetwork:
    """A float network, the plan of its quantization, and statistics of its values.

    Attributes:
        graph: the network.
        plan: kind of each node.
        seen: statistics of the computed values.
        rescaled: values whose channels were rescaled by equalization.
    """

    graph: Graph
    plan: QuantizationPlan
    seen: Mapping[Value, Observation]
    rescaled: frozenset[Value] = frozenset()

    @staticmethod
    def observed(
        graph: Graph,
        samples: Sequence[Sample],
        seed: int,
        numbers: Sequence[int] | None = None,
    ) -> FloatNetwork:
        """Run a network on samples and collect statistics; messages use `numbers` for samples.

        Raises:
            QuantizationError: the network computes a value that is not finite.
        """
        return FloatNetwork(graph, classify(graph), observe(graph, samples, seed, numbers))

    def equalized(self, samples: Sequence[Sample], seed: int) -> FloatNetwork:
        """Return the network with equalized channels."""
        graph, rescaled = equalize(self.graph, self.plan, self.seen, samples)
        return replace(FloatNetwork.observed(graph, samples, seed), rescaled=rescaled)

    def with_statistics_of(self, samples: slice) -> FloatNetwork:
        """Return the same network with statistics of only these samples."""
        return replace(self, seen={value: o.part(samples) for value, o in self.seen.items()})

    def in_float(self, nodes: frozenset[Node]) -> FloatNetwork:
        """Return the same network with additional nodes that stay in float."""
        return replace(self, plan=classify(self.graph, nodes))

    def groups(self) -> list[Group]:
        """Return the groups of tensors that share a quantization."""
        return find_groups(self.graph, self.plan, self.seen)

    def quants(self, recipe: Recipe) -> dict[Value, Quant]:
        """Return the quantization of each stored value and of the constants of native nodes."""
        quants: dict[Value, Quant] = {}
        for group in self.groups():
            quant = group.fixed
            if self.plan.cells.issuperset(group.values):
                quant = cell_quant([self.seen[value] for value in group.values])
            elif quant is None:
                quant = quant_of(choose(self._views(group), recipe))
            quants.update(dict.fromkeys(group.values, quant))
        return quants

    def converted(
        self,
        samples: Sequence[Sample],
        recipe: Recipe,
        *,
        measure: bool = False,
        wide: Wide | None = None,
    ) -> Converted:
        """Build the quantized network and run it on samples.

        Args:
            samples: calibration data.
            recipe: quantization steps to take.
            measure: whether to measure each layer.
            wide: layers that compute in int16, or None.
        """
        rescaled = self.rescaled if measure else None
        quants = self.quants(recipe)
        return LayerwiseConversion(
            self.graph, self.plan, quants, samples, recipe, equalized=rescaled, wide=wide
        ).run()

    def _views(self, group: Group) -> list[ReaderView]:
        """Return the readers of a group's tensors: functions, and operators without a function.

        Operators that only move elements within the group are not readers. When tensors are joined,
        an error thus counts relative to all that is joined, not to the one tensor that has it.
        """
        views = [view for value in group.values for view in self._functions(value)]
        for value in group.values:
            if value.data is None and self._is_read(value, group):
                views.append(ReaderView(self.seen[value]))
        return views or [
            ReaderView(Observation.of_constant(v.data) if v.data is not None else self.seen[v])
            for v in group.values
        ]

    def _functions(self, value: Value) -> list[ReaderView]:
        return [
            ReaderView(self.seen[value], partial(apply, self.plan.path[result], value))
            for result in self.plan.stored
            if self.plan.root.get(result) is value
        ]

    def _is_read(self, value: Value, group: Group) -> bool:
        if value in self.graph.results:
            return True
        return any(
            value in node.inputs
            and self.plan.kind[node] is not NodeKind.FUNCTION
            and not (only_moves(node) and node.output in group.values)
            for node in self.graph.nodes
        )

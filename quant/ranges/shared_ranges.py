"""Groups of tensors that share a quantization, some of them with a fixed one.

Operators that only move or select data keep the stored integers, so their inputs and outputs must
share a quantization (see `plan.tied_inputs`). If that would be too coarse for other readers of a
tensor, the tensor keeps its own quantization, and the conversion requantizes it where it is joined
to wider tensors. The same applies to a tensor with a fixed quantization that does not suit the
tensors it is joined to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smelt.ir import Graph, Node, Quant, Value
from smelt.quant.plan import NodeKind, QuantizationPlan, fixed_quant, is_real, tied_inputs
from smelt.quant.ranges.activation_ranges import headroom
from smelt.quant.ranges.activation_statistics import Observation

_WIDER = 1.5
"""A tensor keeps its own range if the shared one is wider by this factor and other operators read
the tensor; the factor corresponds to 3.5 dB more noise."""


_Ties: TypeAlias = Mapping[Node, Sequence[Value]]
"""Operands that share the quantization of a native node's results, by node."""


@dataclass(frozen=True)
class Group:
    """Tensors and constants that share a quantization, which may be `fixed`."""

    values: tuple[Value, ...]
    fixed: Quant | None


class _Groups:
    """Disjoint sets of values that can be joined; each has at most one fixed quantization."""

    def __init__(self) -> None:
        self.of: dict[Value, list[Value]] = {}
        self.fixed: dict[Value, Quant] = {}

    def add(self, value: Value) -> None:
        self.of.setdefault(value, [value])

    def join(self, a: Value, b: Value) -> None:
        first, second = self.of[a], self.of[b]
        quants = {self.fixed[v] for v in (*first, *second) if v in self.fixed}
        if first is second or len(quants) > 1:
            return
        first += second
        self.of.update(dict.fromkeys(second, first))

    def result(self) -> list[Group]:
        distinct = {id(values): values for values in self.of.values()}
        return [
            Group(tuple(values), next((self.fixed[v] for v in values if v in self.fixed), None))
            for values in distinct.values()
        ]


def find_groups(
    graph: Graph, plan: QuantizationPlan, seen: Mapping[Value, Observation] | None = None
) -> list[Group]:
    """Return the groups of all stored tensors, and of the constants that native nodes read.

    Args:
        graph: a float network.
        plan: kind of each node.
        seen: statistics of the values; if None, all tensors that can share a quantization do.

    Returns:
        The groups. Tensors stay in separate groups if they have different fixed quantizations, or
        if one's quantization does not suit the other. The conversion requantizes between them.
    """
    tied = _ties(graph, plan)
    if seen is None:
        return _grouped(graph, plan, tied).result()
    tied, groups = _unfixed(graph, plan, tied, seen)
    views = _Views(graph, plan, tied, groups, seen)
    kept = {node: [v for v in values if views.suits(node, v)] for node, values in tied.items()}
    return _grouped(graph, plan, kept).result()


def _ties(graph: Graph, plan: QuantizationPlan) -> _Ties:
    """Return the operands that share the quantization of their node's results, except cells."""
    native = [node for node in graph.nodes if plan.kind[node] is NodeKind.NATIVE]
    tied = {node: [node.input(index) for index in tied_inputs(node)] for node in native}
    return {node: [v for v in found if v not in plan.cells] for node, found in tied.items()}


def _grouped(graph: Graph, plan: QuantizationPlan, tied: _Ties) -> _Groups:
    groups = _Groups()
    for value in plan.stored:
        groups.add(value)
    for node in tied:
        outputs = [v for v in node.outputs if is_real(v)]
        for value in (*node.inputs, *outputs):
            if value is not None and is_real(value):
                groups.add(value)
        quant = fixed_quant(node)
        if quant is not None:
            groups.fixed.update(dict.fromkeys(outputs, quant))
    for node, inputs in tied.items():
        together = [*(v for v in node.outputs if is_real(v)), *inputs]
        for value in together[1:]:
            groups.join(together[0], value)
    for node in graph.nodes:
        if plan.kind[node] is NodeKind.LSTM:
            _tie_states(groups, plan, node)
    for state in graph.states:
        if is_real(state.before):
            groups.join(state.before, state.after)
    return groups


def _tie_states(groups: _Groups, plan: QuantizationPlan, node: Node) -> None:
    """Join all hidden states of an LSTM, and join its cell states."""
    *hidden, cell = node.outputs
    first, before = node.optional(4), node.optional(5)
    for value in (*hidden, first):
        if value is not None:
            groups.add(value)
            groups.join(hidden[0], value)
    if before is not None and before in plan.cells:
        groups.join(cell, before)


def _unfixed(
    graph: Graph, plan: QuantizationPlan, tied: _Ties, seen: Mapping[Value, Observation]
) -> tuple[_Ties, _Groups]:
    """Drop ties that impose an unsuitable fixed quantization. Return the other ties and groups."""
    while True:
        groups = _grouped(graph, plan, tied)
        held = _fixed_quantizations(graph, tied)
        bad = {
            value
            for group in groups.result()
            if group.fixed is not None and not _is_suitable(group, group.fixed, held, seen)
            for value in group.values
        }
        kept = {
            node: [
                v
                for v in values
                if not (
                    v in held and v in bad and any(y in bad and y not in held for y in node.outputs)
                )
            ]
            for node, values in tied.items()
        }
        if kept == tied:
            return tied, groups
        tied = kept


def _fixed_quantizations(graph: Graph, tied: _Ties) -> dict[Value, Quant]:
    """Return the values that are derived only from results of one fixed quantization."""
    held: dict[Value, Quant] = {}
    count = -1
    # Repeat, because states carry values back to earlier nodes.
    while len(held) > count:
        count = len(held)
        for node, values in tied.items():
            quants = {held.get(v) for v in values}
            quant = fixed_quant(node) or (quants.pop() if len(quants) == 1 else None)
            if quant is not None:
                held.update((v, quant) for v in node.outputs if is_real(v))
        held.update((s.before, held[s.after]) for s in graph.states if s.after in held)
    return held


def _is_suitable(
    group: Group, quant: Quant, held: Mapping[Value, Quant], seen: Mapping[Value, Observation]
) -> bool:
    """Return whether a fixed quantization is close to what the other tensors of a group need."""
    others = [_seen(v, seen) for v in group.values if v not in held]
    others = [observation for observation in others if observation is not None]
    if not others:
        return True
    scale, zero_point = quant.scalar
    # A fixed quantization's limit is one step below the real limit, so allow one step more.
    low, high = (-129 - zero_point) * scale, (128 - zero_point) * scale
    factors = [(o, *headroom(o)) for o in others]
    within = all(
        float(o.low.min()) * below >= low and float(o.high.max()) * above <= high
        for o, below, above in factors
    )
    return within and 255 * scale < _WIDER * _width(group.values, seen)


class _Views:
    """Sets of tensors that contain the same elements, or parts of them.

    Such tensors are results of operators with a single operand. They share a quantization in any
    case, so they are considered together.
    """

    def __init__(
        self,
        graph: Graph,
        plan: QuantizationPlan,
        tied: _Ties,
        groups: _Groups,
        seen: Mapping[Value, Observation],
    ) -> None:
        self._graph, self._tied, self._groups, self._seen = graph, tied, groups, seen
        self._joins = {node for node, values in tied.items() if len(set(values)) > 1}
        alone: _Ties = {node: () if node in self._joins else tied[node] for node in tied}
        self._of = _grouped(graph, plan, alone).of

    def suits(self, node: Node, operand: Value) -> bool:
        """Return whether an operand's group is fine enough for all other readers of its views."""
        if node not in self._joins:
            return True
        views = self._of[operand]
        limit = _width(self._groups.of[operand], self._seen) / _WIDER
        own = _width(views, self._seen)
        return own > limit or not any(self._is_read(v, node, limit) for v in views)

    def _is_read(self, value: Value, join: Node, limit: float) -> bool:
        """Return whether a reader other than a wide join reads the value."""
        if value in self._graph.results:
            return True
        for node in self._graph.nodes:
            if value not in node.inputs or node is join:
                continue
            if value not in self._tied.get(node, ()):
                return True
            if node in self._joins and _width(self._of[node.outputs[0]], self._seen) <= limit:
                return True
        return False


def _width(values: Sequence[Value], seen: Mapping[Value, Observation]) -> float:
    """Return the width of the range that contains all values and zero."""
    found = [o for o in (_seen(v, seen) for v in values) if o is not None]
    high = max((float(o.high.max()) for o in found), default=0.0)
    low = min((float(o.low.min()) for o in found), default=0.0)
    return max(high, 0.0) - min(low, 0.0)


def _seen(value: Value, seen: Mapping[Value, Observation]) -> Observation | None:
    return seen.get(value) if value.data is None else Observation.of_constant(value.data)

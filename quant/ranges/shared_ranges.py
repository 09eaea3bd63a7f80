"""Which tensors share one quantization, and which have a fixed one.

Operators that only move or select data keep the stored integers as they are: their inputs and
outputs are quantized alike. Which ones those are, the operators tell (see `plan.tied_inputs`).
Where that would make a tensor coarse for others that read it too, the conversion requantizes it for
the one that joins it to wider tensors; and so it does a tensor of a fixed quantization that is
joined to others which that does not suit.
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
"""A tensor does not share the range of others from this much wider than its own on, if operators
read it that do not demand that: it is 3.5 dB of the noise that these see."""


_Ties: TypeAlias = Mapping[Node, Sequence[Value]]
"""By native node, the operands that are quantized like its results."""


@dataclass(frozen=True)
class Group:
    """Tensors, constants among them, that share a quantization; it may be `fixed`."""

    values: tuple[Value, ...]
    fixed: Quant | None


class _Groups:
    """Sets of values that merge; each has at most one fixed quantization."""

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
    """Every stored tensor's group, and those of the constants that native nodes read.

    Args:
        graph: a float network.
        plan: what its nodes become.
        seen: what values hold; where None, all tensors that can be quantized alike are.

    Returns:
        The groups. Where two tensors of different fixed quantizations would meet, or one of them
        tensors that it does not suit, they stay apart, and the conversion requantizes between them.
    """
    tied = _ties(graph, plan)
    if seen is None:
        return _grouped(graph, plan, tied).result()
    tied, groups = _unfixed(graph, plan, tied, seen)
    views = _Views(graph, plan, tied, groups, seen)
    kept = {node: [v for v in values if views.suits(node, v)] for node, values in tied.items()}
    return _grouped(graph, plan, kept).result()


def _ties(graph: Graph, plan: QuantizationPlan) -> _Ties:
    """The operands that must be quantized like their node's results; cell states are read apart."""
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
    """All hidden states of an LSTM are quantized alike, and so are its cell states."""
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
    """The ties without those that impose a fixed quantization where it does not suit."""
    while True:
        groups = _grouped(graph, plan, tied)
        held = _held(graph, tied)
        bad = {
            value
            for group in groups.result()
            if group.fixed is not None and not _suits(group, group.fixed, held, seen)
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


def _held(graph: Graph, tied: _Ties) -> dict[Value, Quant]:
    """What holds nothing but results of one fixed quantization."""
    held: dict[Value, Quant] = {}
    count = -1
    # Once more where a state hands them on.
    while len(held) > count:
        count = len(held)
        for node, values in tied.items():
            quants = {held.get(v) for v in values}
            quant = fixed_quant(node) or (quants.pop() if len(quants) == 1 else None)
            if quant is not None:
                held.update((v, quant) for v in node.outputs if is_real(v))
        held.update((s.before, held[s.after]) for s in graph.states if s.after in held)
    return held


def _suits(
    group: Group, quant: Quant, held: Mapping[Value, Quant], seen: Mapping[Value, Observation]
) -> bool:
    """Whether a fixed quantization is about what the others of a group would have, too."""
    others = [_seen(v, seen) for v in group.values if v not in held]
    others = [observation for observation in others if observation is not None]
    if not others:
        return True
    scale, zero_point = quant.scalar
    # The fixed quantizations themselves fall one step short of what they are for.
    low, high = (-129 - zero_point) * scale, (128 - zero_point) * scale
    rooms = [(o, *headroom(o)) for o in others]
    within = all(
        float(o.low.min()) * below >= low and float(o.high.max()) * above <= high
        for o, below, above in rooms
    )
    return within and 255 * scale < _WIDER * _width(group.values, seen)


class _Views:
    """Tensors that hold the same elements, or some of them: what one operand alone makes.

    These are quantized alike whatever else happens, so that they are looked at as one.
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
        """Whether an operand's group is not too coarse for what else reads the operand's views."""
        if node not in self._joins:
            return True
        views = self._of[operand]
        limit = _width(self._groups.of[operand], self._seen) / _WIDER
        own = _width(views, self._seen)
        return own > limit or not any(self._is_read(v, node, limit) for v in views)

    def _is_read(self, value: Value, join: Node, limit: float) -> bool:
        """Whether anything but a join reads a value as it is, or another join to a narrow one."""
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
    """Of the range that holds all of them, and zero."""
    found = [o for o in (_seen(v, seen) for v in values) if o is not None]
    high = max((float(o.high.max()) for o in found), default=0.0)
    low = min((float(o.low.min()) for o in found), default=0.0)
    return max(high, 0.0) - min(low, 0.0)


def _seen(value: Value, seen: Mapping[Value, Observation]) -> Observation | None:
    return seen.get(value) if value.data is None else Observation.of_constant(value.data)

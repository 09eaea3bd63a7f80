"""Which tensors share one quantization, and which have a fixed one.

Operators that only move or select data keep the stored integers as they are: their inputs and
outputs are quantized alike. Which ones those are, the operators tell (see `forms.tied_inputs`).
Where that would make a tensor coarse for others that read it too, the conversion requantizes it for
the one that joins it to wider tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smelt.ir import Graph, Node, Quant, Value
from smelt.quant.forms import Form, Forms, fixed_quant, is_real, tied_inputs
from smelt.quant.observation import Observation

_WIDER = 1.5
"""A tensor does not share the range of others from this much wider than its own on, if operators
read it that do not demand that: it is 3.5 dB of the noise that these see."""


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
    graph: Graph, forms: Forms, seen: Mapping[Value, Observation] | None = None
) -> list[Group]:
    """Every stored tensor's group, and those of the constants that native nodes read.

    Args:
        graph: a float network.
        forms: of its nodes.
        seen: what values hold; where None, all tensors that can be quantized alike are.

    Returns:
        The groups. Where two tensors of different fixed quantizations would meet, they stay apart,
        and the conversion requantizes between them.
    """
    tied = _ties(graph, forms)
    groups = _grouped(graph, forms, tied)
    if seen is not None:
        kept = {
            node: _kept(graph, node, values, tied, groups, seen) for node, values in tied.items()
        }
        groups = _grouped(graph, forms, kept)
    return groups.result()


def _ties(graph: Graph, forms: Forms) -> dict[Node, list[Value]]:
    """The operands that must be quantized like their node's results; cell states are read apart."""
    native = [node for node in graph.nodes if forms.form[node] is Form.NATIVE]
    tied = {node: [node.input(index) for index in tied_inputs(node)] for node in native}
    return {node: [v for v in found if v not in forms.cells] for node, found in tied.items()}


def _grouped(graph: Graph, forms: Forms, tied: Mapping[Node, Sequence[Value]]) -> _Groups:
    groups = _Groups()
    for value in forms.stored:
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
        if forms.form[node] is Form.LSTM:
            _tie_states(groups, forms, node)
    for state in graph.states:
        if is_real(state.before):
            groups.join(state.before, state.after)
    return groups


def _tie_states(groups: _Groups, forms: Forms, node: Node) -> None:
    """All hidden states of an LSTM are quantized alike, and so are its cell states."""
    *hidden, cell = node.outputs
    first, before = node.optional(4), node.optional(5)
    for value in (*hidden, first):
        if value is not None:
            groups.add(value)
            groups.join(hidden[0], value)
    if before is not None and before in forms.cells:
        groups.join(cell, before)


def _kept(
    graph: Graph,
    node: Node,
    operands: Sequence[Value],
    tied: Mapping[Node, Sequence[Value]],
    groups: _Groups,
    seen: Mapping[Value, Observation],
) -> list[Value]:
    """The operands whose group is not too coarse for what else reads them."""

    def is_read_freely(value: Value) -> bool:
        return value in graph.results or any(
            value in other.inputs and value not in tied.get(other, ()) for other in graph.nodes
        )

    def is_coarse(value: Value) -> bool:
        widths = {v: _width(seen[v]) for v in groups.of[value] if v in seen}
        return value in widths and max(widths.values()) >= _WIDER * widths[value]

    return [v for v in operands if not (is_coarse(v) and is_read_freely(v))]


def _width(observation: Observation) -> float:
    return max(float(observation.high.max()), 0.0) - min(float(observation.low.min()), 0.0)

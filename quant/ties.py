"""Which tensors share one quantization, and which have a fixed one.

Operators that only move or select data keep the stored integers as they are: their inputs and
outputs are quantized alike. Which ones those are, the operators tell (see `forms.tied_inputs`).
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.ir import Graph, Quant, Value
from smelt.quant.forms import Form, Forms, fixed_quant, is_real, tied_inputs


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


def find_groups(graph: Graph, forms: Forms) -> list[Group]:
    """Every stored tensor's group, and those of the constants that native nodes read.

    Where two tensors of different fixed quantizations would meet, they stay apart, and the
    conversion requantizes between them.
    """
    groups = _Groups()
    for value in forms.stored:
        groups.add(value)
    native = [node for node in graph.nodes if forms.form[node] is Form.NATIVE]
    for node in native:
        outputs = [v for v in node.outputs if is_real(v)]
        for value in (*node.inputs, *outputs):
            if value is not None and is_real(value):
                groups.add(value)
        quant = fixed_quant(node)
        if quant is not None:
            groups.fixed.update(dict.fromkeys(outputs, quant))
    for node in native:
        outputs = [v for v in node.outputs if is_real(v)]
        tied = [*outputs, *(node.input(index) for index in tied_inputs(node))]
        for other in tied[1:]:
            groups.join(tied[0], other)
    for state in graph.states:
        if is_real(state.before):
            groups.join(state.before, state.after)
    return groups.result()

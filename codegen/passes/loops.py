"""What While and Loop have in common, and which results a body may write over what it carries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from smelt.ir import Graph, Node, Value
from smelt.ops.control.branches import Loop, Order, While

InPlace = Callable[[Node], Sequence[tuple[int, int]]]
"""The `(output, input)` pairs of a node whose kernel may be given one address for both."""


@dataclass(frozen=True)
class LoopForm:
    """A node that repeats a graph: its operands by their roles, and its graphs.

    `test`, if any, says before every turn whether it takes place. `number`, `entries` and `again`,
    `results` are the inputs and outputs of `body`: the turn's number and what it is passed;
    whether there is another turn, and what it makes.
    """

    word: str
    limit: Value | None
    condition: Value | None
    carried: tuple[Value, ...]
    scanned: tuple[Value, ...]
    invariant: tuple[Value, ...]
    turns: int | None
    scans: tuple[Order, ...]
    stacks: tuple[Order, ...]
    test: Graph | None
    body: Graph
    number: Value | None
    entries: tuple[Value, ...]
    again: Value | None
    results: tuple[Value, ...]

    @staticmethod
    def of(node: Node, op: While | Loop) -> LoopForm:
        """The form of a verified node."""
        operands = tuple(value for value in node.inputs if value is not None)
        body = op.body
        if isinstance(op, While):
            given = "while", None, None, operands, (), (), None, (), ()
            return LoopForm(*given, op.condition, body, None, body.inputs, None, body.outputs)
        limit, condition = node.inputs[:2]
        operands = operands[sum(value is not None for value in (limit, condition)) :]
        middle, end = op.carried, op.carried + len(op.scans)
        parts = operands[:middle], operands[middle:end], operands[end:]
        again, results = (body.outputs[0], body.outputs[1:]) if op.stops else (None, body.outputs)
        known = op.turns, op.scans, op.stacks, None, body, body.inputs[0], body.inputs[1:]
        return LoopForm("for", limit, condition, *parts, *known, again, results)

    @property
    def numbered(self) -> bool:
        """Whether the body reads the turn's number."""
        return self.number is not None and is_read(self.body, self.number)

    @cached_property
    def kept(self) -> frozenset[int]:
        """Indices of what is carried without a change."""
        return frozenset(
            k
            for k in range(len(self.carried))
            if root_of(self.body, self.results[k]) is self.entries[k]
        )

    def written_early(self, in_place: InPlace) -> dict[Value, int]:
        """Values of the body that may be written to their place among the results at once.

        Gives the index of a result by the value, which a node of the body makes: one that is
        stacked, or one that is carried if nothing reads what was carried before, later than that
        node (or together with it, unless its kernel works in place).
        """
        early: dict[Value, int] = {}
        for k, value in enumerate(self.results):
            root = root_of(self.body, value)
            if root in early or root not in self.body.producer:
                continue
            if k >= len(self.carried) or self._is_free(k, root, in_place):
                early[root] = k
        return early

    def _is_free(self, k: int, root: Value, in_place: InPlace) -> bool:
        old = self.entries[k]
        if any(root_of(self.body, value) is old for value in self.body.outputs):
            return False
        maker = self.body.nodes.index(self.body.producer[root])
        readers = {
            index: node
            for index, node in enumerate(self.body.nodes)
            if not node.op.is_view and self._operands(node, old)
        }
        if max(readers, default=-1) < maker:
            return True
        node = self.body.nodes[maker]
        if max(readers) > maker or node.op.subgraphs:
            return False
        output = node.outputs.index(root)
        return all((output, operand) in in_place(node) for operand in self._operands(node, old))

    def _operands(self, node: Node, old: Value) -> list[int]:
        """The operands of a node that are `old`, reshaped or not."""
        roots = (None if v is None else root_of(self.body, v) for v in node.inputs)
        return [index for index, root in enumerate(roots) if root is old]


def root_of(graph: Graph, value: Value) -> Value:
    """The value that a view is of; another value itself."""
    while value in graph.producer and graph.producer[value].op.is_view:
        value = graph.producer[value].input(0)
    return value


def is_read(graph: Graph, value: Value) -> bool:
    """Whether a node or the graph's caller reads a value."""
    return value in graph.results or any(value in node.inputs for node in graph.nodes)


PlaceT = TypeVar("PlaceT", bound=Hashable)


def in_safe_order(
    sources: Mapping[PlaceT, PlaceT], spare: Callable[[PlaceT], PlaceT]
) -> Iterator[tuple[PlaceT, PlaceT]]:
    """Orders copies that are meant to happen at once, of a source by its target.

    A copy waits for those that read its target. In a cycle, `spare` names a place that keeps one.

    Yields:
        `(source, target)`.
    """
    waiting: dict[PlaceT, PlaceT] = dict(sources)
    while waiting:
        blocked = set(waiting.values())
        for target, source in waiting.items():
            if target not in blocked:
                del waiting[target]
                yield source, target
                break
        else:
            target = next(iter(waiting))
            kept = spare(target)
            yield target, kept
            waiting = {to: kept if source == target else source for to, source in waiting.items()}

"""What loops carry without a change, and which results a body may write over what it carries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

from smelt.ir import Graph, Node, Value
from smelt.ops.control.loop_form import LoopForm

InPlace = Callable[[Node], Sequence[tuple[int, int]]]
"""The `(output, input)` pairs of a node whose kernel may be given one address for both."""


def kept(form: LoopForm) -> frozenset[int]:
    """Indices of what is carried without a change."""
    return frozenset(
        k
        for k in range(len(form.carried))
        if root_of(form.body, form.results[k]) is form.entries[k]
    )


def written_early(form: LoopForm, in_place: InPlace) -> dict[Value, int]:
    """Values of the body that may be written to their place among the results at once.

    Gives the index of a result by the value, which a node of the body makes: one that is
    stacked, or one that is carried if nothing reads what was carried before, later than that
    node (or together with it, unless its kernel works in place).
    """
    early: dict[Value, int] = {}
    for k, value in enumerate(form.results):
        root = root_of(form.body, value)
        if root in early or root not in form.body.producer:
            continue
        if k >= len(form.carried) or _is_free(form.body, form.entries[k], root, in_place):
            early[root] = k
    return early


def _is_free(body: Graph, old: Value, root: Value, in_place: InPlace) -> bool:
    """Whether `root` may be written where `old` was, which it replaces in the next turn."""
    if any(root_of(body, value) is old for value in body.outputs):
        return False
    maker = body.nodes.index(body.producer[root])
    readers = {
        index: node
        for index, node in enumerate(body.nodes)
        if not node.op.is_view and _operands(body, node, old)
    }
    if max(readers, default=-1) < maker:
        return True
    node = body.nodes[maker]
    if max(readers) > maker or node.op.subgraphs:
        return False
    output = node.outputs.index(root)
    return all((output, operand) in in_place(node) for operand in _operands(body, node, old))


def _operands(body: Graph, node: Node, old: Value) -> list[int]:
    """The operands of a node that are `old`, reshaped or not."""
    roots = (None if v is None else root_of(body, v) for v in node.inputs)
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

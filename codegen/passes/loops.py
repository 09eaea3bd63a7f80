"""Values that loops carry unchanged, and results that a body may write in place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

from smelt.ir import Graph, Node, Value
from smelt.ops.control.repeated_graph import RepeatedGraph

InPlacePairs = Callable[[Node], Sequence[tuple[int, int]]]
"""Returns the `(output, input)` pairs of a node that may share one address in its kernel."""


def unchanged_values(loop: RepeatedGraph) -> frozenset[int]:
    """Return the indices of the carried values that the loop does not change."""
    return frozenset(
        k
        for k in range(len(loop.carried))
        if root_of(loop.body, loop.results[k]) is loop.entries[k]
    )


def written_early(loop: RepeatedGraph, in_place: InPlacePairs) -> dict[Value, int]:
    """Return the values of the body that may be written directly to their result's buffer.

    The mapping is from a value, which a node of the body computes, to the index of its result. A
    stacked result always qualifies. A carried result qualifies if no later node reads the old
    carried value. The node that computes the result may read the old value itself if its kernel
    works in place.
    """
    early: dict[Value, int] = {}
    for k, value in enumerate(loop.results):
        root = root_of(loop.body, value)
        if root in early or root not in loop.body.producer:
            continue
        if k >= len(loop.carried) or _is_free(loop.body, loop.entries[k], root, in_place):
            early[root] = k
    return early


def _is_free(body: Graph, old: Value, root: Value, in_place: InPlacePairs) -> bool:
    """Return whether `root` may overwrite `old`, the carried value that it replaces."""
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
    """Return the indices of the node's operands that are `old` or a reshape of it."""
    roots = (None if v is None else root_of(body, v) for v in node.inputs)
    return [index for index, root in enumerate(roots) if root is old]


def root_of(graph: Graph, value: Value) -> Value:
    """Return the value at the start of a chain of views; if it is no view, the value itself."""
    while value in graph.producer and graph.producer[value].op.is_view:
        value = graph.producer[value].input(0)
    return value


def is_read(graph: Graph, value: Value) -> bool:
    """Return whether a node reads a value or the graph returns it."""
    return value in graph.results or any(value in node.inputs for node in graph.nodes)


PlaceT = TypeVar("PlaceT", bound=Hashable)


def in_safe_order(
    sources: Mapping[PlaceT, PlaceT], save: Callable[[PlaceT], PlaceT]
) -> Iterator[tuple[PlaceT, PlaceT]]:
    """Order copies that must behave as if they all happened at once.

    `sources` gives the source of each target. A copy is emitted when no other copy still reads its
    target. To break a cycle, one value is first saved to the place that `save` returns.

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
            kept = save(target)
            yield target, kept
            waiting = {to: kept if source == target else source for to, source in waiting.items()}

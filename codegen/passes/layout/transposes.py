"""Layout search that leaves transpositions that move the fewest bytes.

Every value may be stored with its axes in another order than the graph's, and every node may take
one of several layouts (`layout_choices`). A transposition is needed where a node reads an operand
in another layout than the one in which it was written. The graph's own transpositions become
requests of their users for another layout. A run-time length must be the outermost axis in memory:
any other layout costs more than all transpositions together.

The search grows a region of nodes from a transposition. Each node gets the layouts that its
neighbor's new layouts suggest. A minimum cut then selects the nodes that should change ("expansion
move": Boykov, Veksler and Zabih, "Fast approximate energy minimization via graph cuts", 2001).
Every accepted move saves bytes, so that the search terminates.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from smelt.codegen.passes.cleanup.dead_nodes import drop_dead_nodes, drop_identities
from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.layout.axis_order import Key, Layout, is_outermost, rows_first
from smelt.codegen.passes.layout.layout_choices import (
    NodeLayout,
    layouts_for_operand,
    layouts_for_result,
    natural_layouts,
)
from smelt.codegen.passes.layout.min_cut import UNCUTTABLE, CutProblem
from smelt.codegen.passes.layout.relayout import relay_out
from smelt.codegen.passes.run_time_rows import is_in_place
from smelt.ir import Graph, Node, Value
from smelt.ops.run_time_lengths import Marks, find_marks
from smelt.ops.tensor.transpose import Transpose

Use = tuple[Node | None, int]
"""A use of a value: the node and the operand's index. The node is None for a graph result."""


def cancel_transposes(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Choose layouts for all nodes so that the remaining transpositions move the fewest bytes.

    Inputs, results and states of the graph keep their layouts. Transpositions that move nothing
    become reshapes, and transpositions of constants are computed.
    """
    while True:
        search = _LayoutSearch(graph)
        search.run()
        # Now that transpositions are shared, moves may pay that did not before.
        cheaper = drop_dead_nodes(drop_identities(relay_out(graph, search.layouts)))
        if _cost(cheaper) >= _cost(graph):
            return graph
        graph = cheaper


def _cost(graph: Graph) -> tuple[int, int]:
    """Return how many nodes lack contiguous rows, and the bytes that transpositions move."""
    marks = find_marks(graph)
    wrong = 0
    for node in graph.nodes:
        found = [marks[v] for v in (*node.inputs, *node.outputs) if v is not None and v in marks]
        wrong += any(mark.outer > 1 for mark in found) and not _is_anywhere(node, marks)
    return wrong, sum(n.output.type.bytes for n in graph.nodes if isinstance(n.op, Transpose))


def _is_anywhere(node: Node, marks: Marks) -> bool:
    """Return whether the node accepts a length on any axis in memory."""
    return isinstance(node.op, Transpose) or is_in_place(node, marks)


@dataclass(frozen=True)
class _Demand:
    """The users that want a value in a layout.

    Attributes:
        before: Users that want it only while they keep their layouts.
        after: Users that want it only after they change their layouts.
        always: Whether some user wants it in both cases.
    """

    before: tuple[Node, ...]
    after: tuple[Node, ...]
    always: bool


class _LayoutSearch:
    """The layouts of a graph's nodes, improved one region at a time."""

    def __init__(self, graph: Graph) -> None:
        self.layouts = {node: natural_layouts(node) for node in graph.nodes}
        self._producer: dict[Value, tuple[Node, int]] = {}
        self._uses: dict[Value, list[Use]] = {}
        for node in graph.nodes:
            self._producer |= {value: (node, i) for i, value in enumerate(node.outputs)}
            for i, operand in enumerate(node.inputs):
                if operand is not None and not operand.is_constant:
                    self._uses.setdefault(operand, []).append((node, i))
        for value in graph.results:
            self._uses.setdefault(value, []).append((None, 0))
        self._marks = find_marks(graph)
        self._wrong = 1 + sum(value.type.bytes for value in self._uses) * len(graph.nodes)

    def run(self) -> None:
        """Make moves until none saves anything."""
        improved = True
        while improved:
            improved = False
            for value in self._uses:
                while any(map(self._improve, list(self._seeds(value)))):
                    improved = True

    def _uses_of(self, value: Value) -> Sequence[Use]:
        return self._uses.get(value, ())  # a node may have outputs without users

    def _supply(self, value: Value, layouts: Mapping[Node, NodeLayout]) -> Layout:
        """Return the layout of a value; `layouts` overrides the current layouts of its producer."""
        if value not in self._producer:
            return Layout.natural(value.type.shape)
        node, index = self._producer[value]
        return layouts.get(node, self.layouts[node]).outputs[index]

    def _penalty(self, node: Node, layouts: NodeLayout) -> int:
        """Return the cost of a node whose rows are not contiguous: more than all transpositions."""
        pairs = (
            *zip(node.inputs, layouts.inputs, strict=True),
            *zip(node.outputs, layouts.outputs, strict=True),
        )
        marked = [(self._marks[v], at) for v, at in pairs if v is not None and v in self._marks]
        wrong = any(not is_outermost(mark, at) for mark, at in marked if at is not None)
        return self._wrong if wrong and not _is_anywhere(node, self._marks) else 0

    def _want(self, value: Value, use: Use, layouts: Mapping[Node, NodeLayout]) -> Layout:
        """Return the layout in which a user reads a value."""
        node, index = use
        layout = None if node is None else layouts.get(node, self.layouts[node]).inputs[index]
        return layout or Layout.natural(value.type.shape)

    def _seeds(self, value: Value) -> Iterator[dict[Node, NodeLayout]]:
        """Yield changes of one node that give a value the layout that one of its users wants."""
        supply = self._supply(value, {})
        if value in self._marks:
            yield from self._straightened(value)
        for use in self._uses_of(value):
            want = self._want(value, use, {})
            if want.key == supply.key:
                continue
            yield from self._forward(use, supply)
            yield from self._backward(value, want)

    def _straightened(self, value: Value) -> Iterator[dict[Node, NodeLayout]]:
        """Yield changes of one node that make rows contiguous for nodes that lack it."""
        layout = rows_first(self._marks[value], value.type.shape)
        if value in self._producer:
            node, _ = self._producer[value]
            if self._penalty(node, self.layouts[node]):
                yield from self._backward(value, layout)
        for node, index in self._uses_of(value):
            if node is not None and self._penalty(node, self.layouts[node]):
                yield from self._forward((node, index), layout)

    def _forward(self, use: Use, layout: Layout) -> Iterator[dict[Node, NodeLayout]]:
        """Yield layouts with which a user reads its operand in this one, if there are any."""
        node, index = use
        if node is None:
            return
        layouts = layouts_for_operand(node, index, layout, self.layouts[node])
        if layouts is not None:
            yield {node: layouts}

    def _backward(self, value: Value, layout: Layout) -> Iterator[dict[Node, NodeLayout]]:
        """Yield layouts with which a producer writes its result in this one, if there are any."""
        if value not in self._producer:
            return
        node, index = self._producer[value]
        layouts = layouts_for_result(node, index, layout, self.layouts[node])
        if layouts is not None:
            yield {node: layouts}

    def _improve(self, seed: dict[Node, NodeLayout]) -> bool:
        """Change layouts in the region around a seed, and return whether that saved bytes."""
        region = self._grown(seed)
        values = {
            v
            for node in region
            for v in (*node.inputs, *node.outputs)
            if v is not None and not v.is_constant
        }
        chosen = self._cut(region, values)
        saved = sum(self._cost(v, {}) - self._cost(v, chosen) for v in values)
        saved += sum(
            self._penalty(n, self.layouts[n]) - self._penalty(n, chosen[n]) for n in chosen
        )
        if saved > 0:
            self.layouts |= chosen
        return saved > 0

    def _cost(self, value: Value, layouts: Mapping[Node, NodeLayout]) -> int:
        """Return the bytes moved to give every user a value in the layout that it wants."""
        wanted = {self._want(value, use, layouts).key for use in self._uses_of(value)}
        return len(wanted - {self._supply(value, layouts).key}) * value.type.bytes

    def _grown(self, seed: dict[Node, NodeLayout]) -> dict[Node, NodeLayout]:
        """Grow a region from the seed by nodes that could change layouts to agree with it."""
        region, pending = dict(seed), deque(seed)
        while pending:
            node = pending.popleft()
            for suggestion in self._suggestions(node, region[node]):
                new = suggestion.keys() - region.keys()
                region |= {neighbor: suggestion[neighbor] for neighbor in new}
                pending += new
        return region

    def _suggestions(self, node: Node, layouts: NodeLayout) -> Iterator[dict[Node, NodeLayout]]:
        for value, layout in zip(node.inputs, layouts.inputs, strict=True):
            if not value or not layout or value.is_constant:
                continue
            if layout.key != self._supply(value, {}).key:
                yield from self._backward(value, layout)
        for value, layout in zip(node.outputs, layouts.outputs, strict=True):
            for use in self._uses_of(value):
                if layout.key != self._want(value, use, {}).key:
                    yield from self._forward(use, layout)

    def _cut(self, region: dict[Node, NodeLayout], values: set[Value]) -> dict[Node, NodeLayout]:
        """Return the part of a region that should take its new layouts.

        The cost of the cut is an upper bound of the bytes that are moved; it is exact if nothing
        changes.
        """
        problem = CutProblem()
        vertices = {node: problem.vertex() for node in region}
        for node, vertex in vertices.items() if self._marks else ():
            problem.edge(vertex, problem.SINK, self._penalty(node, self.layouts[node]))
            problem.edge(problem.SOURCE, vertex, self._penalty(node, region[node]))
        for value in values:
            producer = self._producer[value][0] if value in self._producer else None
            vertex = None if producer is None else vertices.get(producer)
            now, then = self._supply(value, {}).key, self._supply(value, region).key
            for wanted, demand in self._demands(value, region).items():
                charge = _Charge(problem, vertices, value.type.bytes)
                if wanted == now and wanted != then and vertex is not None:
                    charge.if_changed(vertex, demand)
                elif wanted == then and wanted != now and vertex is not None:
                    charge.if_kept(vertex, demand)
                elif wanted not in (now, then) and not demand.always:
                    charge.whenever(demand)
        changed = problem.sink_side()
        return {node: region[node] for node, vertex in vertices.items() if vertex in changed}

    def _demands(self, value: Value, region: dict[Node, NodeLayout]) -> dict[Key, _Demand]:
        found: dict[Key, tuple[set[Node | None], set[Node | None]]]
        found = defaultdict(lambda: (set(), set()))
        for use in self._uses_of(value):
            found[self._want(value, use, {}).key][0].add(use[0])
            found[self._want(value, use, region).key][1].add(use[0])
        return {
            key: _Demand(
                tuple(node for node in before if node is not None and node not in after),
                tuple(node for node in after if node is not None and node not in before),
                always=bool(before & after),
            )
            for key, (before, after) in found.items()
        }


@dataclass(frozen=True)
class _Charge:
    """Adds the cost of one transposition, shared by all users that want it, to a cut problem.

    Nodes on the source side keep their layouts; nodes on the sink side change them.
    """

    problem: CutProblem
    vertices: dict[Node, int]
    cost: int

    def if_changed(self, producer: int, demand: _Demand) -> None:
        """Charge if the producer changes: the value has the wanted layout only before."""
        if demand.always:
            self.problem.edge(self.problem.SOURCE, producer, self.cost)
            return
        if demand.before:
            self.problem.edge(self._any_keeps(demand.before), producer, self.cost)
        for node in demand.after:
            self.problem.edge(self.problem.SOURCE, self.vertices[node], self.cost)

    def if_kept(self, producer: int, demand: _Demand) -> None:
        """Charge if the producer keeps its layouts: the value has the wanted layout only after."""
        if demand.always:
            self.problem.edge(producer, self.problem.SINK, self.cost)
            return
        if demand.before:
            self.problem.edge(self._any_keeps(demand.before), self.problem.SINK, self.cost)
        if demand.after:
            self.problem.edge(producer, self._any_changes(demand.after), self.cost)

    def whenever(self, demand: _Demand) -> None:
        """Charge in both cases: the value never has the wanted layout."""
        if demand.before:
            self.problem.edge(self._any_keeps(demand.before), self.problem.SINK, self.cost)
        if demand.after:
            self.problem.edge(self.problem.SOURCE, self._any_changes(demand.after), self.cost)

    def _any_keeps(self, nodes: tuple[Node, ...]) -> int:
        """Return a vertex that is on the source side if any of the nodes is."""
        vertex = self.problem.vertex()
        for node in nodes:
            self.problem.edge(self.vertices[node], vertex, UNCUTTABLE)
        return vertex

    def _any_changes(self, nodes: tuple[Node, ...]) -> int:
        """Return a vertex that is on the sink side if any of the nodes is."""
        vertex = self.problem.vertex()
        for node in nodes:
            self.problem.edge(vertex, self.vertices[node], UNCUTTABLE)
        return vertex

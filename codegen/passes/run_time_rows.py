"""Nodes that the generated code computes row by row because their row count is a run-time length.

The length must be the outermost dimension in memory, and the operator must compute each row
independently. A kernel is then generated for a few rows and called in a loop. Operators that depend
on the length itself take it as an operand instead: see `smelt.codegen.passes.run_time_lengths`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.run_time_lengths import with_length_operand
from smelt.ir import Graph, Length, Node, Rewrite, Value
from smelt.ops.control.run_time_length import LengthOf, TransposeLength
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.run_time_lengths import Mark, Marks, find_marks, node_at, picks_rows, refuse, type_at
from smelt.ops.tensor.gather import Gather

_BLOCK = 4
"""Largest number of rows that a matrix product computes at once."""


@dataclass(frozen=True)
class Rows:
    """A node that is computed `at_once` rows at a time.

    Attributes:
        length: The dimension that gives the number of rows.
        at_once: Rows per call of the kernel.
        node: The node for `at_once` rows.
        marks: The axis of the length in each value.
    """

    length: Length
    at_once: int
    node: Node
    marks: Marks

    def elements(self, value: Value) -> int | None:
        """Return the number of elements in one row of a value, or None if it has no rows."""
        mark = self.marks.get(value)
        return None if mark is None else value.type.size // mark.length.maximum

    def have_equal_rows(self, source: Value, target: Value) -> bool:
        """Return whether rows of both values have equally many bytes, so that they may overlap."""
        count = self.elements(source)
        return count is not None and (
            count * source.type.dtype.size == (self.elements(target) or 0) * target.type.dtype.size
        )


def bind_lengths(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Give length operands to operators that need them, and check that each node can be compiled.

    Raises:
        UnsupportedError: An operator needs all rows at once, or its rows are not contiguous.
    """
    if not graph.lengths:
        return graph
    marks = find_marks(graph)
    bound = _shared(graph.rewrite(lambda node: with_length_operand(node, marks)))
    marks = find_marks(bound)
    from_lengths: set[Value] = set()
    for node in bound.nodes:
        computed = [v for v in node.inputs if v is not None and not v.is_constant]
        if isinstance(node.op, LengthOf) or (computed and from_lengths.issuperset(computed)):
            from_lengths.update(node.outputs)
        _require_rows(node, marks, from_lengths)
    return bound


def _shared(graph: Graph) -> Graph:
    """Return the graph with one `LengthOf` node for all users of the same length."""
    first: dict[LengthOf, Value] = {}

    def share(node: Node) -> Rewrite:
        if not isinstance(node.op, LengthOf):
            return None
        value = first.setdefault(node.op, node.output)
        return None if value is node.output else ((), (value,))

    return graph.rewrite(share)


def rows_of(graph: Graph) -> Callable[[Node], Rows | None]:
    """Return a function that gives the `Rows` of a node, or None if it is computed in one call."""
    marks = find_marks(graph)

    def find(node: Node) -> Rows | None:
        mark = next((marks[v] for v in node.outputs if v in marks), None)
        if mark is None or node.op.has_length_operand(node):
            return None
        at_once = _at_once(node, mark)
        sizes = {mark.length.name: at_once}
        operands = (v for v in (*node.inputs, *node.outputs) if v is not None and v in marks)
        values = {v: Value(v.name, type_at(v, marks, sizes)) for v in operands}
        return Rows(mark.length, at_once, node_at(node, values, sizes), marks)

    return find


def _at_once(node: Node, mark: Mark) -> int:
    """Return the rows per call: several for a matrix product, else 1.

    A matrix product may compute rows beyond the length: their results are never used.
    """
    if not isinstance(node.op, FullyConnected) or not node.input(1).is_constant:
        return 1
    return max(b for b in range(1, _BLOCK + 1) if mark.length.maximum % b == 0)


def _require_rows(node: Node, marks: Marks, from_lengths: AbstractSet[Value]) -> None:
    marked = [v for v in (*node.inputs, *node.outputs) if v is not None and v in marks]
    if not marked:
        return
    length = marks[marked[0]].length
    if isinstance(node.op, TransposeLength) or is_in_place(node, marks):
        return
    for value in marked:
        if marks[value].outer > 1:
            raise refuse(
                node, length, f"where it is not the outermost dimension of '{value.name}' in memory"
            )
    if picks_rows(node, marks):
        return
    if isinstance(node.op, Gather) and node.input(1) in from_lengths:
        return
    if not node.op.row_rule(node, _axes(node, marks)):
        raise refuse(
            node, length, "which computes each element from many elements along this dimension"
        )
    lost = [v for v in node.outputs if v not in marks]
    if lost and not node.op.has_length_operand(node):
        raise refuse(node, length, "which removes this dimension from its result")


def is_in_place(node: Node, marks: Marks) -> bool:
    """Return whether each element is computed only from the elements at its own address."""
    shape = node.outputs[0].type.shape
    return node.op.is_view or (
        node.op.elementwise
        and all(
            value.type.size == 1 or (value in marks and value.type.shape == shape)
            for value in node.inputs
            if value is not None
        )
    )


def _axes(node: Node, marks: Marks) -> list[int | None]:
    """Return the length's axis for each operand; None for an operand without rows."""
    found = [None if v is None else marks.get(v) for v in node.inputs]
    return [None if mark is None else mark.axis for mark in found]

"""Dimensions whose size is known at run time: where they go, and what a graph is at one size.

A graph's types have the largest sizes. `trace` follows each dimension through the operators by
their rules for shapes alone, `at_sizes` makes the graph of other sizes. What the generated code can
do is decided in `smelt.codegen.passes.run_time_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from smelt.errors import ConfigError, ModelError, UnsupportedError
from smelt.ir import (
    Array,
    Evaluation,
    Graph,
    Length,
    Node,
    Op,
    Shape,
    TensorType,
    Value,
    evaluate,
    verify,
)
from smelt.ops.control.run_time_length import LengthOf
from smelt.ops.tensor.gather import Gather
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.slice import Slice


@dataclass(frozen=True)
class Mark:
    """Where a dimension is in a tensor: `axis` has `factor` times its size.

    In memory, `outer` equal parts of the tensor hold all of the dimension each: 1 if it is the
    outermost.
    """

    length: Length
    axis: int
    factor: int
    outer: int

    def resize(self, type_: TensorType, size: int) -> TensorType:
        """The tensor's type where the dimension has another size."""
        shape = list(type_.shape)
        shape[self.axis] = self.factor * size
        return type_.with_shape(tuple(shape))


Marks = Mapping[Value, Mark]
"""The values that have such a dimension."""


def trace(graph: Graph) -> Marks:
    """Every value that has one of the graph's lengths in its shape.

    Raises:
        UnsupportedError: an operator's result does not follow the size, or has it twice.
    """
    marks: dict[Value, Mark] = {}
    for length in graph.lengths:
        for index, axis in length.axes:
            value = graph.inputs[index]
            if value in marks:
                raise UnsupportedError(
                    f"input '{value.name}' has two dimensions of sizes known at run time, "
                    f"'{marks[value].length.name}' and '{length.name}': {remedy(length)}"
                )
            marks[value] = Mark(length, axis, 1, prod(value.type.shape[:axis]))
    for node in graph.nodes if graph.lengths else ():
        marks |= _results(node, marks)
    return marks


def refuse(node: Node, length: Length, reason: str) -> UnsupportedError:
    """The error for a node that a length cannot pass."""
    return UnsupportedError(
        f"the size of dimension '{length.name}' cannot be left to run time: it reaches "
        f"{node.op.name} of {node.origin}, {reason}; {remedy(length)}"
    )


def remedy(length: Length) -> str:
    """What the user can do about a length that the graph does not allow."""
    return f"fix it with --dim {length.name}={length.maximum}"


def _results(node: Node, marks: Marks) -> dict[Value, Mark]:
    found = [marks[v] for v in node.inputs if v is not None and v in marks]
    if not found:
        return {}
    mark = found[0]
    length = mark.length
    if any(other.length is not length for other in found):
        raise refuse(node, length, f"where it meets dimension '{found[-1].length.name}'")
    if isinstance(node.op, Reshape):
        return {node.output: _reshaped(node, mark)}
    if isinstance(node.op, Gather | Slice) and picks_rows(node, marks):
        _require_picked(node, mark)
        return {}
    sizes = {length.name: 2 * length.maximum}
    operands = (v for v in node.inputs if v is not None and v in marks)
    probe = {v: Value(v.name, type_at(v, marks, sizes)) for v in operands}
    try:
        types = _op_at(node, probe).infer(
            [None if v is None else probe.get(v, v).type for v in node.inputs]
        )
    except (ModelError, UnsupportedError) as error:
        raise refuse(node, length, f"which needs its size: {error}") from error
    source = next(v for v in node.inputs if v is not None and v in marks)
    woven = mark.outer // prod(source.type.shape[: mark.axis])
    results: dict[Value, Mark] = {}
    for value, new in zip(node.outputs, types, strict=True):
        shape = value.type.shape
        axes = [i for i, pair in enumerate(zip(shape, new.shape, strict=False)) if len({*pair}) > 1]
        if not axes:
            continue
        if len(axes) > 1 or 2 * shape[axes[0]] != new.shape[axes[0]]:
            raise refuse(node, length, f"whose result {value.type} grows in another way")
        (axis,) = axes
        factor = shape[axis] // length.maximum
        results[value] = Mark(length, axis, factor, woven * prod(shape[:axis]))
    return results


def picks_rows(node: Node, marks: Marks) -> bool:
    """Whether the node takes a fixed number of elements along its first operand's length."""
    x = node.inputs[0]
    mark = None if x is None else marks.get(x)
    if (
        x is None
        or mark is None
        or (mark.factor, mark.outer) != (1, prod(x.type.shape[: mark.axis]))
    ):
        return False
    match node.op:
        case Gather(axis, 0):
            return axis == mark.axis and node.input(1).is_constant
        case Slice(sizes=sizes, steps=steps):
            return sizes[mark.axis] != mark.length.maximum and steps[mark.axis] == 1
        case _:
            return False


def _require_picked(node: Node, mark: Mark) -> None:
    """Check that the first elements are meant, or the last: those that every size has."""
    length = mark.length
    match node.op:
        case Slice(starts=starts, sizes=sizes):
            start, size = starts[mark.axis], sizes[mark.axis]
            inside = start + size <= length.minimum or from_end(node.op, mark)
        case _:
            where = node.input(1).array
            inside = not where.size or 0 <= where.min() <= where.max() < length.minimum
    if not inside:
        raise refuse(
            node,
            length,
            f"which takes elements that size {length.minimum} does not have (a greater least size "
            "may help)",
        )


def from_end(op: Slice, mark: Mark) -> bool:
    """Whether a slice takes the last elements along a length."""
    start, size = op.starts[mark.axis], op.sizes[mark.axis]
    return start + size == mark.length.maximum and size <= mark.length.minimum


def _reshaped(node: Node, mark: Mark) -> Mark:
    """The axis that holds the dimension after a reshape."""
    shape, size = node.output.type.shape, mark.length.maximum
    for axis, count in enumerate(shape):
        before = prod(shape[:axis])
        if mark.outer % before == 0 and count % (mark.outer // before * size) == 0:
            return replace(mark, axis=axis, factor=count // size)
    raise refuse(node, mark.length, f"which splits it: {node.input(0).type} to {list(shape)}")


def type_at(value: Value, marks: Marks, sizes: Mapping[str, int]) -> TensorType:
    """A value's type where lengths have other sizes, by their names."""
    mark = marks.get(value)
    return value.type if mark is None else mark.resize(value.type, sizes[mark.length.name])


def node_at(node: Node, values: Mapping[Value, Value], sizes: Mapping[str, int]) -> Node:
    """A node over the values that stand for its own where lengths have other sizes."""
    op = _op_at(node, values)
    if isinstance(op, LengthOf):
        op = replace(op, size=sizes[op.length])
    inputs = tuple(None if v is None else values.get(v, v) for v in node.inputs)
    return replace(
        node, op=op, inputs=inputs, outputs=tuple(values.get(v, v) for v in node.outputs)
    )


def _op_at(node: Node, values: Mapping[Value, Value]) -> Op:
    """The operator whose attributes fit the values that stand for the node's own."""
    match node.op:
        case Reshape() if node.output in values:
            return Reshape(values[node.output].type.shape)
        case Slice() as op:
            x = node.input(0)
            return _slice_at(op, x.type.shape, values.get(x, x).type.shape)
        case op:
            return op


def _slice_at(op: Slice, old: Shape, new: Shape) -> Slice:
    """The slice of a tensor of another shape: all of an axis, the last of it, or as it was."""
    starts, sizes = list(op.starts), list(op.sizes)
    for axis, (before, after) in enumerate(zip(old, new, strict=True)):
        if before == after or op.steps[axis] != 1 or starts[axis] + sizes[axis] != before:
            continue
        if starts[axis]:
            starts[axis] = after - sizes[axis]
        else:
            sizes[axis] = after
    return replace(op, starts=tuple(starts), sizes=tuple(sizes))


def at_sizes(graph: Graph, sizes: Mapping[str, int]) -> tuple[Graph, Mapping[Value, Value]]:
    """The graph where its lengths have these sizes, by name; and its values by the graph's own.

    Raises:
        ConfigError: a size is not in its range.
        UnsupportedError: an operator's result does not follow the size.
    """
    for length in graph.lengths:
        size = sizes[length.name]
        if not length.minimum <= size <= length.maximum:
            raise ConfigError(
                f"dimension '{length.name}' of '{graph.name}' is from {length.minimum} to "
                f"{length.maximum}; got {size}"
            )
    marks = trace(graph)
    values = {v: Value(v.name, type_at(v, marks, sizes)) for v in marks}
    nodes = tuple(node_at(node, values, sizes) for node in graph.nodes)
    made = Graph(
        graph.name,
        tuple(values.get(v, v) for v in graph.inputs),
        tuple(values.get(v, v) for v in graph.outputs),
        nodes,
        graph.states,
    )
    return verify(made, f"taking sizes {dict(sizes)}"), values


def sizes_of(graph: Graph, inputs: Sequence[Array]) -> dict[str, int]:
    """The sizes of the graph's lengths in a sample, by name.

    Raises:
        ConfigError: inputs disagree, or a size is not in its range.
    """
    sizes: dict[str, int] = {}
    for length in graph.lengths:
        found = {inputs[index].shape[axis] for index, axis in length.axes}
        if len(found) > 1:
            raise ConfigError(
                f"dimension '{length.name}' of '{graph.name}' has sizes {sorted(found)} in inputs"
            )
        sizes[length.name] = found.pop()
        if not length.minimum <= sizes[length.name] <= length.maximum:
            raise ConfigError(
                f"dimension '{length.name}' of '{graph.name}' is from {length.minimum} to "
                f"{length.maximum}; the inputs have {sizes[length.name]}"
            )
    return sizes


def padded(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The inputs as the device takes them: of the largest size, zero beyond their own."""
    return [
        np.concatenate([x.ravel(), np.zeros(v.type.size - x.size, x.dtype)]).reshape(v.type.shape)
        for v, x in zip(graph.inputs, inputs, strict=True)
    ]


def cut(value: Value, array: Array, marks: Marks, sizes: Mapping[str, int]) -> Array:
    """What the device gives for a value, without what is beyond the sizes."""
    type_ = type_at(value, marks, sizes)
    return array.ravel()[: type_.size].reshape(type_.shape)


def evaluate_at_size(
    graph: Graph, inputs: Sequence[Array], states: Sequence[Array] | None = None
) -> Evaluation:
    """`evaluate` with the sizes that the inputs have; `values` are by the graph's own values.

    Raises:
        ConfigError: an input does not fit.
    """
    if not graph.lengths:
        return evaluate(graph, inputs, states)
    sized, values = at_sizes(graph, sizes_of(graph, inputs))
    found = evaluate(sized, inputs, states)
    arrays = {v: found.values[values.get(v, v)] for v in graph.values()}
    return replace(found, values=arrays)

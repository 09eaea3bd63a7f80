"""Propagates run-time lengths through a graph, and makes the graph for given sizes.

A length is a dimension with a size that is known only at run time. A graph's types have the
largest sizes. `find_marks` finds the axes that each length has in every value, using only the
operators' shape inference. `at_sizes` makes the graph for other sizes. Which of these graphs can be
compiled is decided in `smelt.codegen.passes.run_time_rows`.
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
    """The axis of a tensor that depends on a length: `axis` has `factor` times the length's size.

    `outer` is the number of equal, contiguous parts of the tensor that each contain the whole
    length; it is 1 if the length is the outermost dimension in memory.
    """

    length: Length
    axis: int
    factor: int
    outer: int

    def resize(self, type_: TensorType, size: int) -> TensorType:
        """Return the tensor's type if the length has another size."""
        shape = list(type_.shape)
        shape[self.axis] = self.factor * size
        return type_.with_shape(tuple(shape))


Marks = Mapping[Value, Mark]
"""The values with an axis that depends on a length."""


def find_marks(graph: Graph) -> Marks:
    """Return a mark for every value with a shape that depends on one of the graph's lengths.

    Raises:
        UnsupportedError: an operator's result does not scale with the length, or depends on it
            along two axes.
    """
    marks: dict[Value, Mark] = {}
    for length in graph.lengths:
        for index, axis in length.axes:
            value = graph.inputs[index]
            if value in marks:
                raise UnsupportedError(
                    f"input '{value.name}' has two dimensions with sizes known only at run time, "
                    f"'{marks[value].length.name}' and '{length.name}': {remedy(length)}"
                )
            marks[value] = Mark(length, axis, 1, prod(value.type.shape[:axis]))
    for node in graph.nodes if graph.lengths else ():
        marks |= _results(node, marks)
    return marks


def refuse(node: Node, length: Length, reason: str) -> UnsupportedError:
    """Return the error for a node through which a length cannot be propagated."""
    return UnsupportedError(
        f"dimension '{length.name}' cannot have a size known only at run time: it is used by "
        f"{node.op.name} of {node.origin}, {reason}; {remedy(length)}"
    )


def remedy(length: Length) -> str:
    """Return what the user can do about a length that the graph does not allow."""
    return f"fix it with --dim {length.name}={length.maximum}"


def _results(node: Node, marks: Marks) -> dict[Value, Mark]:
    found = [marks[v] for v in node.inputs if v is not None and v in marks]
    if not found:
        return {}
    mark = found[0]
    length = mark.length
    if any(other.length is not length for other in found):
        raise refuse(node, length, f"together with dimension '{found[-1].length.name}'")
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
        raise refuse(node, length, f"which needs a fixed size: {error}") from error
    source = next(v for v in node.inputs if v is not None and v in marks)
    woven = mark.outer // prod(source.type.shape[: mark.axis])
    results: dict[Value, Mark] = {}
    for value, new in zip(node.outputs, types, strict=True):
        shape = value.type.shape
        axes = [i for i, pair in enumerate(zip(shape, new.shape, strict=False)) if len({*pair}) > 1]
        if not axes:
            continue
        if len(axes) > 1 or 2 * shape[axes[0]] != new.shape[axes[0]]:
            raise refuse(
                node, length, f"whose result {value.type} is not proportional to the dimension"
            )
        (axis,) = axes
        factor = shape[axis] // length.maximum
        results[value] = Mark(length, axis, factor, woven * prod(shape[:axis]))
    return results


def picks_rows(node: Node, marks: Marks) -> bool:
    """Return whether the node takes a fixed number of elements along its operand's length."""
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
    """Check that the node takes elements that exist at every size: the first ones or the last."""
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
            f"which takes elements that do not exist if the size is {length.minimum} (a larger "
            "minimum may help)",
        )


def from_end(op: Slice, mark: Mark) -> bool:
    """Return whether a slice takes the last elements along a length."""
    start, size = op.starts[mark.axis], op.sizes[mark.axis]
    return start + size == mark.length.maximum and size <= mark.length.minimum


def _reshaped(node: Node, mark: Mark) -> Mark:
    """Return the mark of a reshape's result."""
    shape, size = node.output.type.shape, mark.length.maximum
    for axis, count in enumerate(shape):
        before = prod(shape[:axis])
        if mark.outer % before == 0 and count % (mark.outer // before * size) == 0:
            return replace(mark, axis=axis, factor=count // size)
    raise refuse(
        node,
        mark.length,
        f"which splits the dimension: {list(node.input(0).type.shape)} to {list(shape)}",
    )


def type_at(value: Value, marks: Marks, sizes: Mapping[str, int]) -> TensorType:
    """Return a value's type if lengths have the given sizes, by their names."""
    mark = marks.get(value)
    return value.type if mark is None else mark.resize(value.type, sizes[mark.length.name])


def node_at(node: Node, values: Mapping[Value, Value], sizes: Mapping[str, int]) -> Node:
    """Return the node for lengths of other sizes; `values` maps its values to resized ones."""
    op = _op_at(node, values)
    if isinstance(op, LengthOf):
        op = replace(op, size=sizes[op.length])
    inputs = tuple(None if v is None else values.get(v, v) for v in node.inputs)
    return replace(
        node, op=op, inputs=inputs, outputs=tuple(values.get(v, v) for v in node.outputs)
    )


def _op_at(node: Node, values: Mapping[Value, Value]) -> Op:
    """Return the node's operator with attributes that fit the resized values."""
    match node.op:
        case Reshape() if node.output in values:
            return Reshape(values[node.output].type.shape)
        case Slice() as op:
            x = node.input(0)
            return _slice_at(op, x.type.shape, values.get(x, x).type.shape)
        case op:
            return op


def _slice_at(op: Slice, old: Shape, new: Shape) -> Slice:
    """Return a slice for a tensor of another shape.

    Along an axis with another size, it takes everything or the last elements if it did so before.
    """
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
    """Return the graph for lengths of the given sizes, and a map from old to new values.

    Args:
        graph: a graph with lengths.
        sizes: a size for each length, by name.

    Raises:
        ConfigError: a size is outside of its range.
        UnsupportedError: an operator's result does not scale with a length.
    """
    for length in graph.lengths:
        size = sizes[length.name]
        if not length.minimum <= size <= length.maximum:
            raise ConfigError(
                f"dimension '{length.name}' of '{graph.name}' is from {length.minimum} to "
                f"{length.maximum}; got {size}"
            )
    marks = find_marks(graph)
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
    """Return the sizes of the graph's lengths in a sample, by name.

    Raises:
        ConfigError: inputs disagree, or a size is outside of its range.
    """
    sizes: dict[str, int] = {}
    for length in graph.lengths:
        found = {inputs[index].shape[axis] for index, axis in length.axes}
        if len(found) > 1:
            raise ConfigError(
                f"dimension '{length.name}' of '{graph.name}' has different sizes in the inputs: "
                f"{sorted(found)}"
            )
        sizes[length.name] = found.pop()
        if not length.minimum <= sizes[length.name] <= length.maximum:
            raise ConfigError(
                f"dimension '{length.name}' of '{graph.name}' is from {length.minimum} to "
                f"{length.maximum}; the inputs have {sizes[length.name]}"
            )
    return sizes


def padded(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Return the inputs as the device takes them: of the largest size, padded with zeros."""
    return [
        np.concatenate([x.ravel(), np.zeros(v.type.size - x.size, x.dtype)]).reshape(v.type.shape)
        for v, x in zip(graph.inputs, inputs, strict=True)
    ]


def cut(value: Value, array: Array, marks: Marks, sizes: Mapping[str, int]) -> Array:
    """Return a value that the device computed, without the elements beyond the given sizes."""
    type_ = type_at(value, marks, sizes)
    return array.ravel()[: type_.size].reshape(type_.shape)


def evaluate_at_size(
    graph: Graph, inputs: Sequence[Array], states: Sequence[Array] | None = None
) -> Evaluation:
    """Run `evaluate` for the sizes that the inputs have; keys of `values` are the graph's own.

    Raises:
        ConfigError: an input has the wrong shape or element type.
    """
    if not graph.lengths:
        return evaluate(graph, inputs, states)
    sized, values = at_sizes(graph, sizes_of(graph, inputs))
    found = evaluate(sized, inputs, states)
    arrays = {v: found.values[values.get(v, v)] for v in graph.values()}
    return replace(found, values=arrays)

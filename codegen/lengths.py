"""Dimensions whose size is known at run time: where they go, and what a graph is at one size.

A graph's types have the largest sizes. `trace` follows each dimension through the operators by
their rules for shapes alone, `at_sizes` makes the graph of other sizes. What the generated code can
do is decided in `smelt.codegen.rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from smelt.errors import ConfigError, ModelError, UnsupportedError
from smelt.ir import Array, Evaluation, Graph, Length, Node, Op, TensorType, Value, evaluate, verify
from smelt.ir.text import print_graph
from smelt.ops.length import LengthOf
from smelt.ops.reshape import Reshape
from smelt.ops.slice import Slice


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


def with_lengths(graph: Graph, *lengths: Length) -> Graph:
    """The graph with dimensions of its inputs known at run time only.

    Args:
        graph: verified; its types have the largest sizes.
        lengths: each names its minimum, its maximum, and where it is in the inputs.

    Raises:
        UnsupportedError: an operator cannot take a size at run time; says which, and the remedy.
    """
    found = verify(replace(graph, lengths=lengths), "naming lengths")
    trace(found)
    return found


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
                    f"'{marks[value].length.name}' and '{length.name}': {_remedy(length)}"
                )
            marks[value] = Mark(length, axis, 1, prod(value.type.shape[:axis]))
    for node in graph.nodes if graph.lengths else ():
        marks |= _results(node, marks)
    return marks


def refuse(node: Node, length: Length, reason: str) -> UnsupportedError:
    """The error for a node that a length cannot pass."""
    return UnsupportedError(
        f"the size of dimension '{length.name}' cannot be left to run time: it reaches "
        f"{node.op.name} of {node.origin}, {reason}; {_remedy(length)}"
    )


def _remedy(length: Length) -> str:
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
        case Slice(starts, sizes, steps) as op:
            x = node.input(0)
            old, new = x.type.shape, values.get(x, x).type.shape
            whole = [
                (start, size, step) == (0, count, 1)
                for start, size, step, count in zip(starts, sizes, steps, old, strict=True)
            ]
            fitting = zip(whole, sizes, new, strict=True)
            return replace(op, sizes=tuple(n if all_ else size for all_, size, n in fitting))
        case op:
            return op


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


def require_same(graph: Graph, probe: Graph) -> None:
    """Check that a graph at other sizes is what was imported at these sizes.

    What a file computes from a size (a mean's divisor, a table of positions) is constant in a
    graph, of the largest size, and would be wrong at another.

    Args:
        graph: of the largest sizes, as imported.
        probe: the same file imported at other sizes.

    Raises:
        UnsupportedError: they differ.
    """
    sizes = {
        length.name: probe.inputs[length.axes[0][0]].type.shape[length.axes[0][1]]
        for length in graph.lengths
    }
    made, _ = at_sizes(graph, sizes)
    if print_graph(made) != print_graph(replace(probe, name=made.name, lengths=())):
        names = ", ".join(f"'{length.name}'" for length in graph.lengths)
        raise UnsupportedError(
            f"the size of dimension {names} cannot be left to run time: the network computes with "
            f"it; {_remedy(graph.lengths[0])}"
        )


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

"""Converters of If, Loop and Scan.

A loop that carries a sequence is unrolled, because sequences exist only at compile time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.onnx.operation import OnnxConverter, Operation, Results
from smelt.frontend.onnx.operators.shape import slice_along
from smelt.frontend.onnx.scope import OnnxValue
from smelt.ir import Array, DType, Graph, TensorType, Value
from smelt.ops.control.branches import If, Loop
from smelt.ops.control.repeated_graph import Order
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.reshape import Reshape

_ENDLESS = 2**31
"""Trip counts from this one on mean that only a condition ends the loop."""

_UNROLLED = 256
"""Largest number of iterations that may be unrolled."""

_NUMBER = TensorType((), DType.INT64)


def _if(operation: Operation) -> Results:
    """Convert If; with a constant condition, one of its graphs is converted in place."""
    condition, known = operation.value(0), operation.boolean(0, "condition")
    if known is not None:
        return operation.inline("then_branch" if known else "else_branch")
    branches = [_branch(operation, name, condition) for name in ("then_branch", "else_branch")]
    captures = tuple(dict.fromkeys(v for _, own in branches for v in own))
    then_graph, else_graph = (_taking(captures, graph, own) for graph, own in branches)
    ours, theirs = ([v.type for v in g.outputs] for g in (then_graph, else_graph))
    if ours != theirs:
        raise operation.refuse(
            f"its branches have results {_list(ours)} and {_list(theirs)}: which one runs is known "
            "only at run time, but a tensor must have one shape. "
            f"{_remedy(operation, condition)}"
        )
    return operation.emit_all(If(then_graph, else_graph), condition, *captures)


def _remedy(operation: Operation, condition: Value) -> str:
    """Return the remedy for a branch that cannot be compiled: a constant condition."""
    sources = operation.scope.sources(condition)
    # Switches and sample rates are integers with at most one axis; an image is never constant.
    named = [v.name for v in sources if not v.type.dtype.is_float and len(v.type.shape) < 2]
    if not named:
        return "Make the condition a constant"
    names, options = _joined(f"'{n}'" for n in named), _joined(f"--value {n}=…" for n in named)
    return f"If {names} never {'changes' if len(named) == 1 else 'change'}, give it with {options}"


def _joined(words: Iterable[str]) -> str:
    return " and ".join(words)


def _branch(operation: Operation, name: str, condition: Value) -> tuple[Graph, tuple[Value, ...]]:
    try:
        return operation.subgraph(name)
    except (ModelError, UnsupportedError) as error:
        raise type(error)(
            f"{operation}: its {name} cannot be compiled: {error}. {_remedy(operation, condition)}"
        ) from error


def _taking(wanted: Sequence[Value], graph: Graph, own: Sequence[Value]) -> Graph:
    """Return the graph with an input for each value of `wanted`; its own are for `own`."""
    inputs = dict(zip(own, graph.inputs, strict=True))
    unused = ((v, Value(f"{graph.name}:{v.name}", v.type)) for v in wanted if v not in inputs)
    inputs |= dict(unused)
    return replace(graph, inputs=tuple(inputs[v] for v in wanted))


def _loop(operation: Operation) -> Results:
    """Convert Loop. Trip count and condition may each be absent or constant.

    The body's input for the condition is always true when the body runs.
    """
    limit, condition = operation.optional(0), operation.optional(1)
    operands = tuple(operation.operand(index) for index in range(2, operation.count))
    carried = [value for value in operands if isinstance(value, Value)]
    trip_count, stated = None, 0
    if limit is not None and limit.data is not None:
        stated, limit = operation.whole_number(0, "trip count"), None
        trip_count = None if stated >= _ENDLESS else max(stated, 0)
    if condition is not None and condition.data is not None:
        if not operation.boolean(1, "condition"):
            trip_count, limit = 0, None
        condition = None
    if len(carried) < len(operands):
        return _unrolled(
            operation, trip_count, (limit, condition), operands, "it carries a sequence"
        )
    true = operation.literal(np.asarray(True))
    try:
        body, captures = operation.subgraph("body", [_NUMBER, true, *(v.type for v in carried)])
    except UnsupportedError:
        # If the iteration's number is constant, tensors in the body may have fixed shapes.
        if trip_count is None or trip_count > _UNROLLED:
            raise
        return _unrolled(operation, trip_count, (limit, condition), carried, _RESHAPED)
    more, *made = body.outputs
    decided = _constant(body, more)
    if trip_count is not None and _changes_shape(carried, made):
        return _unrolled(operation, trip_count, (limit, condition), carried, _RESHAPED)
    if _changes_shape(carried, made):
        raise operation.refuse(
            f"an iteration changes {_list([v.type for v in carried])} into "
            f"{_list([v.type for v in made[: len(carried)]])}, but what a loop carries must keep "
            "its shape and element type"
        )
    if decided is not None and not decided.all():
        trip_count, limit = 1 if trip_count is None else min(trip_count, 1), None
    stops = decided is None
    if stated >= _ENDLESS and trip_count is None and not stops:
        raise operation.refuse(
            f"its trip count is {stated:,}, and its body never ends it; at most {_ENDLESS - 1:,} "
            "iterations are supported"
        )
    if not stops:
        body = replace(body, outputs=tuple(made))
    stacks = (Order.FORWARD,) * (len(made) - len(carried))
    op = Loop(body, len(carried), trip_count, stops, stacks=stacks)
    return operation.emit_all(op, limit, condition, *carried, *captures)


def _changes_shape(carried: Sequence[Value], made: Sequence[Value]) -> bool:
    return any(old.type != new.type for old, new in zip(carried, made, strict=False))


_RESHAPED = "its iterations differ in shape"


def _unrolled(
    operation: Operation,
    trip_count: int | None,
    ends: tuple[Value | None, Value | None],
    carried: Sequence[OnnxValue],
    reason: str,
) -> Results:
    """Unroll the loop, so that what it carries may change its shape.

    It ends after the limit, or when the body's condition, which must be constant, is false.
    """
    if ends != (None, None):
        raise operation.refuse(
            f"{reason}, which is supported only if the number of iterations is known at compile "
            "time"
        )
    stacked: list[Sequence[OnnxValue]] = []
    for iteration in count():
        if iteration == trip_count:
            break
        if iteration == _UNROLLED:
            raise operation.refuse(
                f"{reason}, which is supported for at most {_UNROLLED} iterations"
                + ("" if trip_count is None else f", but it has {trip_count:,}")
            )
        number, true = operation.literal(np.asarray(iteration)), operation.literal(np.asarray(True))
        more, *made = operation.inline("body", [number, true, *carried])
        carried = made[: len(carried)]
        stacked.append(made[len(carried) :])
        again = _tensor(operation, more).data
        if again is None:
            raise operation.refuse(
                f"{reason}, which is not supported if its body decides at run time when it ends"
            )
        if not again.all():
            break
    return (*carried, *(_stacked(operation, slices) for slices in zip(*stacked, strict=True)))


def _tensor(operation: Operation, operand: OnnxValue) -> Value:
    if isinstance(operand, Value):
        return operand
    raise operation.wrong("its body returns a sequence where it must return a tensor")


def _stacked(operation: Operation, made: Sequence[OnnxValue]) -> Value:
    """Stack the tensors along a new axis 0."""
    slices = [_tensor(operation, operand) for operand in made]
    if len({v.type for v in slices}) > 1:
        raise operation.refuse(
            "the tensors that its iterations stack have different shapes, which is not supported"
        )
    rows = [operation.reshape(v, (1, *v.type.shape)) for v in slices]
    return operation.emit(Concat(0), *rows, quant=slices[0].type.quant)


def _constant(graph: Graph, value: Value) -> Array | None:
    """Return the array of a graph's output if it is constant, else None."""
    while value.data is None and value in graph.producer:
        node = graph.producer[value]
        if not isinstance(node.op, Reshape):
            return None
        value = node.input(0)
    return value.data


def _scan(operation: Operation) -> Results:
    """Convert Scan; in operator set 8 it has a batch, with elements that are scanned separately."""
    if operation.version < 9:
        return _scan_of_batch(operation)
    initial, operands = _scan_operands(operation, 0)
    axes = operation.integers("scan_input_axes", (0,) * len(operands))
    if len(axes) != len(operands):
        raise operation.wrong(f"'scan_input_axes' has {len(axes)} elements, not {len(operands)}")
    operands = [_axis_first(operation, v, axis) for v, axis in zip(operands, axes, strict=True)]
    results = _scanned(operation, initial, operands, "scan_input_directions")
    carried = len(initial)
    axes = operation.integers("scan_output_axes", (0,) * (len(results) - carried))
    if len(axes) != len(results) - carried:
        raise operation.wrong(
            f"'scan_output_axes' has {len(axes)} elements, not {len(results) - carried}"
        )
    return (
        *results[:carried],
        *(_axis_back(operation, v, a) for v, a in zip(results[carried:], axes, strict=True)),
    )


def _scan_of_batch(operation: Operation) -> Results:
    if operation.has_operand(0):
        raise operation.refuse(
            "sequences of different lengths in a batch (sequence_lens) are not supported"
        )
    initial, operands = _scan_operands(operation, 1)
    sizes = {v.type.shape[0] if v.type.shape else 0 for v in (*initial, *operands)}
    if len(sizes) != 1 or max(sizes) == 0:
        raise operation.wrong(
            f"its inputs must be batches of one size, at least 1, but have {sorted(sizes)}"
        )
    elements = [
        _scanned(
            operation,
            [_row(operation, v, index) for v in initial],
            [_row(operation, v, index) for v in operands],
            "directions",
        )
        for index in range(max(sizes))
    ]
    return [_stacked(operation, made) for made in zip(*elements, strict=True)]


def _row(operation: Operation, value: Value, index: int) -> Value:
    row = slice_along(operation, value, 0, index, 1)
    return operation.reshape(row, value.type.shape[1:])


def _scan_operands(operation: Operation, start: int) -> tuple[list[Value], list[Value]]:
    """Return the carried operands, and the scanned ones."""
    count, scanned = operation.count - start, operation.integer("num_scan_inputs")
    if not 1 <= scanned <= count:
        raise operation.wrong(
            f"num_scan_inputs is {scanned}; it must be from 1 to the number of inputs, {count}"
        )
    values = [operation.value(start + index) for index in range(count)]
    return values[: count - scanned], values[count - scanned :]


def _scanned(
    operation: Operation, initial: Sequence[Value], operands: Sequence[Value], directions: str
) -> tuple[Value, ...]:
    """Convert a scan along axis 0 of the operands; it also stacks along axis 0."""
    carried = len(initial)
    if not operands[0].type.shape:
        raise operation.wrong(
            f"'{operands[0].name}' is {operands[0].type}, which has no axis to scan"
        )
    trip_count = operands[0].type.shape[0]
    types = [v.type for v in initial] + [v.type.with_shape(v.type.shape[1:]) for v in operands]
    graph, captures = operation.subgraph("body", types)
    number = Value(f"{graph.name}:iteration", _NUMBER)
    body = replace(graph, inputs=(number, *graph.inputs))
    stacked = len(body.outputs) - carried
    op = Loop(
        body,
        carried,
        trip_count,
        scans=_orders(operation, directions, len(operands)),
        stacks=_orders(operation, "scan_output_directions", stacked),
    )
    return operation.emit_all(op, None, None, *initial, *operands, *captures)


def _orders(operation: Operation, attribute: str, count: int) -> tuple[Order, ...]:
    directions = operation.integers(attribute, (0,) * count)
    if len(directions) != count:
        raise operation.wrong(f"'{attribute}' has {len(directions)} elements, not {count}")
    return tuple(Order.BACKWARD if direction else Order.FORWARD for direction in directions)


def _axis_first(operation: Operation, value: Value, axis: int) -> Value:
    rank = len(value.type.shape)
    axis = operation.axis(axis, rank)
    return operation.transpose(value, (axis, *(i for i in range(rank) if i != axis)))


def _axis_back(operation: Operation, value: Value, axis: int) -> Value:
    """Undo `_axis_first`."""
    rank = len(value.type.shape)
    axis = operation.axis(axis, rank)
    order = list(range(1, rank))
    order.insert(axis, 0)
    return operation.transpose(value, order)


def _list(types: Sequence[TensorType]) -> str:
    return f"({', '.join(map(str, types))})"


CONVERTERS: dict[str, OnnxConverter] = {"If": _if, "Loop": _loop, "Scan": _scan}
"""Converter of each operator, by name."""

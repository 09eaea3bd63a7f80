"""If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.onnx.operation import Converter, Operation, Results
from smelt.ir import Array, DType, Graph, TensorType, Value
from smelt.ops.concat import Concat
from smelt.ops.control import If, Loop, Order
from smelt.ops.reshape import Reshape

_ENDLESS = 2**31
"""Trip counts from here on mean that only a condition ends the loop."""

_UNROLLED = 256
"""Turns of a loop that may be written out one after the other."""

_NUMBER = TensorType((), DType.INT64)


def _if(operation: Operation) -> Results:
    """A condition known at compile time leaves one of the graphs, in place."""
    condition = operation.value(0)
    if condition.type.size != 1:
        raise operation.wrong(f"its condition '{condition.name}' is {condition.type}, not one bool")
    if condition.data is not None:
        return operation.inline("then_branch" if condition.data.item() else "else_branch")
    branches = [_branch(operation, name) for name in ("then_branch", "else_branch")]
    captures = tuple(dict.fromkeys(v for _, own in branches for v in own))
    then_graph, else_graph = (_taking(captures, graph, own) for graph, own in branches)
    ours, theirs = ([v.type for v in g.outputs] for g in (then_graph, else_graph))
    if ours != theirs:
        raise operation.refuse(
            f"its branches give {_list(ours)} and {_list(theirs)}: which one is known at run time "
            f"only, and tensors have one shape. {_REMEDY}"
        )
    return operation.emit_all(If(then_graph, else_graph), condition, *captures)


_REMEDY = (
    "Where the condition never changes on the device, fix the input that it depends on with --value"
)


def _branch(operation: Operation, name: str) -> tuple[Graph, tuple[Value, ...]]:
    try:
        return operation.subgraph(name)
    except (ModelError, UnsupportedError) as error:
        raise type(error)(
            f"{operation}: its {name} cannot be compiled: {error}. {_REMEDY}"
        ) from error


def _taking(wanted: Sequence[Value], graph: Graph, own: Sequence[Value]) -> Graph:
    """The graph, whose inputs stand for the values `own`, with an input for each of `wanted`."""
    inputs = dict(zip(own, graph.inputs, strict=True))
    unused = ((v, Value(f"{graph.name}:{v.name}", v.type)) for v in wanted if v not in inputs)
    inputs |= dict(unused)
    return replace(graph, inputs=tuple(inputs[v] for v in wanted))


def _loop(operation: Operation) -> Results:
    """ONNX's Loop: trip count and condition, either of which may be absent or constant.

    The body's own condition input is true in every turn that there is.
    """
    limit, condition = operation.optional(0), operation.optional(1)
    carried = tuple(operation.value(index) for index in range(2, operation.count))
    turns: int | None = None
    if limit is not None and limit.data is not None:
        turns, limit = int(limit.data.item()), None
        turns = None if turns >= _ENDLESS else max(turns, 0)
    if condition is not None and condition.data is not None:
        turns = turns if condition.data.item() else 0
        condition = None
    true = operation.literal(np.asarray(True))
    try:
        body, captures = operation.subgraph("body", [_NUMBER, true, *(v.type for v in carried)])
    except UnsupportedError:
        # With the turn's number known, what the body refuses may have a fixed shape.
        if turns is None or turns > _UNROLLED:
            raise
        return _unrolled(operation, turns, condition, carried)
    more, *made = body.outputs
    decided = _constant(body, more)
    if turns is not None and _changes_shape(carried, made):
        return _unrolled(operation, turns, condition, carried)
    if _changes_shape(carried, made):
        raise operation.refuse(
            f"a turn makes {_list([v.type for v in made[: len(carried)]])} of "
            f"{_list([v.type for v in carried])}: tensors have one shape"
        )
    if decided is not None and not decided.item():
        turns, limit = 1 if turns is None else min(turns, 1), None
    stops = decided is None
    if not stops:
        body = replace(body, outputs=tuple(made))
    stacks = (Order.FORWARD,) * (len(made) - len(carried))
    op = Loop(body, len(carried), turns, stops, stacks=stacks)
    return operation.emit_all(op, limit, condition, *carried, *captures)


def _changes_shape(carried: Sequence[Value], made: Sequence[Value]) -> bool:
    return any(old.type != new.type for old, new in zip(carried, made, strict=False))


def _unrolled(
    operation: Operation, turns: int, condition: Value | None, carried: Sequence[Value]
) -> Results:
    """The turns one after the other: what is carried may then change its shape."""
    if condition is not None or turns > _UNROLLED:
        raise operation.refuse(
            "its turns differ in shape, which is supported for up to "
            f"{_UNROLLED} of them, whose number is a constant"
        )
    stacked: list[Sequence[Value]] = []
    for turn in range(turns):
        number, true = operation.literal(np.asarray(turn)), operation.literal(np.asarray(True))
        more, *made = operation.inline("body", [number, true, *carried])
        carried = made[: len(carried)]
        stacked.append(made[len(carried) :])
        if more.data is None:
            raise operation.refuse("its turns differ in shape, and its body can end it")
        if not more.data.item():
            break
    return (*carried, *(_stacked(operation, slices) for slices in zip(*stacked, strict=True)))


def _stacked(operation: Operation, slices: Sequence[Value]) -> Value:
    """The slices along a new axis 0."""
    if len({v.type for v in slices}) > 1:
        raise operation.refuse("what its turns stack has several shapes")
    rows = [operation.reshape(v, (1, *v.type.shape)) for v in slices]
    return operation.emit(Concat(0), *rows, quant=slices[0].type.quant)


def _constant(graph: Graph, value: Value) -> Array | None:
    """The array of an output of a graph that is constant."""
    while value.data is None and value in graph.producer:
        node = graph.producer[value]
        if not isinstance(node.op, Reshape):
            return None
        value = node.input(0)
    return value.data


def _scan(operation: Operation) -> Results:
    """ONNX's Scan from operator set 9 on."""
    if operation.version < 9:
        raise operation.refuse("Scan of operator set 8 is not supported: export with opset 9 on")
    scanned = operation.integer("num_scan_inputs")
    carried = operation.count - scanned
    if scanned < 1 or carried < 0:
        raise operation.wrong(f"it has {operation.count} inputs, {scanned} of them scanned")
    initial = [operation.value(index) for index in range(carried)]
    axes = operation.integers("scan_input_axes", (0,) * scanned)
    operands = [
        _axis_first(operation, operation.value(carried + i), axis) for i, axis in enumerate(axes)
    ]
    turns = operands[0].type.shape[0]
    types = [v.type for v in initial] + [v.type.with_shape(v.type.shape[1:]) for v in operands]
    graph, captures = operation.subgraph("body", types)
    turn = Value(f"{graph.name}:turn", _NUMBER)
    body = replace(graph, inputs=(turn, *graph.inputs))
    stacked = len(body.outputs) - carried
    op = Loop(
        body,
        carried,
        turns,
        scans=_orders(operation, "scan_input_directions", scanned),
        stacks=_orders(operation, "scan_output_directions", stacked),
    )
    results = operation.emit_all(op, None, None, *initial, *operands, *captures)
    axes = operation.integers("scan_output_axes", (0,) * stacked)
    return (
        *results[:carried],
        *(_axis_back(operation, v, a) for v, a in zip(results[carried:], axes, strict=True)),
    )


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
    """The inverse of `_axis_first`."""
    rank = len(value.type.shape)
    axis = operation.axis(axis, rank)
    order = list(range(1, rank))
    order.insert(axis, 0)
    return operation.transpose(value, order)


def _list(types: Sequence[TensorType]) -> str:
    return f"({', '.join(map(str, types))})"


CONVERTERS: dict[str, Converter] = {"If": _if, "Loop": _loop, "Scan": _scan}
"""Operator's name to its converter."""

"""Graph verifier, which runs after every pass."""

from __future__ import annotations

from smelt.errors import GraphError, ModelError
from smelt.ir.graph import Graph, Node, Value
from smelt.ir.types import DType


def verify(graph: Graph, after: str) -> Graph:
    """Check `graph` and return it.

    Args:
        graph: the graph to check.
        after: the pass that made it, for the message.

    Raises:
        GraphError: a value is used before it is made, or made twice; its type differs from what
            its operator infers; two values have one name; a constant's array has another type.
    """
    try:
        _verify(graph)
    except (GraphError, ModelError) as error:
        raise GraphError(f"after {after}, in graph '{graph.name}': {error}") from error
    return graph


def _verify(graph: Graph) -> None:
    known: set[Value] = set()
    names: dict[str, Value] = {}

    def define(value: Value, by: str) -> None:
        if value in known:
            raise GraphError(f"value '{value.name}' is defined a second time, by {by}")
        if names.setdefault(value.name, value) is not value:
            raise GraphError(f"two values are called '{value.name}'")
        known.add(value)

    def use(value: Value, by: str) -> None:
        if value.is_constant and value not in known:
            _check_constant(value)
            define(value, by)
        elif value not in known:
            raise GraphError(f"value '{value.name}' is used by {by} before it is defined")

    def receive(value: Value, by: str) -> None:
        if value.is_constant:
            raise GraphError(f"value '{value.name}' is constant and cannot be one of {by}")
        _check_quant(value)
        define(value, by)

    for value in graph.inputs:
        receive(value, "the graph's inputs")
    _check_lengths(graph)
    for state in graph.states:
        receive(state.before, "a state")
    for node in graph.nodes:
        where = f"{node.op.name} ({node.origin})"
        for operand in node.inputs:
            if operand is not None:
                use(operand, where)
        for result in node.outputs:
            receive(result, where)
        for subgraph in node.op.subgraphs:
            try:
                _verify(subgraph)
            except (GraphError, ModelError) as error:
                raise GraphError(f"{where}, in graph '{subgraph.name}': {error}") from error
        _check_types(node, where)
    for value in graph.outputs:
        use(value, "the graph's outputs")
    for state in graph.states:
        use(state.after, "a state")
        if state.before.type != state.after.type:
            raise GraphError(
                f"state '{state.before.name}' is {state.before.type} before and "
                f"{state.after.type} after an inference"
            )
        type_, initial = state.before.type, state.initial
        if (initial.shape, initial.dtype) != (type_.shape, type_.dtype.numpy):
            raise GraphError(
                f"state '{state.before.name}' is {type_} but starts with "
                f"{initial.dtype}{list(initial.shape)}"
            )


def _check_lengths(graph: Graph) -> None:
    taken: set[tuple[int, int]] = set()
    for length in graph.lengths:
        if not 1 <= length.minimum <= length.maximum or not length.axes:
            raise GraphError(
                f"length '{length.name}' is from {length.minimum} to {length.maximum} along "
                f"{len(length.axes)} axes: it needs 1 <= minimum <= maximum and at least one axis"
            )
        for index, axis in length.axes:
            value = graph.inputs[index]
            if value.type.shape[axis] != length.maximum or (index, axis) in taken:
                raise GraphError(
                    f"dimension {axis} of '{value.name}' {value.type} cannot be "
                    f"'{length.name}' of at most {length.maximum}"
                )
            taken.add((index, axis))


def _check_types(node: Node, where: str) -> None:
    inferred = node.op.infer([None if v is None else v.type for v in node.inputs])
    if len(inferred) != len(node.outputs):
        raise GraphError(f"{where} makes {len(inferred)} values, but has {len(node.outputs)}")
    for expected, value in zip(inferred, node.outputs, strict=True):
        found = value.type
        if (expected.shape, expected.dtype) != (found.shape, found.dtype):
            raise GraphError(f"{where} makes {expected}, but '{value.name}' is {found}")
    node.op.check(node)


def _check_constant(value: Value) -> None:
    array = value.array
    if (array.shape, array.dtype) != (value.type.shape, value.type.dtype.numpy):
        raise GraphError(
            f"constant '{value.name}' is {value.type}, but its array is "
            f"{array.dtype}{list(array.shape)}"
        )
    _check_quant(value)


def _check_quant(value: Value) -> None:
    quant, shape = value.type.quant, value.type.shape
    if quant is None:
        return
    if value.type.dtype.is_float or value.type.dtype is DType.BOOL:
        raise GraphError(f"'{value.name}' is {value.type} and cannot be quantized")
    if quant.axis is not None and not 0 <= quant.axis < len(shape):
        raise GraphError(f"'{value.name}' is {value.type} and has no axis {quant.axis}")
    count = 1 if quant.axis is None else shape[quant.axis]
    if len(quant.scale) != count or len(quant.zero_point) != count:
        raise GraphError(
            f"'{value.name}' {value.type} needs {count} scales and zero points, "
            f"has {len(quant.scale)} and {len(quant.zero_point)}"
        )
    if not all(0.0 < scale < float("inf") for scale in quant.scale):
        raise GraphError(f"'{value.name}' has a scale that is not positive and finite")

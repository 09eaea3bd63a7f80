"""Classification of the nodes of a float network by their quantized form.

- *Product* (convolution, dense layer): constant weights, int32 sums, then requantization.
- *Function* of one tensor, element by element. All functions between two stored tensors become one
  table of 256 results, so that nothing in between is rounded.
- *Native*: the operator itself computes int8 data (moves, pools, sums, softmax, …).
- *LSTM*: two products for each gate; an int8 hidden state and an int16 cell state.
- *Plain*: a node without floats (shape arithmetic), which stays unchanged.
- *Float*: a node without an int8 form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Graph, Node, Quant, Rounding, TensorType, Value
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.sequence.lstm import Lstm

NodeKind = Enum("NodeKind", ["PRODUCT", "FUNCTION", "NATIVE", "LSTM", "PLAIN", "FLOAT"])


@dataclass(frozen=True, kw_only=True)
class QuantizationPlan:
    """How each part of a float network is quantized.

    Attributes:
        kind: kind of each node.
        reason: for nodes that stay in float, the reason.
        root: for each function's result, the stored tensor that it depends on.
        path: for each function's result, the nodes from its root to it, in order.
        stored: the float values that become int8 tensors, in order: inputs of the network, results
            of products, native nodes and float layers, and functions' results that nodes other
            than functions read.
        read: values that nodes other than functions read, and results of the network.
        cells: cell states of LSTMs, which are stored as int16.
        lstms: operators of the LSTM nodes.
        sums: products that only float layers read, which take the int32 sums directly; with their
            operators.
    """

    kind: Mapping[Node, NodeKind]
    reason: Mapping[Node, str]
    root: Mapping[Value, Value]
    path: Mapping[Value, tuple[Node, ...]]
    stored: tuple[Value, ...]
    read: frozenset[Value]
    cells: frozenset[Value]
    lstms: Mapping[Node, Lstm]
    sums: Mapping[Node, FullyConnected]


def is_real(value: Value | None) -> bool:
    """Return whether a value is float32."""
    return value is not None and value.type.dtype is DType.FLOAT32


def classify(graph: Graph, in_float: frozenset[Node] = frozenset()) -> QuantizationPlan:
    """Classify all nodes; the nodes `in_float` stay in float."""
    plan = _classify(graph, in_float)
    between = _between(graph, plan)
    return _classify(graph, in_float | between) if between else plan


def _between(graph: Graph, plan: QuantizationPlan) -> frozenset[Node]:
    """Return nodes whose neighbors before and after are all in float: these stay in float too."""
    layers = {node for node, kind in plan.kind.items() if kind is NodeKind.FLOAT}
    found = {
        node for node, kind in plan.kind.items() if kind in (NodeKind.FUNCTION, NodeKind.NATIVE)
    }
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value, []).append(node)
    while layers:
        inside = layers | found
        kept = {
            node
            for node in found
            if all(
                graph.producer.get(v) in inside
                for v in node.inputs
                if v is not None and v.data is None and is_real(v)
            )
            and all(
                v not in graph.results and set(readers.get(v, ())) <= inside for v in node.outputs
            )
        }
        if kept == found:
            return frozenset(found)
        found = kept
    return frozenset()


def _classify(graph: Graph, in_float: frozenset[Node]) -> QuantizationPlan:
    kind: dict[Node, NodeKind] = {}
    reason: dict[Node, str] = {}
    root: dict[Value, Value] = {}
    path: dict[Value, tuple[Node, ...]] = {}
    lstms: dict[Node, Lstm] = {}
    for node in graph.nodes:
        source = _source(node, root)
        if not any(map(is_real, (*node.inputs, *node.outputs))):
            kind[node] = NodeKind.PLAIN
        elif node in in_float:
            kind[node], reason[node] = NodeKind.FLOAT, "it is between operators in float"
        elif _is_product(node):
            kind[node] = NodeKind.PRODUCT
        elif isinstance(node.op, Lstm):
            kind[node], lstms[node] = NodeKind.LSTM, node.op
        elif source is not None:
            kind[node], root[node.output] = NodeKind.FUNCTION, source
            steps = [step for v in node.inputs if v in path for step in path[v]]
            path[node.output] = (*dict.fromkeys(steps), node)
        else:
            why = objection(node)
            kind[node] = NodeKind.NATIVE if why is None else NodeKind.FLOAT
            if why is not None:
                reason[node] = why
    read = set(graph.results)
    for node in graph.nodes:
        if kind[node] is not NodeKind.FUNCTION:
            read.update(v for v in node.inputs if v is not None)
    computed = [v for v in graph.values() if v.data is None and is_real(v)]
    needed = {root[v] for v in computed if v in root and v in read}
    sums = _sums(graph, kind)
    given = {node.output for node in sums}
    stored = [v for v in computed if (v in read or v in needed or v not in root)]
    stored = [v for v in stored if v not in given]
    return QuantizationPlan(
        kind=kind,
        reason=reason,
        root=root,
        path=path,
        stored=tuple(stored),
        read=frozenset(read),
        cells=_cells(graph, lstms),
        lstms=lstms,
        sums=sums,
    )


def _cells(graph: Graph, layers: Collection[Node]) -> frozenset[Value]:
    """Return the last cell states of LSTMs, and the states of the network that they feed."""
    cells = {node.outputs[-1] for node in layers}
    before = {node.optional(5) for node in layers}
    return frozenset(
        cells | {s.before for s in graph.states if s.after in cells and s.before in before}
    )


def _sums(graph: Graph, kind: Mapping[Node, NodeKind]) -> dict[Node, FullyConnected]:
    """Return the dense layers that only float layers read."""
    kept = {v for n in graph.nodes if kind[n] is not NodeKind.FLOAT for v in n.inputs}
    read = {v for n in graph.nodes for v in n.inputs} - kept - set(graph.results)
    return {
        node: node.op
        for node in graph.nodes
        if kind[node] is NodeKind.PRODUCT
        and isinstance(node.op, FullyConnected)
        and node.op.activation is Activation.NONE
        and node.output in read
    }


def _is_product(node: Node) -> bool:
    if not node.op.quantized_weights or not is_real(node.output):
        return False
    bias = node.optional(2)
    return node.input(1).data is not None and (bias is None or bias.data is not None)


def _source(node: Node, root: Mapping[Value, Value]) -> Value | None:
    """Return the single tensor that a node is an elementwise function of, or None."""
    if not node.op.elementwise or not is_real(node.output):
        return None
    computed = [v for v in node.inputs if v is not None and v.data is None]
    constants = [v for v in node.inputs if v is not None and v.data is not None]
    sources = {root.get(v, v) for v in computed}
    if len(sources) != 1 or any(v.type.size != 1 for v in constants):
        return None
    (source,) = sources
    shapes = {v.type.shape for v in (*computed, source)}
    return source if shapes == {node.output.type.shape} and is_real(source) else None


def apply(path: Sequence[Node], source: Value, x: Array) -> Array:
    """Apply a sequence of functions to a float32 array of any shape."""
    known: dict[Value, Array] = {source: x}
    for node in path:
        operands = [
            None if v is None else known[v] if v.data is None else v.data.reshape(())
            for v in node.inputs
        ]
        (result,) = node.op.reference(node, operands)
        known[node.output] = np.broadcast_to(result, x.shape)
    return known[path[-1].output] if path else x


_MARKS = tuple(Quant.per_tensor(2.0**-k, k) for k in range(3, 7))
"""Arbitrary quantizations for probing: their effect shows what an operator requires."""


def objection(node: Node) -> str | None:
    """Return why an operator has no int8 form, in one sentence, or None if it has one."""
    if any(o.type.dtype.is_float and not is_real(o) for o in node.outputs):
        return f"{node.op.name} computes {node.outputs[0].type}"
    own = node.op.objection(node)
    if own is not None:
        return own
    try:
        probed(node, [_MARKS[0]] * len(node.inputs), None)
    except (ModelError, UnsupportedError) as error:
        return str(error)
    return None


def tied_inputs(node: Node) -> tuple[int, ...]:
    """Return the inputs of a native node that must have the same quantization as its output."""
    found: list[int] = []
    free, tied = _MARKS[0], _MARKS[1]
    count = len(node.inputs)
    for index, value in enumerate(node.inputs):
        if not is_real(value):
            continue
        quants = [tied if i == index else free for i in range(count)]
        alone = node.op.output_quant(_types(node, quants))
        if alone == tied:
            found.append(index)
            continue
        try:
            probed(node, quants, None)
        except (ModelError, UnsupportedError):
            found.append(index)
    return tuple(found)


def fixed_quant(node: Node) -> Quant | None:
    """Return the quantization that a native node's outputs must have for any inputs, or None."""
    quant = node.op.output_quant(_types(node, [_MARKS[0]] * len(node.inputs)))
    return None if quant is None or quant in _MARKS else quant


def only_moves(node: Node) -> bool:
    """Return whether a node copies elements of its operands to places that are known in advance."""
    return node.op.moves_data and not node.op.chooses_by and len(node.outputs) == 1


def _types(
    node: Node, quants: Sequence[Quant], dtype: DType = DType.INT8
) -> list[TensorType | None]:
    return [
        None if v is None else replace(v.type, dtype=dtype, quant=q) if is_real(v) else v.type
        for v, q in zip(node.inputs, quants, strict=True)
    ]


def probed(
    node: Node, inputs: Sequence[Quant], output: Quant | None, dtype: DType = DType.INT8
) -> Node:
    """Return the quantized form of a native node for given quantizations, after checking it.

    Args:
        node: a node of the float network.
        inputs: quantization of each input; ignored for inputs that are not float32.
        output: quantization of the outputs if the operator does not determine it.
        dtype: int8 or int16.

    Raises:
        ModelError, UnsupportedError: the operator has no such form.
    """
    types = _types(node, inputs, dtype)
    operands = tuple(
        None if v is None or t is None else _operand(v, t)
        for v, t in zip(node.inputs, types, strict=True)
    )
    chosen = node.op.output_quant(types) or output or _MARKS[0]
    inferred = node.op.infer(types)
    outputs = tuple(
        Value(v.name, TensorType(t.shape, t.dtype, chosen if is_real(v) else None))
        for v, t in zip(node.outputs, inferred, strict=True)
    )
    made = Node(node.op, operands, outputs, node.origin, Rounding.TFLM)
    made.op.check(made)
    for given, value in zip(node.outputs, outputs, strict=True):
        wanted = dtype if is_real(given) else given.type.dtype
        if value.type.dtype is not wanted:
            raise UnsupportedError(f"{node.op.name} of {dtype.value} data gives {value.type}")
    return made


def _operand(value: Value, type_: TensorType) -> Value:
    if value.data is None or not is_real(value):
        return Value(value.name, type_, value.data)
    return Value(value.name, type_, np.zeros(type_.shape, type_.dtype.numpy))

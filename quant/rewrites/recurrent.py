"""Float rewrites of LSTM layers to a single `Lstm` node and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from smelt.ir import Array, DType, Graph, Node, TensorType, Value
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.sequence.lstm import GATES, Lstm
from smelt.ops.sequence.recurrence import Recurrence, recurrence


def merge_dense(graph: Graph) -> Graph:
    """Merge each LSTM that has an integer form with the dense layer before it into one `Lstm`."""
    merged: dict[Value, Node] = {}
    results = {v for node in graph.nodes for v in node.inputs} | set(graph.results)
    for node in graph.nodes:
        op = node.op
        if not isinstance(op, Recurrence) or op.integer_objection(node) is not None:
            continue
        dense = graph.producer.get(node.input(0))
        if dense is not None and _is_dense(dense):
            merged[node.outputs[-1]] = _whole(node, op, dense, results)
    nodes = [merged.get(node.outputs[-1], node) for node in graph.nodes]
    read = {v for node in nodes for v in node.inputs} | set(graph.results)
    absorbed = results - read
    return replace(graph, nodes=tuple(n for n in nodes if not absorbed.issuperset(n.outputs)))


def _is_dense(node: Node) -> bool:
    op = node.op
    return (
        isinstance(op, FullyConnected)
        and op.keep_dims
        and op.activation is Activation.NONE
        and node.output.type.dtype is DType.FLOAT32
        and all(v is None or v.is_constant for v in node.inputs[1:])
    )


def _whole(node: Node, op: Recurrence, dense: Node, read: set[Value | None]) -> Node:
    """Return the merged layer, without the hidden states of all steps if nothing reads them."""
    recurrent = node.input(1)
    units = recurrent.type.shape[1]
    bias = dense.optional(2)
    real = np.zeros(GATES * units, np.float32) if bias is None else bias.array
    sequence = op.sequence and node.outputs[0] in read
    constants = [
        Value.constant(f"{node.name}:{role}", array.reshape(GATES, units, -1))
        for role, array in (("input_weights", dense.input(1).array), ("recurrent", recurrent.array))
    ]
    constants.append(Value.constant(f"{node.name}:gate_bias", real.reshape(GATES, units)))
    return replace(
        node,
        op=Lstm(sequence, op.reverse, op.cell_clip),
        inputs=(dense.input(0), *constants, node.optional(3), node.optional(4)),
        outputs=node.outputs if sequence else node.outputs[-2:],
    )


def split_lstm(node: Node) -> tuple[Sequence[Node], Sequence[Value]] | None:
    """Split an `Lstm` that stays in float into a dense layer and a recurrence."""
    op = node.op
    if not isinstance(op, Lstm) or node.outputs[-1].type.dtype is not DType.FLOAT32:
        return None
    dense, again = gate_layers(node)
    steps, batch, _ = node.input(0).type.shape
    shape = (steps, batch, dense.input(1).type.shape[0])
    gates = Value(f"{node.name}:gates", TensorType(shape, DType.FLOAT32))
    cell = recurrence("lstm", reverse=op.reverse, sequence=op.sequence, cell_clip=op.cell_clip)
    states = (node.optional(4), node.optional(5))
    return [
        replace(dense, outputs=(gates,)),
        replace(node, op=cell, inputs=(gates, again.input(1), None, *states)),
    ], node.outputs


def gate_layers(node: Node) -> tuple[Node, Node]:
    """Return an LSTM's gates as two dense layers: of its input, and of its hidden state."""
    weights, recurrent, bias = (node.input(index).array for index in (1, 2, 3))
    wide = GATES * bias.shape[1]

    def dense(x: Value, matrix: Array, summand: Array) -> Node:
        operands = (
            x,
            Value.constant(f"{x.name}:{node.name}:weights", matrix.reshape(wide, -1)),
            Value.constant(f"{x.name}:{node.name}:bias", summand.ravel()),
        )
        return replace(node, op=FullyConnected(keep_dims=True), inputs=operands)

    return (
        dense(node.input(0), weights, bias),
        dense(node.outputs[-2], recurrent, np.zeros_like(bias)),
    )

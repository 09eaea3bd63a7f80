"""Runs a graph with the numpy references. Generated code must compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.errors import ConfigError
from smelt.ir.budget import OPERATOR, current, unlimited
from smelt.ir.graph import Graph, Node, Value
from smelt.ir.types import Array, DType


@dataclass(frozen=True)
class Evaluation:
    """Result of one inference.

    Attributes:
        outputs: in the order of the graph's outputs.
        states: the states for the next inference, in the order of the graph's states.
        values: the array of every value.
    """

    outputs: tuple[Array, ...]
    states: tuple[Array, ...]
    values: dict[Value, Array]


def evaluate(
    graph: Graph, inputs: Sequence[Array], states: Sequence[Array] | None = None
) -> Evaluation:
    """Run one inference.

    Args:
        graph: a verified graph.
        inputs: an array for each graph input, with exactly its shape and element type.
        states: an array for each state; None for the initial states.

    Raises:
        ConfigError: an input is missing, or has another shape or element type.
    """
    values = _bind(graph, inputs)
    if states is None:
        states = [state.initial for state in graph.states]
    values |= {s.before: array for s, array in zip(graph.states, states, strict=True)}
    for value in graph.values():
        if value.data is not None:
            values[value] = value.data
    for node in graph.nodes:
        operands = [None if v is None else values[v] for v in node.inputs]
        results = compute(node, operands)
        values |= zip(node.outputs, results, strict=True)
    return Evaluation(
        tuple(values[v] for v in graph.outputs),
        tuple(values[s.after] for s in graph.states),
        values,
    )


def compute(node: Node, operands: Sequence[Array | None]) -> tuple[Array, ...]:
    """Return a node's results. Operands and results in float16 are computed in float32.

    If all results are empty, the operator's reference is not called.

    Raises:
        UnsupportedError: the node needs more operations than the budget in force has left.
    """
    if all(value.type.size == 0 for value in node.outputs):
        return tuple(np.zeros(v.type.shape, v.type.dtype.numpy) for v in node.outputs)
    budget = current()
    if budget is None:
        return _computed(node, operands)
    effort = node.effort
    if effort is None:
        budget.spend(node.origin, OPERATOR)
        with budget.inside(node.origin):
            return _computed(node, operands)
    budget.spend(node.origin, effort)
    with unlimited():
        return _computed(node, operands)


def _computed(node: Node, operands: Sequence[Array | None]) -> tuple[Array, ...]:
    types = [v.type.dtype for v in (*node.inputs, *node.outputs) if v is not None]
    if DType.FLOAT16 not in types:
        return node.op.reference(node, operands)
    wide = [a if a is None or a.dtype != np.float16 else a.astype(np.float32) for a in operands]
    with np.errstate(over="ignore", invalid="ignore"):
        results = node.op.reference(node, wide)
        return tuple(
            array.astype(value.type.dtype.numpy, copy=False)
            for value, array in zip(node.outputs, results, strict=True)
        )


def _bind(graph: Graph, inputs: Sequence[Array]) -> dict[Value, Array]:
    if len(inputs) != len(graph.inputs):
        raise ConfigError(
            f"'{graph.name}' takes {len(graph.inputs)} inputs, but {len(inputs)} were given"
        )
    for value, array in zip(graph.inputs, inputs, strict=True):
        if array.shape != value.type.shape or array.dtype != value.type.dtype.numpy:
            raise ConfigError(
                f"input '{value.name}' of '{graph.name}' is {value.type}; "
                f"got {array.dtype}{list(array.shape)}"
            )
    return dict(zip(graph.inputs, inputs, strict=True))

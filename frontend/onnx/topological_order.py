"""Sorts a model's operators so that each comes after those that compute its operands.

The standard requires this order, but some tools write another, and onnxruntime sorts too. This
module sorts the whole model once, so that all later code may rely on the order. A file in the right
order is not changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import onnx

from smelt.errors import ModelError

_NAMED = 8
"""Number of operators of a long cycle that a message names."""


def sort_operators(model: onnx.ModelProto) -> None:
    """Sort the operators of all graphs and functions of a model.

    Raises:
        ModelError: operators depend on each other in a cycle, or a tensor is computed twice.
    """
    for function in model.functions:
        _sorted(function.node, function.input, (), f"function '{function.name}'")
    _sort_graph(model.graph)


def _sort_graph(graph: onnx.GraphProto) -> set[str]:
    """Sort a graph and those nested in it; return the tensors that it uses from outside."""
    where = f"graph '{graph.name}'"
    inputs = [tensor.name for tensor in graph.input]
    constants = [tensor.name for tensor in graph.initializer]
    constants += [tensor.values.name for tensor in graph.sparse_initializer]
    outside = _sorted(graph.node, inputs, constants, where)
    made = {*inputs, *constants, *(name for node in graph.node for name in node.output)}
    return outside | ({output.name for output in graph.output} - made)


def _sorted(nodes: Any, inputs: Sequence[str], constants: Sequence[str], where: str) -> set[str]:
    """Sort operators; return the tensors that they use from outside of the graph."""
    used = [_used(node) for node in nodes]
    makers = _makers(nodes, inputs, constants, where)
    order = _order(nodes, used, makers)
    if order != list(range(len(nodes))):
        moved = list(nodes)
        del nodes[:]
        nodes.extend(moved[index] for index in order)
    return set[str]().union(*used) - makers.keys() - set(inputs) - set(constants)


def _used(node: onnx.NodeProto) -> set[str]:
    """Sort an operator's graphs; return the tensors that it and its graphs read."""
    used = {name for name in node.input if name}
    for attribute in node.attribute:
        if attribute.HasField("g"):
            used |= _sort_graph(attribute.g)
        for graph in attribute.graphs:
            used |= _sort_graph(graph)
    return used


def _makers(
    nodes: Iterable[onnx.NodeProto], inputs: Sequence[str], constants: Sequence[str], where: str
) -> dict[str, int]:
    """Return the index of the operator that computes each tensor."""
    places = dict.fromkeys(constants, "the constants")
    for name in inputs:
        if name and places.get(name) == "the inputs":
            raise ModelError(f"{where} has two inputs called '{name}'")
        places[name] = "the inputs"
    makers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in places:
                raise ModelError(
                    f"{_named(node, index)} computes tensor '{name}', which {places[name]} already "
                    "defined: the file is damaged"
                )
            places[name] = _named(node, index)
            makers[name] = index
    return makers


def _order(
    nodes: Sequence[onnx.NodeProto], used: Sequence[set[str]], makers: dict[str, int]
) -> list[int]:
    """Return the order: always the first operator in the file whose operands are computed."""
    sorter = TopologicalSorter(
        {i: [makers[n] for n in names if n in makers] for i, names in enumerate(used)}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        raise _circular(nodes, used, makers, error.args[1]) from error
    order: list[int] = []
    ready = list(sorter.get_ready())
    heapq.heapify(ready)
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        sorter.done(index)
        for next_ in sorter.get_ready():
            heapq.heappush(ready, next_)
    return order


def _circular(
    nodes: Sequence[onnx.NodeProto],
    used: Sequence[set[str]],
    makers: dict[str, int],
    cycle: Sequence[int],
) -> ModelError:
    """Return the error for a cycle; it names operators, each with a tensor that it reads."""
    steps: list[str] = []
    for maker, reader in pairwise(cycle[: _NAMED + 1]):
        tensor = min(name for name in used[reader] if makers.get(name) == maker)
        steps.append(
            f"{_named(nodes[reader], reader)} reads '{tensor}' of {_named(nodes[maker], maker)}"
        )
    more = len(cycle) - 1 - len(steps)
    return ModelError(
        f"operators depend on each other in a cycle: {'; '.join(steps)}"
        f"{f'; and {more} more' if more else ''}: the file is damaged, export the network again"
    )


def _named(node: onnx.NodeProto, index: int) -> str:
    return f"{node.op_type} #{index}" + (f" '{node.name}'" if node.name else "")

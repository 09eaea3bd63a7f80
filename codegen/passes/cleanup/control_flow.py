"""Simplification of control flow that is known at compile time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.passes.loops import root_of
from smelt.codegen.passes.subgraphs import Names, bind, inline, replacements
from smelt.ir import Graph, Node, Origin, Rewrite, Value
from smelt.ops.control.branches import If, Loop, While
from smelt.ops.tensor.reshape import Reshape


@dataclass(frozen=True)
class Simplifier:
    """A rewrite rule for the control flow of one graph.

    - An `If` with a constant condition, and a `Loop` of zero or one iterations, are inlined.
    - Constant operands become constants of the inner graph.
    - Values that a loop carries unchanged become invariant operands.

    Attributes:
        names: The names of the graph's values.
        results: Values that must keep their names.
        fold: The pass to run on inner graphs after constants are propagated into them.
    """

    names: Names
    results: AbstractSet[Value]
    fold: Callable[[Graph], Graph]

    def __call__(self, node: Node) -> Rewrite:
        """Rewrite one node; see `Graph.rewrite`."""
        match node.op:
            case If():
                return self._if(node, node.op)
            case While():
                return self._while(node, node.op)
            case Loop():
                return self._loop(node, node.op)
            case _:
                return None

    def _if(self, node: Node, op: If) -> Rewrite:
        condition, operands = node.input(0), _operands(node, 1)
        constants = {i: v for i, v in enumerate(operands) if v.is_constant}
        passed = [v for v in operands if not v.is_constant]
        if condition.is_constant:
            chosen = op.then_graph if condition.array.item() else op.else_graph
            folded = self.fold(bind(chosen, constants))
            return inline(folded, passed, node, self.names, self.results)
        then_graph, else_graph = (self.fold(bind(graph, constants)) for graph in op.subgraphs)
        new = replace(node, op=If(then_graph, else_graph), inputs=(condition, *passed))
        return [new], node.outputs

    def _while(self, node: Node, op: While) -> Rewrite:
        operands, body = _operands(node, 0), op.body
        same = [
            k for k, v in enumerate(body.outputs) if root_of(body, v) is body.inputs[k]
        ]  # carried unchanged
        constants = {k: operands[k] for k in same if operands[k].is_constant}
        outputs = tuple(v for k, v in enumerate(body.outputs) if k not in constants)
        condition = self.fold(bind(op.condition, constants))
        body = self.fold(bind(replace(body, outputs=outputs), constants))
        if condition.outputs[0].is_constant and not condition.outputs[0].array.item():
            return replacements(node, operands, self.results)
        carried = [k for k in range(len(operands)) if k not in constants]
        new = replace(
            node,
            op=While(condition, body),
            inputs=tuple(operands[k] for k in carried),
            outputs=tuple(node.outputs[k] for k in carried),
        )
        known = [
            operands[k] if k in constants or (k in same and v not in self.results) else v
            for k, v in enumerate(node.outputs)
        ]
        copies, values = replacements(node, known, self.results)
        return [new, *copies], values

    def _loop(self, node: Node, op: Loop) -> Rewrite:
        condition = node.inputs[1]
        if condition is not None and condition.is_constant and not condition.array.item():
            return replacements(node, _operands(node, 2)[: op.carried], self.results)
        limited = _with_known_limit(node, op)
        if limited is not None:
            return self._simplify_replacement(node, limited, node.outputs)
        operands = _operands(node, 2)
        first = op.carried + len(op.scans)
        constants = {
            i + 1: v for i, v in enumerate(operands) if i >= first and v.is_constant
        }  # input 0 of the body is the iteration number
        body = self.fold(bind(op.body, constants))
        passed = [v for i, v in enumerate(operands) if i + 1 not in constants]
        op = replace(op, body=body)
        results = body.outputs[op.stops :]
        same = [k for k in range(op.carried) if root_of(body, results[k]) is body.inputs[k + 1]]
        new = replace(node, op=op, inputs=(*node.inputs[:2], *passed))
        if same:
            known = [passed[k] if k in same else v for k, v in enumerate(node.outputs)]
            return self._simplify_replacement(node, _with_invariant(new, op, same), known)
        unconditional = _without_stop(new, op)
        if unconditional is not None:
            return self._simplify_replacement(node, unconditional, node.outputs)
        if op.trip_count == 0:
            empty = [_empty(value) for value in node.outputs[op.carried :]]
            return replacements(node, [*passed[: op.carried], *empty], self.results)
        if op.trip_count == 1 and node.inputs[1] is None:
            constants = {i: v for i, v in enumerate(passed) if v.is_constant}
            once = self.fold(bind(_single_iteration(op, passed, node.outputs), constants))
            passed = [v for v in passed if not v.is_constant]
            return inline(once, passed, node, self.names, self.results)
        return [new], node.outputs

    def _simplify_replacement(self, node: Node, changed: Node, known: Sequence[Value]) -> Rewrite:
        """Simplify `changed`, which replaces `node`.

        `known` has a value for each output of `node`; some are outputs of `changed`.
        """
        rewritten = self(changed)
        nodes, values = rewritten if rewritten is not None else ([changed], changed.outputs)
        new = dict(zip(changed.outputs, values, strict=True))
        copies, replaced = replacements(node, [new.get(v, v) for v in known], self.results)
        return [*nodes, *copies], replaced


def _with_known_limit(node: Node, op: Loop) -> Node | None:
    """Return the loop with a constant limit as an attribute and without a constant true condition.

    Returns None if the loop has neither.
    """
    limit, condition = node.inputs[:2]
    if condition is not None and condition.is_constant:
        return replace(node, inputs=(limit, None, *node.inputs[2:]))
    if limit is not None and limit.is_constant:
        trip_count = max(0, int(limit.array.item()))
        endless = op.stops and trip_count >= 2**31 - 1
        op = op if endless else replace(op, trip_count=trip_count)
        return replace(node, op=op, inputs=(None, *node.inputs[1:]))
    return None


def _without_stop(node: Node, op: Loop) -> Node | None:
    """Return the loop without its computed stop condition, if that condition is constant.

    Returns None if it is not constant, or if the number of iterations is known only at run time.
    """
    if not op.stops or not op.body.outputs[0].is_constant:
        return None
    trip_count = op.trip_count
    if op.body.outputs[0].array.item():
        if trip_count is None and node.inputs[0] is None:
            return None
    elif node.inputs[0] is not None or (op.scans and trip_count != 1):
        return None
    else:
        trip_count = 1 if trip_count is None else min(trip_count, 1)
    body = replace(op.body, outputs=op.body.outputs[1:])
    return replace(node, op=replace(op, body=body, stops=False, trip_count=trip_count))


def _with_invariant(node: Node, op: Loop, same: Sequence[int]) -> Node:
    """Return the loop with the unchanged carried values as invariant operands."""
    body, stop = op.body, int(op.stops)
    number, *entries = body.inputs
    operands = node.inputs[2:]
    changing = [i for i in range(len(entries)) if i not in same]
    order = [*changing, *same]
    outputs = tuple(v for k, v in enumerate(body.outputs) if k - stop not in same)
    body = replace(body, inputs=(number, *(entries[i] for i in order)), outputs=outputs)
    return replace(
        node,
        op=replace(op, body=body, carried=op.carried - len(same)),
        inputs=(*node.inputs[:2], *(operands[i] for i in order)),
        outputs=tuple(v for k, v in enumerate(node.outputs) if k not in same),
    )


def _single_iteration(op: Loop, operands: Sequence[Value], results: Sequence[Value]) -> Graph:
    """Return a graph that computes the single iteration of a loop."""
    number = op.body.inputs[0]
    zero = Value.constant(number.name, np.zeros(number.type.shape, np.int64))
    body = bind(op.body, {0: zero})
    names = Names(body)
    inputs, before, after = list(body.inputs), list[Node](), list[Node]()
    for i in range(op.carried, op.carried + len(op.scans)):
        entry = inputs[i]
        inputs[i] = Value(names.fresh(entry.name), operands[i].type)
        before.append(_reshaped(inputs[i], entry))
    outputs = list(body.outputs[op.stops :])
    for k in range(op.carried, len(outputs)):
        stacked = Value(names.fresh(outputs[k].name), results[k].type)
        after.append(_reshaped(outputs[k], stacked))
        outputs[k] = stacked
    return Graph(body.name, tuple(inputs), tuple(outputs), (*before, *body.nodes, *after))


def _reshaped(value: Value, output: Value) -> Node:
    return Node(Reshape(output.type.shape), (value,), (output,), Origin("SLICE", 0, output.name))


def _empty(value: Value) -> Value:
    array = np.zeros(value.type.shape, value.type.dtype.numpy)
    return Value.constant(value.name, array, value.type.quant)


def _operands(node: Node, start: int) -> list[Value]:
    return [value for value in node.inputs[start:] if value is not None]

"""If, While and Loop: operators that contain graphs.

The graphs are closed: they use only their own inputs and constants, and keep no state from one
inference to the next. What a loop carries is passed as operands. These operators implement IF and
WHILE of TensorFlow Lite, and If, Loop and Scan of ONNX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Graph, Node, Op, TensorType, Value, evaluate
from smelt.ops.case import Case
from smelt.ops.control.repeated_graph import Order, RepeatedGraph


@dataclass(frozen=True)
class If(Op):
    """Run one of two graphs. Operands: `(condition: bool of one element, *arguments)`.

    Both graphs take all the arguments, even if they do not use them, and have results of equal
    types.
    """

    then_graph: Graph
    else_graph: Graph

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        types = _present(self, inputs)
        if not types or not _is_condition(types[0]):
            raise ModelError(
                f"If needs a condition of one bool as its first operand, got {_list(types)}"
            )
        for graph in self.subgraphs:
            _check_closed(self, graph)
            _match(f"If passes to '{graph.name}'", types[1:], graph.inputs)
        outputs = _types(self.then_graph.outputs)
        _match(f"If expects of '{self.else_graph.name}'", outputs, self.else_graph.outputs)
        return _unquantized(outputs)

    def check(self, node: Node) -> None:
        """Check that both graphs have the quantization of the node's operands and results."""
        for graph in self.subgraphs:
            _check_quant(node, _types(node.inputs)[1:], graph.inputs)
            _check_quant(node, _types(node.outputs), graph.outputs)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        condition, *arguments = _arrays(node, inputs)
        chosen = self.then_graph if condition.item() else self.else_graph
        return evaluate(chosen, arguments).outputs

    @override
    def forwarded_values(self, node: Node) -> Sequence[tuple[Value, Value]]:
        arguments = _without_absent(node.inputs[1:])
        return [
            pair
            for graph in self.subgraphs
            for pair in (
                *zip(arguments, graph.inputs, strict=True),
                *zip(graph.outputs, node.outputs, strict=True),
            )
        ]

    def invariants(self, node: Node) -> int:
        """Return the number of arguments: all of them."""
        return len(node.inputs) - 1

    def macs(self, node: Node) -> int:
        """Return the multiply-accumulates of the more expensive graph."""
        return max(graph.macs for graph in self.subgraphs)

    def effort(self, node: Node) -> int | None:
        """Return the effort of the more expensive graph."""
        ours, theirs = self.then_graph.effort, self.else_graph.effort
        return None if ours is None or theirs is None else max(ours, theirs)


@dataclass(frozen=True)
class While(Op):
    """Repeat `body` while `condition` is true. Both get the carried values, first the operands.

    The results of `body` are the carried values of the next iteration.
    """

    condition: Graph
    body: Graph

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        types = _present(self, inputs)
        for graph in self.subgraphs:
            _check_closed(self, graph)
            _match(f"While passes to '{graph.name}'", types, graph.inputs)
        _match(f"While expects of '{self.body.name}'", types, self.body.outputs)
        results = _types(self.condition.outputs)
        if len(results) != 1 or not _is_condition(results[0]):
            raise ModelError(
                f"While needs a condition graph '{self.condition.name}' with one bool as its "
                f"output, got {_list(results)}"
            )
        return _unquantized(types)

    def check(self, node: Node) -> None:
        """Check that operands, results and the graphs' inputs and outputs are quantized alike."""
        operands = _types(node.inputs)
        for values in (node.outputs, self.condition.inputs, self.body.inputs, self.body.outputs):
            _check_quant(node, operands, values)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        carried = _arrays(node, inputs)
        while evaluate(self.condition, carried).outputs[0].item():
            carried = evaluate(self.body, carried).outputs
        return tuple(carried)

    def repeated(self, node: Node) -> RepeatedGraph:
        """Return what While and Loop have in common; the node must be verified."""
        return RepeatedGraph(
            test=self.condition,
            body=self.body,
            carried=_without_absent(node.inputs),
            entries=self.body.inputs,
            results=self.body.outputs,
        )

    @override
    def forwarded_values(self, node: Node) -> Sequence[tuple[Value, Value]]:
        return self.repeated(node).forwarded_values(node.outputs)

    def macs(self, node: Node) -> int:
        """Return the multiply-accumulates of one iteration; their number is unknown."""
        return self.condition.macs + self.body.macs

    def effort(self, node: Node) -> int | None:
        """Return None, because the number of iterations is unknown before running the loop."""
        return None


@dataclass(frozen=True)
class Loop(Op):
    """Repeat `body`, up to a given number of iterations; it may have scanned and stacked tensors.

    - Operands: `(limit, condition, *carried, *scanned, *invariant)`. `limit` (int64, one element)
      and `condition` (bool, one element) may be absent.
    - Inputs of the body: `(number, *carried, *slices, *invariant)`: the iteration's number from 0
      (int64, one element), and for each scanned operand its slice along axis 0.
    - Outputs of the body: `(*carried, *slices)`. If the loop `stops`, a bool of one element comes
      first: whether there is another iteration.
    - Results: `(*carried, *stacked)`. Stacked results have the slices of all iterations along a
      new axis 0.

    There are at most `trip_count` iterations or, if that is None, at most `limit`. Without either,
    only `condition` and the body's bool end the loop. If `condition` is false, there is no
    iteration. Scanned and stacked tensors require `trip_count`. Stacked tensors also require a loop
    that cannot end early, because a tensor has one shape.

    Attributes:
        body: the graph of an iteration.
        carried: number of carried operands.
        trip_count: the largest number of iterations if it is known at compile time, else None.
        stops: whether the body's first output can end the loop.
        scans: for each scanned operand, which slice comes first.
        stacks: for each stacked result, which slice comes first.
    """

    body: Graph
    carried: int
    trip_count: int | None = None
    stops: bool = False
    scans: tuple[Order, ...] = ()
    stacks: tuple[Order, ...] = ()

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        limit, condition = self._loop_conditions(inputs)
        operands = _present(self, inputs[2:])
        _check_closed(self, self.body)
        if self.trip_count is not None and self.trip_count < 0:
            raise ModelError(
                f"Loop has {self.trip_count} iterations; the number must not be negative"
            )
        if self.trip_count is not None and limit is not None:
            raise ModelError(
                f"Loop has both a fixed number of iterations, {self.trip_count}, and a limit "
                f"operand, {limit}; only one of them is allowed"
            )
        if self.trip_count is None and limit is None and not self.stops:
            raise ModelError("Loop never ends: it has no limit, and its body has no condition")
        if (self.scans or self.stacks) and self.trip_count is None:
            raise UnsupportedError(
                "Loop scans or stacks tensors, but its number of iterations is known only at run "
                "time; make the trip count a constant"
            )
        if self.stacks and (self.stops or condition is not None):
            raise UnsupportedError(
                "Loop stacks the results of its iterations, but a condition can end it early, so "
                "their shape is known only at run time; carry a tensor of the largest size instead"
            )
        carried = operands[: self.carried]
        scanned = operands[self.carried : self.carried + len(self.scans)]
        invariant = operands[self.carried + len(self.scans) :]
        for type_ in scanned:
            if not type_.shape or type_.shape[0] != self.trip_count:
                raise ModelError(
                    f"Loop of {self.trip_count} iterations cannot scan {type_}: axis 0 must have "
                    "as many elements as there are iterations"
                )
        number = _types(self.body.inputs[:1])
        if not number or number[0].dtype is not DType.INT64 or number[0].size != 1:
            raise ModelError(
                f"Loop passes one i64 first to '{self.body.name}', but its first input is "
                f"{_list(number)}"
            )
        slices = [type_.with_shape(type_.shape[1:]) for type_ in scanned]
        passed = (*carried, *slices, *invariant)
        _match(f"Loop passes to '{self.body.name}'", passed, self.body.inputs[1:])
        outputs = self._body_outputs()
        _match(f"Loop expects of '{self.body.name}'", carried, outputs[: self.carried])
        stacked = _types(outputs[self.carried :])
        if len(stacked) != len(self.stacks):
            raise ModelError(
                f"Loop stacks {len(self.stacks)} results, but '{self.body.name}' makes "
                f"{len(stacked)}"
            )
        trip_count = self.trip_count or 0
        return _unquantized((*carried, *(t.with_shape((trip_count, *t.shape)) for t in stacked)))

    def check(self, node: Node) -> None:
        """Check that operands, results and the body's inputs and outputs are quantized alike."""
        operands = _types(node.inputs[2:])
        _check_quant(node, operands, self.body.inputs[1:])
        _check_quant(node, _types(node.outputs), self._body_outputs())
        scanned = operands[self.carried : self.carried + len(self.scans)]
        for type_ in (*scanned, *_types(node.outputs[self.carried :])):
            if type_.quant is not None and not type_.quant.is_per_tensor:
                raise ModelError(
                    f"{node.origin}: Loop cannot scan or stack {type_}, because it is quantized "
                    "per channel; quantize it per tensor"
                )

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        limit, condition = inputs[:2]
        operands = _arrays(node, inputs[2:])
        carried = operands[: self.carried]
        scanned = operands[self.carried : self.carried + len(self.scans)]
        invariant = operands[self.carried + len(self.scans) :]
        trip_count = self.trip_count if limit is None else int(limit.item())
        more = condition is None or bool(condition.item())
        stacked: list[tuple[Array, ...]] = []
        iteration = 0
        while more and (trip_count is None or iteration < trip_count):
            number = np.full(self.body.inputs[0].type.shape, iteration, np.int64)
            slices = [
                x[iteration if order is Order.FORWARD else len(x) - 1 - iteration]
                for x, order in zip(scanned, self.scans, strict=True)
            ]
            outputs = evaluate(self.body, [number, *carried, *slices, *invariant]).outputs
            if self.stops:
                more, outputs = bool(outputs[0].item()), outputs[1:]
            carried = outputs[: self.carried]
            stacked.append(outputs[self.carried :])
            iteration += 1
        results = node.outputs[self.carried :]
        return (*carried, *(self._stack(stacked, i, v) for i, v in enumerate(results)))

    def repeated(self, node: Node) -> RepeatedGraph:
        """Return what While and Loop have in common; the node must be verified."""
        (limit, condition), operands = node.inputs[:2], _without_absent(node.inputs[2:])
        middle, end = self.carried, self.carried + len(self.scans)
        outputs = self.body.outputs
        return RepeatedGraph(
            body=self.body,
            carried=operands[:middle],
            entries=self.body.inputs[1:],
            results=outputs[1:] if self.stops else outputs,
            limit=limit,
            condition=condition,
            scanned=operands[middle:end],
            invariant=operands[end:],
            trip_count=self.trip_count,
            scans=self.scans,
            stacks=self.stacks,
            number=self.body.inputs[0],
            continues=outputs[0] if self.stops else None,
        )

    @override
    def forwarded_values(self, node: Node) -> Sequence[tuple[Value, Value]]:
        return self.repeated(node).forwarded_values(node.outputs)

    def invariants(self, node: Node) -> int:
        """Return the number of operands that are neither carried nor scanned."""
        return len(self.repeated(node).invariant)

    def macs(self, node: Node) -> int:
        """Return the multiply-accumulates of all iterations, or of one if the number is unknown."""
        return self.body.macs * (1 if self.trip_count is None else self.trip_count)

    def effort(self, node: Node) -> int | None:
        """Return the effort of all iterations and of stacking their results."""
        limit, body_effort = node.inputs[0], self.body.effort
        trip_count = self.trip_count
        if limit is not None and limit.data is not None:
            trip_count = max(int(limit.data.item()), 0)
        if trip_count is None or body_effort is None or self.stops:
            return None
        return trip_count * body_effort + sum(v.type.size for v in node.outputs)

    def _loop_conditions(
        self, inputs: Sequence[TensorType | None]
    ) -> tuple[TensorType | None, TensorType | None]:
        """Check and return the types of `limit` and `condition`."""
        if len(inputs) < 2 + self.carried + len(self.scans) or self.carried < 0:
            raise ModelError(
                f"Loop needs a limit, a condition (each may be absent), {self.carried} carried "
                f"and {len(self.scans)} scanned operands; got {len(inputs)} operands"
            )
        limit, condition = inputs[:2]
        if limit is not None and (limit.dtype is not DType.INT64 or limit.size != 1):
            raise ModelError(f"Loop needs a limit of one i64, got {limit}")
        if condition is not None and not _is_condition(condition):
            raise ModelError(f"Loop needs a condition of one bool, got {condition}")
        return limit, condition

    def _body_outputs(self) -> tuple[Value, ...]:
        """Return the body's outputs, without the bool that can end the loop."""
        outputs = self.body.outputs
        if not self.stops:
            return outputs
        if not outputs or not _is_condition(outputs[0].type):
            raise ModelError(
                f"Loop needs one bool as the first output of '{self.body.name}', got "
                f"{_list(_types(outputs))}"
            )
        return outputs[1:]

    def _stack(self, iterations: Sequence[tuple[Array, ...]], index: int, result: Value) -> Array:
        if not iterations:
            return np.zeros(result.type.shape, result.type.dtype.numpy)
        step = 1 if self.stacks[index] is Order.FORWARD else -1
        return np.stack([slices[index] for slices in iterations[::step]])


def _present(op: Op, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
    types = tuple(type_ for type_ in inputs if type_ is not None)
    if len(types) < len(inputs):
        raise ModelError(f"{op.name} cannot have an absent operand")
    return types


def _arrays(node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    arrays = tuple(array for array in inputs if array is not None)
    if len(arrays) < len(inputs):
        raise ModelError(f"{node.origin}: {node.op.name} cannot have an absent operand")
    return arrays


def _without_absent(values: Sequence[Value | None]) -> tuple[Value, ...]:
    return tuple(value for value in values if value is not None)


def _is_condition(type_: TensorType) -> bool:
    return type_.dtype is DType.BOOL and type_.size == 1


def _types(values: Sequence[Value | None]) -> tuple[TensorType, ...]:
    return tuple(value.type for value in values if value is not None)


def _unquantized(types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return tuple(TensorType(type_.shape, type_.dtype) for type_ in types)


def _list(types: Sequence[TensorType]) -> str:
    return f"({', '.join(map(str, types))})"


def _check_closed(op: Op, graph: Graph) -> None:
    if graph.states:
        raise ModelError(
            f"graph '{graph.name}' in {op.name} keeps state '{graph.states[0].before.name}': "
            "pass it as an operand instead"
        )


def _match(what: str, types: Sequence[TensorType], values: Sequence[Value]) -> None:
    if _unquantized(types) != _unquantized(_types(values)):
        raise ModelError(f"{what} {_list(types)}, which has {_list(_types(values))}")


def _check_quant(node: Node, types: Sequence[TensorType], values: Sequence[Value]) -> None:
    for type_, value in zip(types, values, strict=True):
        if type_.quant != value.type.quant:
            raise ModelError(
                f"{node.origin}: {type_} has {type_.quant}, but '{value.name}' of a graph in "
                f"{node.op.name} has {value.type.quant}; they must be equal"
            )


CASES: tuple[Case, ...] = ()

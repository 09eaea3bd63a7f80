"""If and While: operators that hold graphs.

The graphs are closed: they see their own inputs and constants only, and keep no state from one
inference to the next (what a loop carries are its operands). TensorFlow Lite's IF and WHILE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.errors import ModelError
from smelt.ir import Array, DType, Graph, Node, Op, TensorType, Value, evaluate
from smelt.ops.case import Case


@dataclass(frozen=True)
class If(Op):
    """Operands `(condition: bool of one element, *arguments)`: one graph runs on the arguments."""

    then_graph: Graph
    else_graph: Graph

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """See `Op.infer`."""
        types = _present(self, inputs)
        if not types or not _is_condition(types[0]):
            raise ModelError(f"If needs a condition of one bool first, got {_list(types)}")
        for graph in self.subgraphs:
            _check_closed(self, graph)
            _match(f"If passes to '{graph.name}'", types[1:], graph.inputs)
        outputs = _types(self.then_graph.outputs)
        _match(f"If expects of '{self.else_graph.name}'", outputs, self.else_graph.outputs)
        return _bare(outputs)

    def check(self, node: Node) -> None:
        """Both graphs have the quantization of the operands and the results."""
        for graph in self.subgraphs:
            _check_quant(node, _types(node.inputs)[1:], graph.inputs)
            _check_quant(node, _types(node.outputs), graph.outputs)

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """See `Op.reference`."""
        condition, *arguments = _arrays(node, inputs)
        chosen = self.then_graph if condition.item() else self.else_graph
        return evaluate(chosen, arguments).outputs

    def macs(self, node: Node) -> int:
        """Multiply-accumulates of the costlier graph."""
        del node
        return max(graph.macs for graph in self.subgraphs)


@dataclass(frozen=True)
class While(Op):
    """Operands are carried: while `condition` says true, `body` makes the next from the last."""

    condition: Graph
    body: Graph

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """See `Op.infer`."""
        types = _present(self, inputs)
        for graph in self.subgraphs:
            _check_closed(self, graph)
            _match(f"While passes to '{graph.name}'", types, graph.inputs)
        _match(f"While expects of '{self.body.name}'", types, self.body.outputs)
        results = _types(self.condition.outputs)
        if len(results) != 1 or not _is_condition(results[0]):
            raise ModelError(
                f"While needs one bool of its condition '{self.condition.name}', "
                f"got {_list(results)}"
            )
        return _bare(types)

    def check(self, node: Node) -> None:
        """Operands and results have the quantization of what the graphs take and give."""
        operands = _types(node.inputs)
        for values in (node.outputs, self.condition.inputs, self.body.inputs, self.body.outputs):
            _check_quant(node, operands, values)

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """See `Op.reference`."""
        carried = _arrays(node, inputs)
        while evaluate(self.condition, carried).outputs[0].item():
            carried = evaluate(self.body, carried).outputs
        return tuple(carried)

    def macs(self, node: Node) -> int:
        """Multiply-accumulates of one turn: how many there are is known at run time only."""
        del node
        return self.condition.macs + self.body.macs


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


def _is_condition(type_: TensorType) -> bool:
    return type_.dtype is DType.BOOL and type_.size == 1


def _types(values: Sequence[Value | None]) -> tuple[TensorType, ...]:
    return tuple(value.type for value in values if value is not None)


def _bare(types: Sequence[TensorType]) -> tuple[TensorType, ...]:
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
    if _bare(types) != _bare(_types(values)):
        raise ModelError(f"{what} {_list(types)}, which has {_list(_types(values))}")


def _check_quant(node: Node, types: Sequence[TensorType], values: Sequence[Value]) -> None:
    for type_, value in zip(types, values, strict=True):
        if type_.quant != value.type.quant:
            raise ModelError(
                f"{node.origin}: {type_} has {type_.quant} where '{value.name}' of a graph in "
                f"{node.op.name} has {value.type.quant}"
            )


CASES: tuple[Case, ...] = ()

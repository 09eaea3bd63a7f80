"""Converter of Gradient in ONNX's training preview: derivatives of a tensor by others.

It implements reverse accumulation (Griewank and Walther, "Evaluating Derivatives", 2008, section
3.2) over the nodes that were imported before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.frontend.onnx.scope import OnnxValue
from smelt.ir import Node, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.reshape import Reshape

GradientRule = Callable[[Operation, Node, Value], Sequence[Value]]
"""Returns the derivatives by a node's operands, given the derivative by its output."""


def _gradient(operation: Operation) -> list[OnnxValue]:
    if operation.scope.captures is not None:
        raise operation.refuse("derivatives inside If, Loop or Scan are not supported")
    xs, zs = operation.texts("xs"), operation.texts("zs", ())
    sources = [operation.value(index) for index in range(len(xs))]
    for index, name in enumerate((*xs, *zs)):
        if operation.scope.lookup(name) is not operation.operand(index):
            raise operation.refuse(
                f"its operand '{operation.value(index).name}' is not tensor '{name}' itself: "
                "derivatives are supported only at the values that the network itself computes"
            )
    y = operation.scope.lookup(operation.text("y"))
    if not isinstance(y, Value) or not y.type.dtype.is_float:
        raise operation.wrong("its y must be a float tensor")
    found = {y: operation.filled(y.type.shape, 1, y.type.dtype)}
    for node in reversed(_between(operation, sources)):
        if node.output in found and node.output not in sources:
            _accumulate(operation, node, found)
    return [found.get(x) or operation.filled(x.type.shape, 0, x.type.dtype) for x in sources]


def _between(operation: Operation, sources: Sequence[Value]) -> list[Node]:
    """Return the nodes that depend on the sources, in order."""
    reached, nodes = set(sources), list[Node]()
    for node in operation.scope.nodes:
        if any(value in reached for value in node.inputs):
            reached.update(node.outputs)
            nodes.append(node)
    return nodes


def _accumulate(operation: Operation, node: Node, found: dict[Value, Value]) -> None:
    """Add a node's contribution to the derivatives by its operands."""
    kind = node.op.kind if isinstance(node.op, Binary | Unary) else node.op.name
    if kind not in _RULES:
        raise operation.refuse(
            f"the derivative of {node.op.name} ({node.origin}) is not supported; supported are "
            f"{', '.join(sorted(_RULES))}"
        )
    made = _RULES[kind](operation, node, found[node.output])
    for value, derivative in zip(node.inputs, made, strict=True):
        if value is not None and not value.is_constant:
            own = _summed(operation, derivative, value)
            found[value] = (
                operation.emit(Binary("add"), found[value], own) if value in found else own
            )


def _summed(operation: Operation, derivative: Value, like: Value) -> Value:
    """Return the derivative by an operand that was broadcast: sum over the repeated elements."""
    wide, own = derivative.type.shape, like.type.shape
    padded = (*[1] * (len(wide) - len(own)), *own)
    axes = tuple(i for i, (n, size) in enumerate(zip(padded, wide, strict=True)) if n != size)
    if axes:
        derivative = operation.emit(Reduce("sum", axes, True), derivative)
    return operation.reshape(derivative, own)


def _binary(operation: Operation, kind: str, a: Value, b: Value) -> Value:
    return operation.emit(Binary(kind), a, b)


def _negated(operation: Operation, value: Value) -> Value:
    return operation.emit(Unary("neg"), value)


def _divided(operation: Operation, node: Node, by_output: Value) -> Sequence[Value]:
    """Return the derivatives of a / b: d / b by a, and -(d / b) * (a / b) by b."""
    by_a = _binary(operation, "div", by_output, node.input(1))
    return by_a, _negated(operation, _binary(operation, "mul", by_a, node.output))


_RULES: dict[str, GradientRule] = {
    "add": lambda operation, node, d: (d, d),
    "sub": lambda operation, node, d: (d, _negated(operation, d)),
    "mul": lambda operation, node, d: (
        _binary(operation, "mul", d, node.input(1)),
        _binary(operation, "mul", d, node.input(0)),
    ),
    "div": _divided,
    "neg": lambda operation, node, d: (_negated(operation, d),),
    "exp": lambda operation, node, d: (_binary(operation, "mul", d, node.output),),
    Reshape.__name__: lambda operation, node, d: (d,),
}

CONVERTERS: dict[str, OnnxConverter] = {"ai.onnx.preview.training::Gradient": _gradient}
"""Converter of each operator, by name."""

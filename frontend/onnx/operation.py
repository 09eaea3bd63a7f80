"""Conversion of one operator of an ONNX graph to nodes.

A converter takes an `Operation` and returns the values of the operator's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.onnx.operands import Operands
from smelt.frontend.onnx.scope import OnnxValue
from smelt.ir import Array, DType, Graph, Node, Op, Quant, Rounding, TensorType, Value
from smelt.ir.budget import spend
from smelt.ir.evaluate import compute
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.transpose import Transpose

Results = OnnxValue | Sequence[OnnxValue]
OnnxConverter = Callable[["Operation"], Results | None]
"""Adds nodes for an operator, and returns the values of its outputs, in order.

It may return None before it adds any node; then the operator is replaced by its function in the
standard.
"""


@dataclass(frozen=True)
class Declared:
    """Converter of an operator that ONNX does not define, with all attributes it may have."""

    convert: OnnxConverter
    attributes: tuple[str, ...]

    def __call__(self, operation: Operation) -> Results | None:
        """Convert `operation`."""
        return self.convert(operation)


@dataclass(frozen=True, kw_only=True)
class Operation(Operands):
    """An operator that a converter replaces by nodes."""

    def emit(self, op: Op, *inputs: Value | None, quant: Quant | None = None) -> Value:
        """Add a node with one output and return the output; `quant` is its quantization.

        If all operands are constant, the node is computed at once, and its output is constant.

        Raises:
            ModelError: the operands do not fit the operator.
        """
        (output,) = self.emit_all(op, *inputs, quants=(quant,))
        return output

    def emit_all(
        self, op: Op, *inputs: Value | None, quants: Sequence[Quant | None] | None = None
    ) -> tuple[Value, ...]:
        """Add a node with any number of outputs; see `emit`.

        Outputs without elements are constants too, because there is nothing to compute.
        """
        try:
            types = op.infer([None if v is None else v.type for v in inputs])
        except (ModelError, UnsupportedError) as error:
            raise type(error)(f"{self}: {error}") from error
        quants = quants or (None,) * len(types)
        outputs = tuple(
            Value(self.scope.unique(self._stem()), replace(type_, quant=quant))
            for type_, quant in zip(types, quants, strict=True)
        )
        present = [v for v in (*inputs, *outputs) if v is not None]
        rounding = Rounding.ONNX if any(v.type.is_quantized for v in present) else None
        node = Node(op, tuple(inputs), outputs, self.origin, rounding)
        op.check(node)
        if all(type_.size == 0 for type_ in types):
            return tuple(
                Value.constant(v.name, np.zeros(v.type.shape, v.type.dtype.numpy), v.type.quant)
                for v in outputs
            )
        if all(v is None or v.is_constant for v in inputs):
            return self._computed(node)
        self.scope.add(node)
        return outputs

    def _computed(self, node: Node) -> tuple[Value, ...]:
        arrays = compute(node, [None if v is None else v.data for v in node.inputs])
        return tuple(
            Value.constant(value.name, array, value.type.quant)
            for value, array in zip(node.outputs, arrays, strict=True)
        )

    def _stem(self) -> str:
        return next((name for name in self.outputs if name), self.kind.lower())

    def afford(self, shape: Sequence[int], each: int = 1) -> None:
        """Count the work of making an array of constants: `each` operations for each element.

        Raises:
            UnsupportedError: it is more than the budget allows; see `budget.Budget`.
        """
        spend(self, prod(shape) * each)

    def filled(
        self, shape: Sequence[int], number: float, dtype: DType, quant: Quant | None = None
    ) -> Value:
        """Return a constant with equal elements, which are stored ones if there is a `quant`."""
        try:
            type_ = TensorType(tuple(shape), dtype)
        except UnsupportedError as error:
            raise self.refuse(str(error)) from error
        self.afford(shape)
        return self.literal(np.full(type_.shape, number, dtype.numpy), quant)

    def literal(self, array: Array, quant: Quant | None = None) -> Value:
        """Return a new constant; call `afford` before making a large array."""
        spend(self, array.size)
        return Value.constant(self.scope.unique(f"{self._stem()}:constant"), array, quant)

    def scalar(self, number: float, like: Value) -> Value:
        """Return a constant of one element without axes, with the element type of `like`."""
        return self.literal(np.asarray(number, like.type.dtype.numpy))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Return the value with another shape; the value itself if it has that shape."""
        return (
            value
            if value.type.shape == tuple(shape)
            else self.emit(Reshape(tuple(shape)), value, quant=value.type.quant)
        )

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """Return the value with its axes permuted; the value itself if no axis moves."""
        if list(permutation) == sorted(permutation):
            return value
        return self.emit(Transpose(tuple(permutation)), value, quant=value.type.quant)

    def channels_last(self, value: Value) -> Value:
        """Return `[n, c, ...]` transposed to `[n, ..., c]`."""
        rank = len(value.type.shape)
        return self.transpose(value, (0, *range(2, rank), 1))

    def channels_first(self, value: Value) -> Value:
        """Return `[n, ..., c]` transposed to `[n, c, ...]`."""
        rank = len(value.type.shape)
        return self.transpose(value, (0, rank - 1, *range(1, rank - 1)))

    def apply(
        self,
        kind: str,
        *inputs: Value | None,
        version: int = 21,
        attributes: Sequence[onnx.AttributeProto] = (),
        outputs: int = 1,
        **numbers: int,
    ) -> tuple[Value, ...]:
        """Convert another operator of the standard as part of this one, and return its outputs.

        Args:
            kind: its name.
            inputs: its operands.
            version: version of the operator set that defines it.
            attributes: attributes that are passed to it.
            outputs: number of its outputs that are needed.
            numbers: additional integer attributes.
        """
        node = onnx.NodeProto(op_type=kind, attribute=attributes)
        node.attribute.extend(onnx.helper.make_attribute(n, v) for n, v in numbers.items())
        stem = f"{self._stem()}:{kind.lower()}"
        node.output.extend(f"{stem}:{i}" if i else stem for i in range(outputs))
        return self.scope.apply(node, inputs, version, self.origin)

    # Sub-graphs

    def subgraph(
        self, attribute: str, inputs: Sequence[TensorType | Value] = ()
    ) -> tuple[Graph, tuple[Value, ...]]:
        """Return the graph in an attribute as a closed graph, and the outer values that it uses.

        Args:
            attribute: name of the attribute.
            inputs: types of the graph's inputs, or constants for them.

        Returns:
            The graph, with its own inputs followed by one for each outer value that it uses; and
            these outer values.
        """
        return self.scope.subgraph(self.graph(attribute), inputs)

    def inline(self, attribute: str, inputs: Sequence[OnnxValue] = ()) -> tuple[OnnxValue, ...]:
        """Convert the graph in an attribute in place, and return the values of its outputs."""
        return self.scope.inline(self.graph(attribute), inputs)

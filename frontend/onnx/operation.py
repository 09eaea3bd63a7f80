"""One operator of an ONNX graph while it is converted, and the nodes that it becomes.

A converter takes an `Operation` and returns the values that stand for the operator's outputs.
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
"""Emits nodes for an operator; returns the values of its outputs, in their order.

Or None, before it emits any, to leave the operator to its function in the standard.
"""


@dataclass(frozen=True)
class Declared:
    """The converter of an operator that ONNX does not define, with all attributes it may have."""

    convert: OnnxConverter
    attributes: tuple[str, ...]

    def __call__(self, operation: Operation) -> Results | None:
        """Convert `operation`."""
        return self.convert(operation)


@dataclass(frozen=True, kw_only=True)
class Operation(Operands):
    """An operator that is replaced by nodes."""

    def emit(self, op: Op, *inputs: Value | None, quant: Quant | None = None) -> Value:
        """Add a node of one output and return that; `quant` is the output's quantization.

        A node whose operands are all constant is computed at once, and its output is constant.

        Raises:
            ModelError: the operands do not fit the operator.
        """
        (output,) = self.emit_all(op, *inputs, quants=(quant,))
        return output

    def emit_all(
        self, op: Op, *inputs: Value | None, quants: Sequence[Quant | None] | None = None
    ) -> tuple[Value, ...]:
        """Add a node of any number of outputs; see `emit`.

        Where these have no elements, nothing is left to compute: they are constants too.
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
        """Count what is about to be made of constants: an array, and operations an element.

        Raises:
            UnsupportedError: it is too much; see `budget.Budget`.
        """
        spend(self, prod(shape) * each)

    def filled(
        self, shape: Sequence[int], number: float, dtype: DType, quant: Quant | None = None
    ) -> Value:
        """A constant whose elements, stored ones if there is a `quant`, are all the same."""
        try:
            type_ = TensorType(tuple(shape), dtype)
        except UnsupportedError as error:
            raise self.refuse(str(error)) from error
        self.afford(shape)
        return self.literal(np.full(type_.shape, number, dtype.numpy), quant)

    def literal(self, array: Array, quant: Quant | None = None) -> Value:
        """A constant that the graph of the file does not have; see `afford` for large ones."""
        spend(self, array.size)
        return Value.constant(self.scope.unique(f"{self._stem()}:constant"), array, quant)

    def scalar(self, number: float, like: Value) -> Value:
        """A constant of one element and no axes, of the element type of `like`."""
        return self.literal(np.asarray(number, like.type.dtype.numpy))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """The value in another shape; itself where it has that shape."""
        return (
            value
            if value.type.shape == tuple(shape)
            else self.emit(Reshape(tuple(shape)), value, quant=value.type.quant)
        )

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """The value with its axes in another order; itself where they stay."""
        if list(permutation) == sorted(permutation):
            return value
        return self.emit(Transpose(tuple(permutation)), value, quant=value.type.quant)

    def channels_last(self, value: Value) -> Value:
        """`[n, c, ...]` to `[n, ..., c]`."""
        rank = len(value.type.shape)
        return self.transpose(value, (0, *range(2, rank), 1))

    def channels_first(self, value: Value) -> Value:
        """`[n, ..., c]` to `[n, c, ...]`."""
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
        """Convert another operator of the standard in this one's place.

        Args:
            kind: its name.
            inputs: its operands.
            version: of the operator set that defines it.
            attributes: handed on to it.
            outputs: how many of its outputs are wanted.
            numbers: further attributes, which are integers.
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
        """The graph in an attribute as a closed one, with the outer values that it uses.

        Args:
            attribute: name of the attribute.
            inputs: types of what is passed to the graph's own inputs, or constants.

        Returns:
            The graph, whose inputs are its own and then one for each outer value it uses; and
            these outer values.
        """
        return self.scope.subgraph(self.graph(attribute), inputs)

    def inline(self, attribute: str, inputs: Sequence[OnnxValue] = ()) -> tuple[OnnxValue, ...]:
        """Convert the graph in an attribute in place, and return what its outputs stand for."""
        return self.scope.inline(self.graph(attribute), inputs)

"""One operator of an ONNX graph while it is converted: attributes, operands, emission of nodes.

A converter takes an `Operation` and returns the values that stand for the operator's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

import numpy as np
import onnx

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.onnx.attributes import Attributes
from smelt.frontend.onnx.tensors import array_of
from smelt.ir import Array, DType, Graph, Node, Op, Origin, Quant, Rounding, TensorType, Value
from smelt.ir.budget import spend
from smelt.ir.evaluate import compute
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.transpose import Transpose


@dataclass(frozen=True)
class TensorSequence:
    """A sequence in ONNX's sense: tensors of one element type, their number and shapes known.

    It exists while the network is imported and leaves nothing in the graph.
    """

    dtype: DType
    items: tuple[Value, ...]


OnnxValue = Value | TensorSequence
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


class Scope(Protocol):
    """What an operation asks of the graph that it stands in.

    `nodes` are those made so far; `captures` is None unless the graph is a closed one, which takes
    what it uses from outside as inputs.
    """

    nodes: list[Node]
    captures: dict[Value, Value] | None

    def lookup(self, name: str) -> OnnxValue:
        """What a name stands for, in this graph or one around it."""
        ...

    def unique(self, name: str) -> str:
        """A value name that nothing in the graph has yet."""
        ...

    def add(self, node: Node) -> None:
        """Append a node."""
        ...

    def subgraph(
        self, graph: onnx.GraphProto, inputs: Sequence[TensorType | Value]
    ) -> tuple[Graph, tuple[Value, ...]]:
        """A graph as a closed one, whose last inputs are the outer values that come second."""
        ...

    def inline(self, graph: onnx.GraphProto, inputs: Sequence[OnnxValue]) -> tuple[OnnxValue, ...]:
        """Convert a graph in place, and return what its outputs stand for."""
        ...

    def apply(
        self, node: onnx.NodeProto, inputs: Sequence[Value | None], version: int, origin: Origin
    ) -> tuple[Value, ...]:
        """Convert an operator of that version of its operator set, which the file does not hold."""
        ...

    def element_type(self, name: str) -> int:
        """ONNX's code of a tensor's element type in the file; 0 where it is not known."""
        ...

    def known(self, value: Value) -> Array | None:
        """The array of a constant, stored as integers or not; None for any other value."""
        ...

    def sources(self, value: Value) -> tuple[Value, ...]:
        """The network's inputs that a value is computed from."""
        ...


@dataclass(frozen=True, kw_only=True)
class Operation(Attributes):
    """An operator: `kind` is its name in ONNX, `version` that of its operator set.

    `operands` has None where an optional input is left out.
    """

    kind: str
    version: int
    origin: Origin
    operands: tuple[OnnxValue | None, ...]
    outputs: tuple[str, ...]
    proto: onnx.NodeProto
    scope: Scope

    def __str__(self) -> str:
        return str(self.origin)

    # Operands

    @property
    def count(self) -> int:
        """How many operands are given, absent ones in the middle included."""
        return len(self.operands)

    def optional(self, index: int) -> Value | None:
        """The operand at `index`, or None where it is left out; `ModelError` for a sequence."""
        operand = self.operands[index] if index < len(self.operands) else None
        if isinstance(operand, TensorSequence):
            raise ModelError(f"{self} takes a tensor as input {index}, not a sequence of tensors")
        return operand

    def element_type(self, index: int) -> int:
        """ONNX's code of the operand's element type in the file; 0 where it is not known."""
        return self.scope.element_type(self.proto.input[index])

    def has_operand(self, index: int) -> bool:
        """Whether the operand at `index` is given."""
        return index < len(self.operands) and self.operands[index] is not None

    def operand(self, index: int) -> OnnxValue:
        """The tensor or sequence at `index`; `ModelError` where it is missing."""
        operand = self.operands[index] if index < len(self.operands) else None
        return operand if isinstance(operand, TensorSequence) else self.value(index)

    def sequence(self, index: int) -> TensorSequence:
        """The sequence at `index`; `ModelError` where a tensor or nothing is there."""
        operand = self.operand(index)
        if isinstance(operand, Value):
            raise ModelError(
                f"{self} takes a sequence as input {index}, not the tensor '{operand.name}'"
            )
        return operand

    def value(self, index: int) -> Value:
        """The operand at `index`; `ModelError` where it is missing."""
        value = self.optional(index)
        if value is None:
            raise ModelError(f"{self} has no input {index}: the file is damaged")
        return value

    def values(self) -> tuple[Value, ...]:
        """All operands, none of which may be missing."""
        return tuple(self.value(index) for index in range(self.count))

    def image(self, index: int, rank: int = 4) -> Value:
        """The operand at `index`, which must have that rank."""
        value = self.value(index)
        if len(value.type.shape) != rank:
            raise ModelError(
                f"{self} needs an input of rank {rank}, '{value.name}' is {value.type}"
            )
        return value

    def constant(self, index: int, role: str) -> Array:
        """The operand at `index`, which must be known at compile time.

        Raises:
            UnsupportedError: it is computed at run time.
        """
        value = self.value(index)
        known = self.scope.known(value)
        if known is None:
            raise UnsupportedError(
                f"{self}: its {role} '{value.name}' is computed as the network runs, Smelt needs "
                "it when it compiles: give the inputs fixed shapes (--dim, --shape), or export "
                "the network with constants there"
            )
        return known

    def number(self, index: int, role: str) -> float:
        """The one element of a constant operand; an int where that holds integers."""
        array = self.constant(index, role)
        if array.size != 1:
            value = self.value(index)
            raise self.wrong(f"its {role} '{value.name}' is {value.type}, not one number")
        return array.reshape(()).item()

    def whole_number(self, index: int, role: str) -> int:
        """The one integer that a constant operand holds."""
        number = self.number(index, role)
        if not isinstance(number, int):
            raise self.wrong(f"its {role} '{self.value(index).name}' is {number}, not an integer")
        return int(number)

    def truth(self, index: int, role: str) -> bool | None:
        """The one bool that an operand holds; None where it is computed as the network runs."""
        value = self.value(index)
        if value.type.size != 1 or value.type.dtype is not DType.BOOL:
            raise self.wrong(f"its {role} '{value.name}' is {value.type}, not one bool")
        return None if value.data is None else bool(value.data.reshape(()))

    def weights(self, index: int, role: str = "weights") -> Value:
        """The operand at `index`; where it is constant, every element must be finite."""
        value = self.value(index)
        if value.data is not None and not np.isfinite(value.data).all():
            raise ModelError(f"{self}: its {role} '{value.name}' hold infinity or NaN")
        return value

    def given(self, attribute: str, index: int) -> tuple[int, ...] | None:
        """Integers from an attribute (older operator sets) or a constant operand (newer ones)."""
        if attribute and self.has(attribute):
            return self.integers(attribute)
        if self.optional(index) is None:
            return None
        array = self.constant(index, attribute or f"input {index}")
        if array.dtype.kind not in "iu":
            raise ModelError(f"{self}: '{self.value(index).name}' must hold integers")
        return tuple(int(i) for i in array.ravel())

    def axis(self, axis: int, rank: int) -> int:
        """An axis that may count from the end, as one that does not."""
        if not -rank <= axis < max(rank, 1):
            raise ModelError(f"{self} names axis {axis} of a tensor of rank {rank}")
        return axis + rank if axis < 0 else axis

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Several axes; see `axis`."""
        return tuple(self.axis(axis, rank) for axis in axes)

    # Nodes

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

    def tensor(self, name: str) -> Array:
        """An attribute that is a tensor."""
        return array_of(self.stored_tensor(name), f"attribute '{name}' of {self}")

    def refuse(self, reason: str) -> UnsupportedError:
        """An error to raise: the operator, and what of it Smelt cannot do."""
        return UnsupportedError(f"{self}: {reason}")

    def wrong(self, reason: str) -> ModelError:
        """An error to raise: the operator, and what the file says of it that cannot be."""
        return ModelError(f"{self}: {reason}")

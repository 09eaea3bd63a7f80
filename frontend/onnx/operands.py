"""Operands and attributes of an operator in an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.onnx.attributes import Attributes
from smelt.frontend.onnx.scope import OnnxValue, Scope, TensorSequence
from smelt.frontend.onnx.tensors import array_of
from smelt.ir import Array, DType, Origin, Value


@dataclass(frozen=True, kw_only=True)
class Operands(Attributes):
    """An operator: `kind` is its name in ONNX, `version` the version of its operator set.

    `operands` has None for each optional input that is omitted.
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

    @property
    def count(self) -> int:
        """Number of operands, including omitted ones before the last."""
        return len(self.operands)

    def optional(self, index: int) -> Value | None:
        """Return the operand at `index`, or None if omitted. Raises `ModelError` for a sequence."""
        operand = self.operands[index] if index < len(self.operands) else None
        if isinstance(operand, TensorSequence):
            raise ModelError(f"{self} takes a tensor as input {index}, not a sequence of tensors")
        return operand

    def element_type(self, index: int) -> int:
        """Return ONNX's code of the operand's element type in the file; 0 if it is unknown."""
        return self.scope.element_type(self.proto.input[index])

    def has_operand(self, index: int) -> bool:
        """Return whether the operand at `index` is present."""
        return index < len(self.operands) and self.operands[index] is not None

    def operand(self, index: int) -> OnnxValue:
        """Return the tensor or sequence at `index`. Raises `ModelError` if it is missing."""
        operand = self.operands[index] if index < len(self.operands) else None
        return operand if isinstance(operand, TensorSequence) else self.value(index)

    def sequence(self, index: int) -> TensorSequence:
        """Return the sequence at `index`. Raises `ModelError` for a tensor, or if it is missing."""
        operand = self.operand(index)
        if isinstance(operand, Value):
            raise ModelError(
                f"{self} takes a sequence as input {index}, not the tensor '{operand.name}'"
            )
        return operand

    def value(self, index: int) -> Value:
        """Return the operand at `index`. Raises `ModelError` if it is missing."""
        value = self.optional(index)
        if value is None:
            raise ModelError(f"{self} has no input {index}: the file is damaged")
        return value

    def values(self) -> tuple[Value, ...]:
        """Return all operands. Raises `ModelError` if one is missing."""
        return tuple(self.value(index) for index in range(self.count))

    def image(self, index: int, rank: int = 4) -> Value:
        """Return the operand at `index`, which must have `rank` dimensions."""
        value = self.value(index)
        if len(value.type.shape) != rank:
            raise ModelError(
                f"{self} needs an input with {rank} dimensions, but '{value.name}' is {value.type}"
            )
        return value

    def constant(self, index: int, role: str) -> Array:
        """Return the operand at `index`, which must be known at compile time.

        Raises:
            UnsupportedError: it is computed at run time.
        """
        value = self.value(index)
        known = self.scope.known(value)
        if known is None:
            raise UnsupportedError(
                f"{self}: its {role} '{value.name}' is computed at run time, but Smelt needs it at "
                "compile time: give the inputs fixed shapes (--dim, --shape), or export the "
                "network with a constant there"
            )
        return known

    def number(self, index: int, role: str) -> float:
        """Return the single element of a constant operand; an int if it has integers."""
        array = self.constant(index, role)
        if array.size != 1:
            value = self.value(index)
            raise self.wrong(f"its {role} '{value.name}' is {value.type}, but must be one number")
        return array.reshape(()).item()

    def whole_number(self, index: int, role: str) -> int:
        """Return the single element of a constant operand, which must be an integer."""
        number = self.number(index, role)
        if not isinstance(number, int):
            name = self.value(index).name
            raise self.wrong(f"its {role} '{name}' is {number}, but must be an integer")
        return int(number)

    def boolean(self, index: int, role: str) -> bool | None:
        """Return the bool of a constant operand of one element; None if it is not constant."""
        value = self.value(index)
        if value.type.size != 1 or value.type.dtype is not DType.BOOL:
            raise self.wrong(f"its {role} '{value.name}' is {value.type}, but must be one bool")
        return None if value.data is None else bool(value.data.reshape(()))

    def weights(self, index: int, role: str = "weights") -> Value:
        """Return the operand at `index`; if it is constant, its elements must be finite."""
        value = self.value(index)
        if value.data is not None and not np.isfinite(value.data).all():
            raise ModelError(f"{self}: its {role} '{value.name}' contain infinity or NaN")
        return value

    def attribute_or_operand(self, attribute: str, index: int) -> tuple[int, ...] | None:
        """Return integers from an attribute (older operator sets) or from a constant operand."""
        if attribute and self.has(attribute):
            return self.integers(attribute)
        if self.optional(index) is None:
            return None
        array = self.constant(index, attribute or f"input {index}")
        if array.dtype.kind not in "iu":
            raise ModelError(
                f"{self}: its {attribute or 'operand'} '{self.value(index).name}' must be integers"
            )
        return tuple(int(i) for i in array.ravel())

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from 0; it may be given from the end, as a negative number."""
        if not -rank <= axis < max(rank, 1):
            raise ModelError(
                f"{self}: axis {axis} does not exist in a tensor with {rank} dimensions"
            )
        return axis + rank if axis < 0 else axis

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return several axes, each as `axis` does."""
        return tuple(self.axis(axis, rank) for axis in axes)

    def tensor(self, name: str) -> Array:
        """Return an attribute that is a tensor."""
        return array_of(self.stored_tensor(name), f"attribute '{name}' of {self}")

    def refuse(self, reason: str) -> UnsupportedError:
        """Return an error for something that Smelt does not support about the operator."""
        return UnsupportedError(f"{self}: {reason}")

    def wrong(self, reason: str) -> ModelError:
        """Return an error for something that is invalid in the file about the operator."""
        return ModelError(f"{self}: {reason}")

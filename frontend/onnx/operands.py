"""What an operator of an ONNX graph is given: operands, constants among them, and attributes."""

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

    def tensor(self, name: str) -> Array:
        """An attribute that is a tensor."""
        return array_of(self.stored_tensor(name), f"attribute '{name}' of {self}")

    def refuse(self, reason: str) -> UnsupportedError:
        """An error to raise: the operator, and what of it Smelt cannot do."""
        return UnsupportedError(f"{self}: {reason}")

    def wrong(self, reason: str) -> ModelError:
        """An error to raise: the operator, and what the file says of it that cannot be."""
        return ModelError(f"{self}: {reason}")

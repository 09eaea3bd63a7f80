"""What an operator of a TFLite file is given: operands, constants among them, and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.tflite.file import StoredOperator, reading, short_name
from smelt.frontend.tflite.options import OperatorOptions
from smelt.ir import Array, DType, Node, Origin, TensorType, Value


class ImportedNetwork(Protocol):
    """What an operation needs of the network being imported."""

    def value(self, tensor: int) -> Value:
        """The value that stands for a tensor."""
        ...

    def dequantized(self, tensor: int) -> Value:
        """A constant tensor as float32."""
        ...

    def unique(self, name: str) -> str:
        """A name for a value that is no tensor of the file: `name`, or one like it if taken."""
        ...

    def type(self, tensor: int) -> TensorType:
        """The type that the file gives to a tensor."""
        ...

    def add(self, node: Node) -> None:
        """Append a node; its outputs stand for the operator's output tensors."""
        ...

    def fold(self, tensor: int, source: Value) -> None:
        """Let a constant, as float32, stand for an output tensor."""
        ...

    def settle(self, tensor: int, array: Array) -> None:
        """Let an array that the network would always compute stand for an output tensor."""
        ...

    def quoted(self, tensor: int) -> str:
        """A tensor's name for a message."""
        ...

    def state(self, tensor: int, shape: tuple[int, ...]) -> Value:
        """What a variable tensor holds before an inference, in a shape of as many elements."""
        ...

    def update(self, before: Value, after: Value) -> None:
        """Let a value be what a variable tensor holds after an inference."""
        ...

    def declared(self, tensor: int) -> tuple[int, ...]:
        """The shape that the file gives to a tensor, -1 where it leaves a dimension open."""
        ...

    def shaped(self, tensor: int, shape: tuple[int, ...]) -> Value:
        """The value that stands for a tensor, now that its open dimensions are known."""
        ...


class TfliteOperands:
    """An operator of the file with its operands as values."""

    def __init__(self, stored: StoredOperator, network: ImportedNetwork) -> None:
        name = short_name(network.quoted(stored.outputs[0])[1:-1]) if stored.outputs else ""
        self.kind = stored.kind
        self.origin = Origin(stored.kind, stored.index, name)
        self.spread = stored.spread
        self._stored = stored
        self._network = network

    def __str__(self) -> str:
        return str(self.origin)

    @property
    def output_count(self) -> int:
        """How many outputs the operator has."""
        return len(self._stored.outputs)

    @property
    def output_type(self) -> TensorType:
        """Type of the first output, as the file has it."""
        return self._network.type(self._tensor(self._stored.outputs, 0, "output"))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the first output, -1 where the file leaves a dimension open."""
        return self._network.declared(self._tensor(self._stored.outputs, 0, "output"))

    def input(self, index: int) -> Value:
        """The operand at `index`; `ModelError` where the file leaves it out."""
        return self._network.value(self._operand(index))

    def optional(self, index: int) -> Value | None:
        """The operand at `index`, or None where the file leaves it out."""
        return self.input(index) if self.has(index) else None

    def has(self, index: int) -> bool:
        """Whether the file gives an operand at `index`."""
        return index < len(self._stored.inputs) and self._stored.inputs[index] >= 0

    def inputs(self) -> tuple[Value, ...]:
        """All operands, none of them left out."""
        return tuple(self.input(i) for i in range(len(self._stored.inputs)))

    def constant(self, index: int, role: str) -> Value:
        """An operand that must be constant: `role` says what it is."""
        value = self.input(index)
        if not value.is_constant:
            raise UnsupportedError(
                f"{self}: its {role} '{value.name}' are computed by the network; "
                "Smelt needs them constant"
            )
        return value

    def integers(self, index: int, role: str) -> tuple[int, ...]:
        """The elements of a constant integer operand, flattened."""
        value = self.constant(index, role)
        if value.type.dtype not in (DType.INT32, DType.INT64):
            raise ModelError(f"{self}: its {role} '{value.name}' are {value.type}, not integers")
        return tuple(int(n) for n in value.array.ravel())

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Axes counted from 0, sorted, each once; `ModelError` where one is out of range."""
        if not all(-rank <= axis < rank for axis in axes):
            raise ModelError(f"{self}: axes {list(axes)} of a tensor with {rank} dimensions")
        return tuple(sorted({axis % rank for axis in axes}))

    def axis(self, axes: Sequence[int], rank: int) -> int:
        """The one axis of `axes`, counted from 0; `ModelError` where there is not one in range."""
        if len(axes) != 1:
            raise ModelError(f"{self}: its axis holds {len(axes)} numbers {list(axes)}, not one")
        return self.axes(axes, rank)[0]

    def weights(self, channel_axis: int, index: int = 1, data: int = 0) -> Value:
        """Constant weights; as float32 where the operator computes in floating point.

        Dynamic-range networks store 8-bit weights under float activations. `channel_axis` is
        the dimension that scales per channel belong to, `data` the operand that they multiply.
        """
        weights = self.constant(index, "weights")
        if weights.type.size == 0:
            raise ModelError(f"{self}: weights '{weights.name}' {weights.type} are empty")
        expected = self.input(data).type.dtype
        if expected is DType.FLOAT32 and weights.type.dtype is not DType.FLOAT32:
            return self._finite(self._network.dequantized(self._operand(index)), "weights")
        if weights.type.dtype is not expected:
            raise ModelError(
                f"{self}: weights '{weights.name}' are {weights.type}, not {expected.value}"
            )
        quant = weights.type.quant
        if quant is not None and quant.axis not in (None, channel_axis):
            raise ModelError(
                f"{self}: weights '{weights.name}' have scales for dimension {quant.axis}, not "
                f"for their output channels (dimension {channel_axis})"
            )
        return self._finite(weights, "weights")

    def bias(self, index: int = 2, data: int = 0) -> Value | None:
        """The constant bias, or None; `ModelError` unless int32, or float32 in float networks."""
        if not self.has(index):
            return None
        bias, x = self.constant(index, "bias"), self.input(data).type.dtype
        expected = DType.FLOAT32 if x is DType.FLOAT32 else DType.INT32
        if bias.type.dtype is not expected:
            raise ModelError(f"{self}: bias '{bias.name}' is {bias.type}, not {expected.value}")
        return self._finite(bias, "bias")

    def _finite(self, constant: Value, role: str) -> Value:
        if not np.isfinite(constant.array).all():
            raise ModelError(f"{self}: its {role} '{constant.name}' hold infinity or NaN")
        return constant

    def options(self, table: Any, *, optional: bool = False) -> OperatorOptions:
        """The options, read with a class of the package `tflite`.

        Raises:
            ModelError: the operator has none (unless `optional`), or another operator's.
        """
        expected, found = table.__name__, self._stored.options_type
        if self._stored.options is None or found == "NONE":
            if not optional:
                raise ModelError(f"{self} has no {expected}: the file is corrupted")
            return OperatorOptions(str(self), None)
        if found != expected:
            raise ModelError(f"{self} has {found} instead of {expected}: the file is corrupted")
        reader = table()
        with reading(f"options of {self}"):
            reader.Init(self._stored.options.Bytes, self._stored.options.Pos)
        return OperatorOptions(str(self), reader)

    def refuse_open_shapes(self) -> None:
        """Blame a contradiction on shapes that the file leaves open, where there are any."""
        for tensor in (*self._stored.inputs, *self._stored.outputs):
            if tensor >= 0 and -1 in self._network.declared(tensor)[1:]:
                raise UnsupportedError(
                    f"{self}: the shape of {self._network.quoted(tensor)} is computed by the "
                    "network as it runs: convert the network with a fixed input shape, the "
                    "batch included"
                )

    def _operand(self, index: int) -> int:
        return self._tensor(self._stored.inputs, index, "input")

    def _tensor(self, tensors: tuple[int, ...], index: int, role: str) -> int:
        if index >= len(tensors) or tensors[index] < 0:
            raise ModelError(f"{self} has no {role} {index}: the file is corrupted")
        return tensors[index]

"""Operands and options of an operator in a TFLite file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.tflite.file import StoredOperator, reading, short_name
from smelt.frontend.tflite.options import OperatorOptions
from smelt.ir import Array, DType, Graph, Node, Origin, TensorType, Value


class ImportedNetwork(Protocol):
    """Interface of the importer for converters."""

    def value(self, tensor: int) -> Value:
        """Return the value of a tensor."""
        ...

    def dequantized(self, tensor: int) -> Value:
        """Return a constant tensor as float32."""
        ...

    def unique(self, name: str) -> str:
        """Return a unique name, like `name`, for a value that is not a tensor of the file."""
        ...

    def type(self, tensor: int) -> TensorType:
        """Return the type that the file declares for a tensor."""
        ...

    def add(self, node: Node) -> None:
        """Append a node; its outputs are values of the operator's output tensors."""
        ...

    def fold(self, tensor: int, source: Value) -> None:
        """Use a constant, converted to float32, as an output tensor's value."""
        ...

    def set_constant(self, tensor: int, array: Array) -> None:
        """Use a constant array as an output tensor's value."""
        ...

    def alias(self, tensor: int, value: Value) -> None:
        """Use a value as that of a tensor."""
        ...

    def subgraph(self, index: int, where: str) -> Graph:
        """Return another subgraph of the file as a graph; `where` names the operator in errors."""
        ...

    def quoted(self, tensor: int) -> str:
        """Return a tensor's name, quoted for a message."""
        ...

    def state(self, tensor: int, shape: tuple[int, ...]) -> Value:
        """Return a variable tensor's value before an inference, reshaped to `shape`."""
        ...

    def update(self, before: Value, after: Value) -> None:
        """Set a variable tensor's value after an inference."""
        ...

    def declared(self, tensor: int) -> tuple[int, ...]:
        """Return the shape that the file declares for a tensor; -1 for unknown dimensions."""
        ...

    def shaped(self, tensor: int, shape: tuple[int, ...]) -> Value:
        """Set the shape of a tensor with unknown dimensions, and return its value."""
        ...


def options_of(
    stored: StoredOperator, table: Any, where: str, *, optional: bool
) -> OperatorOptions:
    """Return an operator's options; see `TfliteOperands.options`. `where` names it in errors."""
    expected, found = table.__name__, stored.options_type
    if stored.options is None or found == "NONE":
        if not optional:
            raise ModelError(f"{where} has no {expected}: the file is corrupted")
        return OperatorOptions(where, None)
    if found != expected:
        raise ModelError(f"{where} has {found} instead of {expected}: the file is corrupted")
    reader = table()
    with reading(f"options of {where}"):
        reader.Init(stored.options.Bytes, stored.options.Pos)
    return OperatorOptions(where, reader)


class TfliteOperands:
    """An operator of the file, with its operands as values."""

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
        """Number of the operator's outputs."""
        return len(self._stored.outputs)

    @property
    def output_type(self) -> TensorType:
        """Type of the first output, as the file declares it."""
        return self._network.type(self._tensor(self._stored.outputs, 0, "output"))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the first output; -1 for each dimension that the file leaves unknown."""
        return self._network.declared(self._tensor(self._stored.outputs, 0, "output"))

    def input(self, index: int) -> Value:
        """Return the operand at `index`. Raises `ModelError` if the file omits it."""
        return self._network.value(self._operand(index))

    def optional(self, index: int) -> Value | None:
        """Return the operand at `index`, or None if the file omits it."""
        return self.input(index) if self.has(index) else None

    def has(self, index: int) -> bool:
        """Return whether the file has an operand at `index`."""
        return index < len(self._stored.inputs) and self._stored.inputs[index] >= 0

    def inputs(self) -> tuple[Value, ...]:
        """Return all operands. Raises `ModelError` if the file omits one."""
        return tuple(self.input(i) for i in range(len(self._stored.inputs)))

    def constant(self, index: int, role: str) -> Value:
        """Return an operand that must be constant; `role` names it in messages."""
        value = self.input(index)
        if not value.is_constant:
            raise UnsupportedError(
                f"{self}: its {role} '{value.name}' must be constant, but the network computes "
                "it; export the network with a constant"
            )
        return value

    def integers(self, index: int, role: str) -> tuple[int, ...]:
        """Return the elements of a constant integer operand, flattened."""
        value = self.constant(index, role)
        if value.type.dtype not in (DType.INT32, DType.INT64):
            raise ModelError(f"{self}: its {role} '{value.name}' are {value.type}, not integers")
        return tuple(int(n) for n in value.array.ravel())

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return axes counted from 0, sorted, each once. Raises `ModelError` if out of range."""
        if not all(-rank <= axis < rank for axis in axes):
            raise ModelError(
                f"{self}: axes {list(axes)} are out of range for a tensor with {rank} dimensions"
            )
        return tuple(sorted({axis % rank for axis in axes}))

    def axis(self, axes: Sequence[int], rank: int) -> int:
        """Return the only axis of `axes`, counted from 0. Raises `ModelError` if out of range."""
        if len(axes) != 1:
            raise ModelError(f"{self}: its axis must be a single number, is {list(axes)}")
        return self.axes(axes, rank)[0]

    def subgraph(self, index: int) -> Graph:
        """Return another subgraph of the file, which the operator calls, as a graph of its own."""
        return self._network.subgraph(index, str(self))

    def as_float(self, index: int) -> Value:
        """Return a constant operand as float32; stored integers are dequantized."""
        value = self.input(index)
        if value.type.dtype is DType.FLOAT32:
            return value
        return self._network.dequantized(self._operand(index))

    def weights(self, channel_axis: int, index: int = 1, data: int = 0) -> Value:
        """Return constant weights; as float32 if the operator computes in floating point.

        Dynamic-range networks have 8-bit weights with float activations. `channel_axis` is the
        axis of per-channel scales. `data` is the index of the operand that is multiplied.
        """
        weights = self.constant(index, "weights")
        if weights.type.size == 0:
            raise ModelError(f"{self}: weights '{weights.name}' {weights.type} are empty")
        expected = self.input(data).type.dtype
        if expected is DType.FLOAT32:
            return self._finite(self.as_float(index), "weights")
        if weights.type.dtype is not expected:
            raise ModelError(
                f"{self}: weights '{weights.name}' are {weights.type}; with this input they must "
                f"be {expected.value}"
            )
        quant = weights.type.quant
        if quant is not None and quant.axis not in (None, channel_axis):
            raise ModelError(
                f"{self}: weights '{weights.name}' have scales along dimension {quant.axis}; they "
                f"must be along that of the output channels, {channel_axis}"
            )
        return self._finite(weights, "weights")

    def bias(self, index: int = 2, data: int = 0) -> Value | None:
        """Return the constant bias, or None. Raises `ModelError` if its element type is wrong."""
        if not self.has(index):
            return None
        bias, x = self.constant(index, "bias"), self.input(data).type.dtype
        expected = DType.FLOAT32 if x is DType.FLOAT32 else DType.INT32
        if bias.type.dtype is not expected:
            raise ModelError(
                f"{self}: bias '{bias.name}' is {bias.type}, but must be {expected.value}"
            )
        return self._finite(bias, "bias")

    def _finite(self, constant: Value, role: str) -> Value:
        if not np.isfinite(constant.array).all():
            raise ModelError(f"{self}: its {role} '{constant.name}' contain infinity or NaN")
        return constant

    def options(self, table: Any, *, optional: bool = False) -> OperatorOptions:
        """Return the options, read with a class of the package `tflite`.

        Raises:
            ModelError: the operator has no options (unless `optional`), or those of another kind.
        """
        return options_of(self._stored, table, str(self), optional=optional)

    def refuse_open_shapes(self) -> None:
        """Raise `UnsupportedError` if an operand's shape is unknown: it explains contradictions."""
        for tensor in (*self._stored.inputs, *self._stored.outputs):
            if tensor >= 0 and -1 in self._network.declared(tensor)[1:]:
                raise UnsupportedError(
                    f"{self}: the shape of {self._network.quoted(tensor)} is known only at run "
                    "time: convert the network with a fixed input shape, including the batch"
                )

    def _operand(self, index: int) -> int:
        return self._tensor(self._stored.inputs, index, "input")

    def _tensor(self, tensors: tuple[int, ...], index: int, role: str) -> int:
        if index >= len(tensors) or tensors[index] < 0:
            raise ModelError(f"{self} has no {role} {index}: the file is corrupted")
        return tensors[index]

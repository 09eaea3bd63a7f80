"""Reads a TFLite flatbuffer into plain records: each table once, with every index checked.

The generated readers of the package `tflite` check nothing. An offset outside of the file raises
any exception of the struct module or numpy, and a vector may have any length. Here, lengths are
bounded by the size of the file, and low-level exceptions become `ModelError`.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tflite
from flatbuffers.number_types import Int32Flags

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array

_VERSION = 3
ABSENT = -1
"""Tensor index of an absent optional operand."""


def names_of(enumeration: type) -> dict[int, str]:
    """Return the names of a generated enumeration, by number."""
    return {number: name for name, number in vars(enumeration).items() if isinstance(number, int)}


def printable(stored: bytes) -> str:
    """Return a stored text without line breaks and control characters."""
    text = stored.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "_" for c in text)


def short_name(name: str) -> str:
    """Return the first part of a name that the converter joined from several operators' names."""
    return name.partition(";")[0] or name


OPERATOR_NAMES = names_of(tflite.BuiltinOperator)
_OPTIONS_NAMES = names_of(tflite.BuiltinOptions)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the file describes it; `data` is its buffer, or None if it is not constant."""

    index: int
    name: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    type_code: int
    data: Array | None
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int
    custom_quantization: bool
    is_variable: bool
    is_sparse: bool


@dataclass(frozen=True)
class Spread:
    """Dilation and padding, in pixels, of a convolution that replaces three operators."""

    dilation: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class StoredOperator:
    """An operator. `kind` is its built-in name, or the name of a custom operator."""

    index: int
    kind: str
    is_custom: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    options_type: str
    spread: Spread | None = None


@dataclass(frozen=True)
class StoredGraph:
    """A subgraph of a file."""

    tensors: tuple[StoredTensor, ...]
    operators: tuple[StoredOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def name(self, index: int) -> str:
        """Return a tensor's name, quoted for a message."""
        return f"'{short_name(self.tensors[index].name)}'"


@contextmanager
def reading(what: str) -> Generator[None]:
    """Turn exceptions of the flatbuffer readers on damaged bytes into `ModelError`."""
    try:
        yield
    except (struct.error, IndexError, ValueError, TypeError, OverflowError) as error:
        raise ModelError(
            f"{what} cannot be read ({error}): the file is truncated or corrupted"
        ) from error


def read(data: bytes) -> tuple[StoredGraph, ...]:
    """Return the subgraphs of a TFLite file, the main one first.

    Raises:
        ModelError: the file is truncated or corrupted.
        UnsupportedError: it has another schema version.
    """
    with reading("the TFLite file"):
        return _File(data).graphs()


class _File:
    """Reads one file. `_budget` limits elements read, since vectors may overlap in bad files."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._budget = 16 * len(data)
        self._model: Any = tflite.Model.GetRootAs(data, 0)

    def graphs(self) -> tuple[StoredGraph, ...]:
        version = int(self._model.Version())
        if version != _VERSION:
            raise UnsupportedError(
                f"the file has TFLite schema version {version}; Smelt reads version {_VERSION}: "
                "convert the network with a current TensorFlow"
            )
        count = self._count(self._model.SubgraphsLength(), "subgraphs")
        if count == 0:
            raise ModelError("the TFLite file has no subgraph: it is damaged, or computes nothing")
        return tuple(self._graph(self._model.Subgraphs(i), i) for i in range(count))

    def _graph(self, graph: Any, index: int) -> StoredGraph:
        tensors = tuple(
            self._tensor(graph.Tensors(i), i)
            for i in range(self._count(graph.TensorsLength(), "tensors"))
        )
        operators = tuple(
            self._operator(graph.Operators(i), i, len(tensors))
            for i in range(self._count(graph.OperatorsLength(), "operators"))
        )
        where = f"subgraph {index}" if index else "the network"
        inputs = self._indices(graph.InputsAsNumpy(), len(tensors), f"inputs of {where}")
        outputs = self._indices(graph.OutputsAsNumpy(), len(tensors), f"outputs of {where}")
        if ABSENT in inputs + outputs:
            raise ModelError(f"an input or output of {where} is missing (tensor -1)")
        return StoredGraph(tensors, operators, inputs, outputs)

    def _count(self, length: int, what: str) -> int:
        self._budget -= length
        if self._budget < 0:
            raise ModelError(
                f"the TFLite file of {len(self._data)} bytes claims {length} {what}: "
                "it is truncated or corrupted"
            )
        return length

    def _numbers(self, vector: Any, what: str) -> list[Any]:
        """Return a vector as Python numbers; the readers return 0 if it is absent."""
        if not isinstance(vector, np.ndarray):
            return []
        self._count(vector.size, what)
        return vector.tolist()

    def _indices(self, vector: Any, tensors: int, what: str) -> tuple[int, ...]:
        indices = tuple(self._numbers(vector, what))
        for index in indices:
            if not ABSENT <= index < tensors:
                raise ModelError(
                    f"{what} refer to tensor {index}, but there are {tensors} tensors: the file is "
                    "corrupted"
                )
        return indices

    def _text(self, stored: bytes | None) -> str:
        """Return a name as printable text on one line."""
        text = printable(stored or b"")
        self._count(len(text), "characters of names")
        return text

    def _tensor(self, table: Any, index: int) -> StoredTensor:
        what = f"tensor {index}"
        quant: Any = table.Quantization()
        scales = [] if quant is None else self._numbers(quant.ScaleAsNumpy(), what)
        zeros = [] if quant is None else self._numbers(quant.ZeroPointAsNumpy(), what)
        shape = tuple(self._numbers(table.ShapeAsNumpy(), what))
        return StoredTensor(
            index=index,
            name=self._text(table.Name()) or f"tensor_{index}",
            shape=shape,
            signature=tuple(self._numbers(table.ShapeSignatureAsNumpy(), what)) or shape,
            type_code=int(table.Type()),
            data=self._buffer(int(table.Buffer()), what),
            scales=tuple(scales),
            zero_points=tuple(zeros),
            axis=0 if quant is None else int(quant.QuantizedDimension()),
            custom_quantization=quant is not None and quant.DetailsType() != 0,
            is_variable=bool(table.IsVariable()),
            is_sparse=table.Sparsity() is not None,
        )

    def _buffer(self, index: int, what: str) -> Array | None:
        """Return the bytes of a constant; None for buffer 0 and empty buffers."""
        count = int(self._model.BuffersLength())
        if index >= count:
            raise ModelError(
                f"{what} uses buffer {index}, but there are {count} buffers: the file is corrupted"
            )
        if index == 0:
            return None
        buffer: Any = self._model.Buffers(index)
        start, size = int(buffer.Offset()), int(buffer.Size())
        if start > 1:  # in a file above 2 GB, data comes after the flatbuffer
            if start + size > len(self._data):
                raise ModelError(
                    f"{what}: its data is beyond the end of the file, which is truncated or "
                    "corrupted"
                )
            return np.frombuffer(self._data, np.uint8, size, start)
        if buffer.DataIsNone() or buffer.DataLength() == 0:
            return None
        return buffer.DataAsNumpy()

    def _operator(self, table: Any, index: int, tensors: int) -> StoredOperator:
        kind, is_custom = self._kind(int(table.OpcodeIndex()), index)
        what = f"{kind} #{index}"
        outputs = self._indices(table.OutputsAsNumpy(), tensors, f"outputs of {what}")
        if ABSENT in outputs:
            raise ModelError(f"{what} has an output without a tensor: the file is corrupted")
        return StoredOperator(
            index=index,
            kind=kind,
            is_custom=is_custom,
            inputs=self._indices(table.InputsAsNumpy(), tensors, f"inputs of {what}"),
            outputs=outputs,
            options=table.BuiltinOptions(),
            options_type=_OPTIONS_NAMES.get(int(table.BuiltinOptionsType()), "unknown"),
        )

    def _kind(self, opcode: int, index: int) -> tuple[str, bool]:
        count = int(self._model.OperatorCodesLength())
        if opcode >= count:
            raise ModelError(
                f"operator #{index} uses operator code {opcode}, but there are {count} codes: the "
                "file is corrupted"
            )
        code: Any = self._model.OperatorCodes(opcode)
        number = max(int(code.DeprecatedBuiltinCode()), _builtin_code(code))
        if number == tflite.BuiltinOperator.CUSTOM:
            return self._text(code.CustomCode()) or "custom operator without a name", True
        if number < 0:
            raise ModelError(
                f"operator #{index} has the negative operator code {number}: the file is corrupted"
            )
        return OPERATOR_NAMES.get(number, f"operator code {number}"), False


_BUILTIN_CODE_FIELD = 10
"""Index in the vtable of an `OperatorCode` of the offset of its `builtin_code`."""


def _builtin_code(code: Any) -> int:
    """Return the field `builtin_code` of an operator code; 0 if the file omits it.

    The code was at first a signed byte; larger codes are in this field only. Some tools no longer
    write the byte, which is then 0. For codes below 127, the generated reader returns the byte
    instead of this field. So the field is read here.
    """
    table = code._tab
    offset = table.Offset(_BUILTIN_CODE_FIELD)
    if offset == 0:
        return 0
    return int(table.Get(Int32Flags, table.Pos + offset))

"""Importer of TFLite files: checks the operators' order, converts them, and builds the graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.import_result import Imported
from smelt.frontend.tflite import (
    comparison,
    control_flow,
    convolution,
    dilation,
    elementwise,
    indexing,
    matmul,
    pooling,
    quantization,
    recurrent,
    shape,
    shape_arithmetic,
    variables,
)
from smelt.frontend.tflite.file import (
    ABSENT,
    StoredGraph,
    StoredOperator,
    StoredTensor,
    read,
    short_name,
)
from smelt.frontend.tflite.operands import ImportedNetwork
from smelt.frontend.tflite.operation import Converter, TfliteOperation, require_one_scale
from smelt.frontend.tflite.tensors import (
    check_fixed_shape,
    constant_array,
    dequantized,
    tensor_type,
)
from smelt.frontend.tflite.variables import Variables
from smelt.frontend.unique_names import UniqueNames
from smelt.ir import Array, DType, Graph, Node, State, TensorType, Value, verify
from smelt.ir.budget import OPERATOR, spend

CONVERTERS: dict[str, Converter] = {
    **comparison.CONVERTERS,
    **control_flow.CONVERTERS,
    **convolution.CONVERTERS,
    **elementwise.CONVERTERS,
    **indexing.CONVERTERS,
    **matmul.CONVERTERS,
    **pooling.CONVERTERS,
    **quantization.CONVERTERS,
    **recurrent.CONVERTERS,
    **shape.CONVERTERS,
}
"""Converter of each operator, by its name in the file; a plugin adds its custom operators here."""

SPECIAL_CASES: dict[str, str] = {
    **dict.fromkeys(shape_arithmetic.FOLDS, "int32 int64 (arithmetic on shapes)"),
    **dict.fromkeys(dilation.KINDS, "float32 int8 (around a convolution: its dilation)"),
    **dict.fromkeys(variables.KINDS, "any (states of the network)"),
}
"""Operators that are only supported in part; some of them have a converter too."""


def load(data: bytes, name: str) -> Imported:
    """Read the main subgraph of a TFLite file as a graph called `name`.

    Raises:
        ModelError: the file is truncated or corrupted, or contradicts itself.
        UnsupportedError: the network needs something that Smelt does not support.
    """
    graphs = [dilation.restored(graph) for graph in read(data)]
    return _Importer(graphs, 0).run(name)


class _Importer(ImportedNetwork):
    """Builds a graph from the converted operators of one subgraph."""

    def __init__(self, graphs: Sequence[StoredGraph], *calls: int) -> None:
        """Set up for the last of the subgraphs `calls`; each of them is called by the one before.

        The main one is subgraph 0.
        """
        self._graphs, self._graph, self._calls = graphs, graphs[calls[-1]], calls
        self._nodes: list[Node] = []
        self._values: dict[int, Value] = {}
        self._dequantized: dict[int, Value] = {}
        self._names = _value_names(self._graph.tensors)
        self._variables = Variables(self._graph.operators, self, self._assigned_by)
        self._taken = UniqueNames(self._names)
        self._before: dict[int, Value] = {}
        self._after: dict[Value, Value] = {}
        self._used = set[int]()
        self._folded = {"float16": 0, "integer": 0}

    def run(self, name: str) -> Imported:
        """Import the network."""
        _check_ends(self._graph)
        graph = self._made(name)
        graph = verify(graph, "the TFLite import")
        return Imported(graph, self._notes(len(graph.states)), self._values)

    def _made(self, name: str) -> Graph:
        """Return a graph of all operators that the outputs depend on."""
        operators = self._operators()
        for tensor in self._graph.inputs:
            check_fixed_shape(self._graph.tensors[tensor])
        inputs = tuple(self.value(tensor) for tensor in self._graph.inputs)
        self._convert(operators)
        outputs = tuple(self.value(tensor) for tensor in self._graph.outputs)
        where = "the network" if len(self._calls) == 1 else f"subgraph {self._calls[-1]}"
        for role, values in ((f"inputs of {where}", inputs), (f"outputs of {where}", outputs)):
            for value in values:
                require_one_scale(value, role)
        states = self._states()
        return Graph(name, inputs, outputs, tuple(self._nodes), states)

    def _operators(self) -> list[StoredOperator]:
        """Return all operators that outputs and variables depend on, after some checks."""
        operators = _needed(self._graph)
        self._check_supported(operators)
        _check_order(self._graph)
        return operators

    def _convert(self, operators: Sequence[StoredOperator]) -> None:
        for stored in operators:
            operation = TfliteOperation(stored, self)
            if stored.kind in variables.KINDS:
                self._variables.convert(operation, stored)
                continue
            if shape_arithmetic.try_compute(operation):
                continue
            converter = CONVERTERS.get(stored.kind)
            if converter is None:
                raise shape_arithmetic.refusal(operation)
            self._check_types(stored, operation, converter)
            converter.convert(operation)

    def _assigned_by(self, index: int) -> Mapping[str, Array]:
        """Return the constants that another subgraph assigns to variables."""
        if len(self._calls) > 1:
            raise UnsupportedError(
                f"subgraph {self._calls[-1]}, which starts variables, calls another subgraph: "
                "convert the network so that it assigns constants"
            )
        inner = self._called(index, variables.CALL)
        inner._convert(inner._operators())
        return inner._variables.constants

    @override
    def subgraph(self, index: int, where: str) -> Graph:
        inner = self._called(index, where)
        kinds = {operator.kind for operator in inner._graph.operators}
        if found := sorted(kinds.intersection(variables.KINDS)):
            raise UnsupportedError(
                f"{where} calls subgraph {index}, which has {', '.join(found)}: Smelt supports "
                "variables only in the main subgraph; pass their values to the subgraph instead"
            )
        return inner._made(f"subgraph{index}")

    def _called(self, index: int, where: str) -> _Importer:
        """Return the importer of another subgraph."""
        if not 0 <= index < len(self._graphs):
            raise ModelError(
                f"{where} calls subgraph {index}, but the file has {len(self._graphs)}: it is "
                "corrupted"
            )
        if index in self._calls:
            raise ModelError(
                f"{where} calls subgraph {index}, which calls itself: the file is corrupted"
            )
        spend(f"subgraph {index}", OPERATOR * len(self._graphs[index].operators))
        inner = _Importer(self._graphs, *self._calls, index)
        inner._folded, inner._used = self._folded, self._used
        self._used.add(index)
        return inner

    @override
    def value(self, tensor: int) -> Value:
        if tensor not in self._values:
            stored, type_ = self._graph.tensors[tensor], self.type(tensor)
            if stored.is_variable:
                raise UnsupportedError(
                    f"tensor {tensor} {self.quoted(tensor)} is a variable: Smelt supports such "
                    "tensors only as states of UNIDIRECTIONAL_SEQUENCE_LSTM; use variables that "
                    "READ_VARIABLE reads, or make it an input and an output of the network"
                )
            data = None
            if stored.data is not None:
                # Many tensors may share a buffer, but each has its own array.
                spend(f"constant {self.quoted(tensor)}", type_.size)
                data = constant_array(stored, type_)
            self._values[tensor] = Value(self._names[tensor], type_, data)
        return self._values[tensor]

    @override
    def dequantized(self, tensor: int) -> Value:
        if tensor not in self._dequantized:
            value = self.value(tensor)
            self._dequantized[tensor] = self._as_float(self.unique(f"{value.name}_float32"), value)
        return self._dequantized[tensor]

    @override
    def unique(self, name: str) -> str:
        return self._taken.take(name)

    @override
    def type(self, tensor: int) -> TensorType:
        return tensor_type(self._graph.tensors[tensor])

    @override
    def add(self, node: Node) -> None:
        self._nodes.append(node)

    @override
    def fold(self, tensor: int, source: Value) -> None:
        self._values[tensor] = self._as_float(self._names[tensor], source)

    @override
    def set_constant(self, tensor: int, array: Array) -> None:
        value = self.value(tensor)
        self._values[tensor] = Value.constant(value.name, array, value.type.quant)

    @override
    def alias(self, tensor: int, value: Value) -> None:
        self._values[tensor] = value

    @override
    def quoted(self, tensor: int) -> str:
        return self._graph.name(tensor)

    @override
    def declared(self, tensor: int) -> tuple[int, ...]:
        return tuple(max(n, -1) for n in self._graph.tensors[tensor].signature)

    @override
    def shaped(self, tensor: int, shape: tuple[int, ...]) -> Value:
        stored = replace(self._graph.tensors[tensor], shape=shape)
        self._values[tensor] = Value(self._names[tensor], tensor_type(stored))
        return self._values[tensor]

    @override
    def state(self, tensor: int, shape: tuple[int, ...]) -> Value:
        type_, quoted = self.type(tensor), self.quoted(tensor)
        if not self._graph.tensors[tensor].is_variable:
            raise UnsupportedError(
                f"state {quoted} is not a variable tensor: convert the network again so that the "
                "state of a recurrent layer is a variable of the file"
            )
        if tensor in self._before:
            raise UnsupportedError(
                f"state {quoted} is used by several operators: use a separate state for each"
            )
        if type_.size != math.prod(shape):
            raise ModelError(f"state {quoted} is {type_}, but its shape must be {list(shape)}")
        self._before[tensor] = Value(self._names[tensor], type_.with_shape(shape))
        return self._before[tensor]

    @override
    def update(self, before: Value, after: Value) -> None:
        self._after[before] = after

    def _states(self) -> tuple[State, ...]:
        """Return the variable tensors as states; each starts at real zero."""
        found: list[State] = []
        for before in self._before.values():
            type_ = before.type
            zero = type_.zero_point if type_.is_quantized else 0
            spend(f"state '{before.name}'", type_.size)
            initial = np.full(type_.shape, zero, type_.dtype.numpy)
            found.append(State(before, self._after[before], initial))
        results = {value for node in self._nodes for value in node.outputs}
        return (*found, *self._variables.states(results))

    def _as_float(self, name: str, source: Value) -> Value:
        """Return a constant as float32, and count it for the notes."""
        type_ = source.type
        if type_.quant is None and type_.dtype is not DType.FLOAT16:
            raise ModelError(
                f"constant '{source.name}' {type_} has no scale, so it cannot be dequantized"
            )
        self._folded["float16" if type_.dtype is DType.FLOAT16 else "integer"] += 1
        return Value.constant(name, dequantized(source.array, type_.quant))

    def _check_supported(self, operators: Sequence[StoredOperator]) -> None:
        known = CONVERTERS.keys() | SPECIAL_CASES.keys() - dilation.KINDS
        missing = [operator for operator in operators if operator.kind not in known]
        if not missing:
            return
        first, others = missing[0], missing[1:]
        kind = f"custom operator '{first.kind}'" if first.is_custom else f"operator {first.kind}"
        computed = [t for t in first.inputs if t != ABSENT and self._graph.tensors[t].data is None]
        tensors = ", ".join(map(self._graph.name, computed))
        results = ", ".join(self._graph.name(t) for t in first.outputs)
        also = sorted({operator.kind for operator in others} - {first.kind})
        remedy = (
            "load a plugin that adds it"
            if first.is_custom
            else dilation.REMEDY
            if first.kind in dilation.KINDS
            else "replace it by supported operators before conversion, or add it by a plugin "
            "(--plugin file.py)"
        )
        raise UnsupportedError(
            f"{kind} (#{first.index} of the file, from {tensors or 'constants'} to {results}) is "
            f"not supported{'; nor are ' + ', '.join(also) if also else ''}. "
            f"`smelt ops` lists the supported operators; {remedy}."
        )

    def _check_types(
        self, stored: StoredOperator, operation: TfliteOperation, converter: Converter
    ) -> None:
        """Refuse element types that the operator's converter does not support."""
        data = slice(converter.data, converter.data + 1)
        for tensor in (*stored.inputs[data], *stored.outputs):
            if tensor == ABSENT:
                continue
            type_ = self.type(tensor)
            if type_.dtype in converter.dtypes:
                continue
            quoted = self.quoted(tensor)
            if type_.dtype is DType.UINT8:
                raise UnsupportedError(
                    f"{operation} computes on uint8 ({quoted}), TFLite's legacy quantization, "
                    "which Smelt does not support: convert the network again with int8 "
                    "quantization (the network's inputs and outputs may be uint8)"
                )
            names = ", ".join(sorted(str(dtype.numpy) for dtype in converter.dtypes))
            raise UnsupportedError(
                f"{operation} does not support {type_.dtype.numpy} ({quoted}), only {names}: "
                "convert the network to one of these"
            )

    def _notes(self, states: int) -> tuple[str, ...]:
        notes: list[str] = []
        half, integer = self._folded["float16"], self._folded["integer"]
        if half:
            notes.append(f"{half} constants stored as float16 are imported as float32")
        if integer:
            notes.append(
                f"{integer} constants stored as integers are dequantized to float32, "
                "because the network computes in floating point (dynamic-range quantization): "
                "for an integer network, quantize activations too"
            )
        if states:
            notes.append(
                f"{states} {'state is' if states == 1 else 'states are'} kept from one inference "
                "to the next, as in TensorFlow Lite Micro: initializing the network resets them"
            )
        unused = len(self._graphs) - 1 - len(self._used)
        if unused:
            notes.append(
                f"the file has {len(self._graphs)} subgraphs; {unused} are not part of the network"
            )
        return tuple(notes)


def _value_names(tensors: Sequence[StoredTensor]) -> list[str]:
    """Return a unique name for each tensor: the first of those that the converter joined by `;`.

    If several tensors have the same name, data keeps it and constants get their index appended.
    """
    names = [""] * len(tensors)
    taken: set[str] = set()
    for index in sorted(range(len(tensors)), key=lambda i: tensors[i].data is not None):
        name = short_name(tensors[index].name)
        if name in taken:
            name = f"{name}_{index}"
            while name in taken:
                name += "_"
        taken.add(name)
        names[index] = name
    return names


def _check_ends(graph: StoredGraph) -> None:
    for role, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        if not tensors:
            raise ModelError(f"the network has no {role}: the file is damaged, or computes nothing")


def _check_order(graph: StoredGraph) -> None:
    """Check that every tensor is made once, and before it is used."""
    known: dict[int, str] = {}
    for tensor in graph.inputs:
        if tensor in known or graph.tensors[tensor].data is not None:
            raise ModelError(
                f"input {graph.name(tensor)} is listed twice, or is constant: the file is corrupted"
            )
        known[tensor] = "the network's inputs"

    def use(tensor: int, by: str) -> None:
        stored = graph.tensors[tensor]
        is_given = stored.data is not None or stored.is_variable or 0 in stored.shape
        if tensor not in known and not is_given:
            raise ModelError(f"{by} use {graph.name(tensor)} before any operator makes it")

    for operator in graph.operators:
        where = f"{operator.kind} #{operator.index}"
        for tensor in operator.inputs:
            if tensor != ABSENT:
                use(tensor, f"inputs of {where}")
        for tensor in operator.outputs:
            if tensor in known or graph.tensors[tensor].data is not None:
                maker = known.get(tensor, "the file's constants")
                raise ModelError(f"{where} makes {graph.name(tensor)} again, after {maker}")
            known[tensor] = where
    for tensor in graph.outputs:
        use(tensor, "the network's outputs")


def _needed(graph: StoredGraph) -> list[StoredOperator]:
    """Return the operators that the outputs and variables depend on, in order."""
    wanted = set(graph.outputs)
    acts = {variables.ASSIGN, variables.CALL}
    found: list[StoredOperator] = []
    for operator in reversed(graph.operators):
        if wanted.isdisjoint(operator.outputs) and operator.kind not in acts:
            continue
        found.append(operator)
        row = CONVERTERS.get(operator.kind)
        skipped = frozenset[int]() if row is None else row.shape_operands
        if _is_open(graph, operator):
            skipped = frozenset[int]()
        wanted |= {t for i, t in enumerate(operator.inputs) if i not in skipped}
    return found[::-1]


def _is_open(graph: StoredGraph, operator: StoredOperator) -> bool:
    """Return whether a result has several unknown dimensions, so that its size does not tell."""
    return any(sum(n < 0 for n in graph.tensors[t].signature) > 1 for t in operator.outputs)

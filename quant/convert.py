"""The int8 network, built node by node from the float one; with layers of int16 where asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Graph, Node, Origin, Quant, Rounding, State, TensorType, Value
from smelt.ops.fixed_point import dequantize_onnx, quantize_onnx
from smelt.ops.quantize import Dequantize, Quantize
from smelt.ops.table import Table
from smelt.quant.forms import Form, Forms, apply, is_real, tied_inputs
from smelt.quant.weights import Stored, channel_axis

Choose = Callable[[Node, Value], Stored]
"""Chooses the integers of a product: given its float node and its int8 input."""


def store(real: Array, quant: Quant, dtype: DType = DType.INT8) -> Array:
    """Stored integers of real numbers."""
    type_ = TensorType(real.shape, dtype, quant)
    return quantize_onnx(np.asarray(real, np.float32), quant, type_)


@dataclass(frozen=True)
class Wide:
    """The nodes of the float network that compute in 16 bits, and the quantizations there."""

    nodes: frozenset[Node]
    quants: Mapping[Value, Quant]


class Converter:
    """Turns float nodes into int8 ones, in order.

    Attributes:
        nodes: what was made so far.
        stored: the int8 value (int16, of a layer of 16 bits) of each float value that has one.
    """

    def __init__(
        self,
        graph: Graph,
        forms: Forms,
        quants: Mapping[Value, Quant],
        choose: Choose,
        wide: Wide | None = None,
    ) -> None:
        self._graph, self._forms, self._quants, self._choose = graph, forms, quants, choose
        self._wide = wide or Wide(frozenset(), {})
        self._moved: dict[tuple[Value, DType], Value] = {}
        self.nodes: list[Node] = []
        self.stored: dict[Value, Value] = {}
        self._real: dict[Value, Value] = {}
        self._names = {v.name for v in graph.values()}
        self._wanted = frozenset(forms.stored)
        for value in (*graph.inputs, *(s.before for s in graph.states)):
            if is_real(value):
                self.stored[value] = self._typed(value, DType.INT8)

    def convert(self, node: Node) -> None:
        """Add what a float node becomes."""
        match self._forms.form[node]:
            case Form.PRODUCT:
                self._product(node)
            case Form.FUNCTION:
                self._function(node)
            case Form.NATIVE:
                self._native(node)
            case Form.PLAIN:
                self.nodes.append(node)
            case Form.FLOAT:
                self._float(node)

    def finish(self) -> Graph:
        """The whole int8 network; all nodes must have been converted."""
        graph = self._graph
        outputs = tuple(self._result(v) for v in graph.outputs)
        states = tuple(
            State(self.stored[s.before], self._result(s.after), self._initial(s))
            if is_real(s.before)
            else s
            for s in graph.states
        )
        inputs = tuple(self.stored.get(v, v) for v in graph.inputs)
        return replace(
            graph, inputs=inputs, outputs=outputs, nodes=tuple(self.nodes), states=states
        )

    def _initial(self, state: State) -> Array:
        return store(state.initial, self._quants[state.before])

    def _result(self, value: Value) -> Value:
        return self._read(value, DType.INT8) if is_real(value) else value

    def _dtype(self, node: Node) -> DType:
        return DType.INT16 if node in self._wide.nodes else DType.INT8

    def _product(self, node: Node) -> None:
        dtype = self._dtype(node)
        x = self._read(node.input(0), dtype)
        stored = self._choose(node, x)
        axis = channel_axis(node)
        scales = tuple(map(float, stored.scale))
        zeros = (0,) * len(scales)
        bias_scales = tuple(float(np.float32(x.type.scale * scale)) for scale in scales)
        name = node.output.name
        weights = self._constant(f"{name}:weights", stored.weights, Quant(scales, zeros, axis))
        rounding = Rounding.TFLM16 if dtype is DType.INT16 else Rounding.TFLM
        bias = self._constant(f"{name}:bias", stored.bias, Quant(bias_scales, zeros, 0))
        self._add(node, (x, weights, bias), (self._typed(node.output, dtype),), rounding)

    def _function(self, node: Node) -> None:
        value = node.output
        if value not in self._wanted:
            return
        root, quant = self._forms.root[value], self._quants[value]
        dtype = self._dtype(node)
        x = self._read(root, dtype)
        if dtype is DType.INT16:
            self._add(node, (x,), (self._typed(value, dtype),))
            return
        if x.type.quant is None:
            raise ValueError(f"{x.name} is not quantized")
        numbers = dequantize_onnx(np.arange(-128, 128, dtype=np.int8), x.type.quant)
        with np.errstate(all="ignore"):
            results = store(apply(self._forms.path[value], root, numbers), quant)
        table = self._constant(f"{value.name}:table", results, quant)
        y = self._typed(value, dtype)
        self.stored[value] = y
        self.nodes.append(Node(Table(), (x, table), (y,), node.origin))

    def _native(self, node: Node) -> None:
        dtype = self._dtype(node)
        quants = self._quants_of(dtype)
        quant = next((quants[v] for v in node.outputs if is_real(v)), None)
        tied = tied_inputs(node)
        inputs = tuple(
            self._operand(v, quant if index in tied else None, dtype)
            for index, v in enumerate(node.inputs)
        )
        outputs = tuple(self._typed(v, dtype) if is_real(v) else v for v in node.outputs)
        self._add(node, inputs, outputs)

    def _operand(self, value: Value | None, quant: Quant | None, dtype: DType) -> Value | None:
        """A native node's operand, requantized where it must have another quantization."""
        if value is None or not is_real(value):
            return value
        if value.data is not None:
            quant = quant or self._quants_of(dtype)[value]
            name = f"{value.name}:{dtype.numpy.name}"
            return self._constant(name, store(value.data, quant, dtype), quant)
        stored = self._read(value, dtype)
        if quant is None or stored.type.quant == quant:
            return stored
        return self._requantized(value, stored, replace(stored.type, quant=quant))

    def _read(self, value: Value, dtype: DType) -> Value:
        """A value as layers of that type read it."""
        stored = self._as_stored(value)
        if stored.type.dtype is dtype:
            return stored
        if (value, dtype) not in self._moved:
            type_ = replace(stored.type, dtype=dtype, quant=self._quants_of(dtype)[value])
            self._moved[value, dtype] = self._requantized(value, stored, type_)
        return self._moved[value, dtype]

    def _requantized(self, value: Value, stored: Value, type_: TensorType) -> Value:
        moved = Value(self._fresh(f"{value.name}:requantized"), type_)
        origin = self._origin(value)
        self.nodes.append(Node(Quantize(type_.dtype), (stored,), (moved,), origin, Rounding.TFLM))
        return moved

    def _float(self, node: Node) -> None:
        inputs = tuple(None if v is None else self._as_real(v) for v in node.inputs)
        outputs = tuple(
            Value(self._fresh(f"{v.name}:real"), v.type) if is_real(v) else v for v in node.outputs
        )
        self._real.update(
            (v, real) for v, real in zip(node.outputs, outputs, strict=True) if is_real(v)
        )
        self.nodes.append(replace(node, inputs=inputs, outputs=outputs))

    def _as_stored(self, value: Value) -> Value:
        if value not in self.stored:
            real, y = self._real[value], self._typed(value, DType.INT8)
            self.stored[value] = y
            self.nodes.append(Node(Quantize(DType.INT8), (real,), (y,), self._origin(value)))
        return self.stored[value]

    def _as_real(self, value: Value) -> Value:
        if value.data is not None or not is_real(value):
            return value
        if value not in self._real:
            x = self._as_stored(value)
            real = Value(self._fresh(f"{value.name}:real"), value.type)
            self._real[value] = real
            self.nodes.append(Node(Dequantize(), (x,), (real,), self._origin(value)))
        return self._real[value]

    def _add(
        self,
        node: Node,
        inputs: tuple[Value | None, ...],
        outputs: tuple[Value, ...],
        rounding: Rounding = Rounding.TFLM,
    ) -> None:
        made = Node(node.op, inputs, outputs, node.origin, rounding)
        try:
            node.op.check(made)
        except ModelError as error:
            raise UnsupportedError(f"the int8 form of {node.origin} is refused: {error}") from error
        self.nodes.append(made)
        self.stored.update((v, y) for v, y in zip(node.outputs, outputs, strict=True) if is_real(v))

    def _quants_of(self, dtype: DType) -> Mapping[Value, Quant]:
        return self._wide.quants if dtype is DType.INT16 else self._quants

    def _typed(self, value: Value, dtype: DType) -> Value:
        quant = self._quants_of(dtype)[value]
        return Value(value.name, TensorType(value.type.shape, dtype, quant))

    def _constant(self, name: str, data: Array, quant: Quant) -> Value:
        return Value.constant(self._fresh(name), data, quant)

    def _fresh(self, name: str) -> str:
        while name in self._names:
            name += "'"
        self._names.add(name)
        return name

    def _origin(self, value: Value) -> Origin:
        producer = self._graph.producer.get(value)
        return Origin("INPUT", 0, value.name) if producer is None else producer.origin

"""The int8 network, built node by node from the float one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

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


def store(real: Array, quant: Quant) -> Array:
    """int8 of real numbers."""
    type_ = TensorType(real.shape, DType.INT8, quant)
    return quantize_onnx(np.asarray(real, np.float32), quant, type_)


class Converter:
    """Turns float nodes into int8 ones, in order.

    Attributes:
        nodes: what was made so far.
        stored: the int8 value of each float value that has one.
    """

    def __init__(
        self, graph: Graph, forms: Forms, quants: Mapping[Value, Quant], choose: Choose
    ) -> None:
        self._graph, self._forms, self._quants, self._choose = graph, forms, quants, choose
        self.nodes: list[Node] = []
        self.stored: dict[Value, Value] = {}
        self._real: dict[Value, Value] = {}
        self._names = {v.name for v in graph.values()}
        self._wanted = frozenset(forms.stored)
        for value in (*graph.inputs, *(s.before for s in graph.states)):
            if is_real(value):
                self.stored[value] = self._int8(value)

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
        return self._as_int8(value) if is_real(value) else value

    def _product(self, node: Node) -> None:
        x = self._as_int8(node.input(0))
        stored = self._choose(node, x)
        axis = channel_axis(node)
        scales = tuple(map(float, stored.scale))
        zeros = (0,) * len(scales)
        bias_scales = tuple(float(np.float32(x.type.scale * scale)) for scale in scales)
        name = node.output.name
        weights = self._constant(f"{name}:weights", stored.weights, Quant(scales, zeros, axis))
        bias = self._constant(f"{name}:bias", stored.bias, Quant(bias_scales, zeros, 0))
        self._add(node, (x, weights, bias), (self._int8(node.output),))

    def _function(self, node: Node) -> None:
        value = node.output
        if value not in self._wanted:
            return
        root, quant = self._forms.root[value], self._quants[value]
        x = self._as_int8(root)
        if x.type.quant is None:
            raise ValueError(f"{x.name} is not quantized")
        numbers = dequantize_onnx(np.arange(-128, 128, dtype=np.int8), x.type.quant)
        with np.errstate(all="ignore"):
            results = store(apply(self._forms.path[value], root, numbers), quant)
        table = self._constant(f"{value.name}:table", results, quant)
        y = self._int8(value)
        self.stored[value] = y
        self.nodes.append(Node(Table(), (x, table), (y,), node.origin))

    def _native(self, node: Node) -> None:
        quant = next((self._quants[v] for v in node.outputs if is_real(v)), None)
        tied = tied_inputs(node)
        inputs = tuple(
            self._operand(v, quant if index in tied else None)
            for index, v in enumerate(node.inputs)
        )
        outputs = tuple(self._int8(v) if is_real(v) else v for v in node.outputs)
        self._add(node, inputs, outputs)

    def _operand(self, value: Value | None, quant: Quant | None) -> Value | None:
        """A native node's operand, requantized where it must have another quantization."""
        if value is None or not is_real(value):
            return value
        if value.data is not None:
            quant = quant or self._quants[value]
            return self._constant(f"{value.name}:int8", store(value.data, quant), quant)
        stored = self._as_int8(value)
        if quant is None or stored.type.quant == quant:
            return stored
        type_ = replace(stored.type, quant=quant)
        moved = Value(self._fresh(f"{value.name}:requantized"), type_)
        origin = self._origin(value)
        self.nodes.append(Node(Quantize(DType.INT8), (stored,), (moved,), origin, Rounding.TFLM))
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

    def _as_int8(self, value: Value) -> Value:
        if value not in self.stored:
            real, y = self._real[value], self._int8(value)
            self.stored[value] = y
            self.nodes.append(Node(Quantize(DType.INT8), (real,), (y,), self._origin(value)))
        return self.stored[value]

    def _as_real(self, value: Value) -> Value:
        if value.data is not None or not is_real(value):
            return value
        if value not in self._real:
            x = self._as_int8(value)
            real = Value(self._fresh(f"{value.name}:real"), value.type)
            self._real[value] = real
            self.nodes.append(Node(Dequantize(), (x,), (real,), self._origin(value)))
        return self._real[value]

    def _add(
        self, node: Node, inputs: tuple[Value | None, ...], outputs: tuple[Value, ...]
    ) -> None:
        made = Node(node.op, inputs, outputs, node.origin, Rounding.TFLM)
        try:
            node.op.check(made)
        except ModelError as error:
            raise UnsupportedError(f"the int8 form of {node.origin} is refused: {error}") from error
        self.nodes.append(made)
        self.stored.update((v, y) for v, y in zip(node.outputs, outputs, strict=True) if is_real(v))

    def _int8(self, value: Value) -> Value:
        return Value(value.name, TensorType(value.type.shape, DType.INT8, self._quants[value]))

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

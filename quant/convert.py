"""Builder of the int8 network: converts float nodes one by one, some of them to int16."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Graph, Node, Origin, Quant, Rounding, State, TensorType, Value
from smelt.ops.arithmetic.fixed_point import dequantize_onnx, quantize_onnx
from smelt.ops.core.binary import Binary
from smelt.ops.core.cast import Cast
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.quantize import Dequantize, Quantize
from smelt.ops.core.table import Table
from smelt.ops.sequence.lstm import Lstm
from smelt.quant.plan import NodeKind, QuantizationPlan, apply, is_real, tied_inputs
from smelt.quant.rewrites.recurrent import split_lstm
from smelt.quant.weights.integers import StoredProduct, channel_axis
from smelt.quant.weights.lstm import StoredLstm


@dataclass(frozen=True)
class Choosers:
    """Functions that choose the integers of weights.

    Attributes:
        product: for a product, given its float node and its int8 input.
        lstm: for an LSTM, given also the quantization of its hidden state.
    """

    product: Callable[[Node, Value], StoredProduct]
    lstm: Callable[[Node, Lstm, Value, Quant], StoredLstm]


def store(real: Array, quant: Quant, dtype: DType = DType.INT8) -> Array:
    """Return the stored integers of real numbers."""
    type_ = TensorType(real.shape, dtype, quant)
    return quantize_onnx(np.asarray(real, np.float32), quant, type_)


@dataclass(frozen=True)
class Wide:
    """The nodes of the float network that compute in int16, and the quantizations used there."""

    nodes: frozenset[Node]
    quants: Mapping[Value, Quant]


class Int8Builder:
    """Converts float nodes to int8 nodes, in order.

    Attributes:
        nodes: the nodes created so far.
        stored: the int8 (or int16) value of each float value that has one.
    """

    def __init__(
        self,
        graph: Graph,
        plan: QuantizationPlan,
        quants: Mapping[Value, Quant],
        choose: Choosers,
        wide: Wide | None = None,
    ) -> None:
        self._graph, self._plan, self._quants, self._choose = graph, plan, quants, choose
        self._wide = wide or Wide(frozenset(), {})
        self._moved: dict[tuple[Value, DType], Value] = {}
        self.nodes: list[Node] = []
        self.stored: dict[Value, Value] = {}
        self._real: dict[Value, Value] = {}
        self._names = {v.name for v in graph.values()}
        self._wanted = frozenset(plan.stored)
        for value in (*graph.inputs, *(s.before for s in graph.states)):
            if is_real(value):
                cell = value in plan.cells
                self.stored[value] = self._typed(value, DType.INT16 if cell else DType.INT8)

    def convert(self, node: Node) -> None:
        """Convert a float node and add the resulting nodes."""
        match self._plan.kind[node]:
            case NodeKind.PRODUCT:
                self._product(node)
            case NodeKind.FUNCTION:
                self._function(node)
            case NodeKind.NATIVE:
                self._native(node)
            case NodeKind.LSTM:
                self._lstm(node, self._plan.lstms[node])
            case NodeKind.PLAIN:
                self.nodes.append(node)
            case NodeKind.FLOAT:
                self._float(node)

    def finish(self) -> Graph:
        """Return the quantized network; all nodes must have been converted."""
        graph = self._graph
        outputs = tuple(self._result(v) for v in graph.outputs)
        states = tuple(
            State(self.stored[s.before], self._next(s.after), self._initial(s))
            if is_real(s.before)
            else s
            for s in graph.states
        )
        inputs = tuple(self.stored.get(v, v) for v in graph.inputs)
        made = replace(
            graph, inputs=inputs, outputs=outputs, nodes=tuple(self.nodes), states=states
        )
        return made.rewrite(split_lstm)

    def _initial(self, state: State) -> Array:
        before = self.stored[state.before]
        return store(state.initial, self._quants[state.before], before.type.dtype)

    def _next(self, value: Value) -> Value:
        return self.stored[value] if value in self._plan.cells else self._result(value)

    def _result(self, value: Value) -> Value:
        return self._read(value, DType.INT8) if is_real(value) else value

    def _dtype(self, node: Node) -> DType:
        return DType.INT16 if node in self._wide.nodes else DType.INT8

    def _product(self, node: Node) -> None:
        dtype = DType.INT8 if node in self._plan.sums else self._dtype(node)
        x = self._read(node.input(0), dtype)
        stored = self._choose.product(node, x)
        axis = channel_axis(node)
        scales = tuple(map(float, stored.scale))
        zeros = (0,) * len(scales)
        bias_scales = tuple(float(np.float32(x.type.scale * scale)) for scale in scales)
        name = node.output.name
        weights = self._constant(f"{name}:weights", stored.weights, Quant(scales, zeros, axis))
        rounding = Rounding.TFLM16 if dtype is DType.INT16 else Rounding.TFLM
        bias = self._constant(f"{name}:bias", stored.bias, Quant(bias_scales, zeros, 0))
        if node in self._plan.sums:
            self._sums(node, self._plan.sums[node], (x, weights, bias), bias_scales)
            return
        self._add(node, (x, weights, bias), (self._typed(node.output, dtype),), rounding)

    def _sums(
        self,
        node: Node,
        op: FullyConnected,
        inputs: tuple[Value, ...],
        scales: Sequence[float],
    ) -> None:
        """Add a dense layer whose int32 sums are converted to float without requantization."""
        y = node.output
        sums = Value(self._fresh(f"{y.name}:sums"), TensorType(y.type.shape, DType.INT32))
        cast, real = (Value(self._fresh(f"{y.name}:{role}"), y.type) for role in ("cast", "real"))
        unit = Value.constant(self._fresh(f"{y.name}:unit"), np.asarray(scales, np.float32))
        made = Node(replace(op, sums=True), inputs, (sums,), node.origin, Rounding.TFLM)
        made.op.check(made)
        self.nodes += [
            made,
            Node(Cast(DType.FLOAT32), (sums,), (cast,), node.origin),
            Node(Binary("mul"), (cast, unit), (real,), node.origin),
        ]
        self._real[y] = real

    def _lstm(self, node: Node, op: Lstm) -> None:
        *hidden, cell = node.outputs
        quant, wide = self._quants[hidden[-1]], self._quants[cell]
        x = self._read(node.input(0), DType.INT8)
        stored = self._choose.lstm(node, op, x, quant)
        constants = (
            self._constant(f"{node.name}:{role}", array, quant)
            for role, array, quant in stored.operands(x.type.scale)
        )
        states = (
            self._operand(node.optional(4), quant, DType.INT8),
            self._cell(node.optional(5), wide),
        )
        outputs = (
            *(Value(v.name, TensorType(v.type.shape, DType.INT8, quant)) for v in hidden),
            self._typed(cell, DType.INT16),
        )
        self._add(node, (x, *constants, *states), outputs)

    def _cell(self, value: Value | None, quant: Quant) -> Value | None:
        """Return the initial cell state of an LSTM as int16, or None."""
        if value is None:
            return None
        if value.data is not None:
            name = f"{value.name}:int16"
            return self._constant(name, store(value.data, quant, DType.INT16), quant)
        stored = self._as_stored(value)
        type_ = replace(stored.type, dtype=DType.INT16, quant=quant)
        return stored if stored.type == type_ else self._requantized(value, stored, type_)

    def _function(self, node: Node) -> None:
        value = node.output
        if value not in self._wanted:
            return
        root, quant = self._plan.root[value], self._quants[value]
        dtype = self._dtype(node)
        x = self._read(root, dtype)
        if dtype is DType.INT16:
            self._add(node, (x,), (self._typed(value, dtype),))
            return
        if x.type.quant is None:
            raise ValueError(f"{x.name} is not quantized")
        numbers = dequantize_onnx(np.arange(-128, 128, dtype=np.int8), x.type.quant)
        with np.errstate(all="ignore"):
            results = store(apply(self._plan.path[value], root, numbers), quant)
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
        """Return a native node's operand, requantized if it needs another quantization."""
        if value is None or not is_real(value):
            return value
        if value.data is not None:
            quant = quant or self._quants_of(dtype)[value]
            name = f"{value.name}:{dtype.numpy.name}"
            return self._constant(name, store(value.data, quant, dtype), quant)
        at_once = quant is not None and value in self._plan.cells
        stored = self._as_stored(value) if at_once else self._read(value, dtype)
        if quant is None or stored.type.quant == quant:
            return stored
        return self._requantized(value, stored, replace(stored.type, dtype=dtype, quant=quant))

    def _read(self, value: Value, dtype: DType) -> Value:
        """Return a value in the type that the reading layer needs."""
        stored = self._as_stored(value)
        if stored.type.dtype is dtype:
            return stored
        if (value, dtype) not in self._moved:
            quant = self._quants_of(dtype)[value]
            if value in self._plan.cells and dtype is DType.INT8:
                quant = Quant.per_tensor(quant.scale[0] * 256.0)
            type_ = replace(stored.type, dtype=dtype, quant=quant)
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
        cell = value in self._plan.cells
        quant = self._quants[value] if cell else self._quants_of(dtype)[value]
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

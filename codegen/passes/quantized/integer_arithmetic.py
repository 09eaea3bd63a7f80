"""Integer arithmetic for networks that ONNX stores as Dequantize, float operators and Quantize.

The pass starts from each QuantizeLinear and follows its operand back to stored integers:

- Operators that only move elements move integers.
- Functions of one tensor become tables of 256 results.
- Products of inputs and weights become integer products.

An operator without an integer form keeps its dequantized operands and float arithmetic, which is
also correct.

Tables, moved elements and sums of two tensors keep every bit. A product of inputs and weights, or a
mean, is rounded once, whereas the float operators round at every step. A result close to halfway
between two integers may therefore round to the other one.

uint8 tensors become int8: the stored numbers and the zero point are 128 lower.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from smelt.codegen.passes.cleanup.dead_nodes import drop_dead_nodes
from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.quantized.integer_products import Products
from smelt.codegen.passes.quantized.quantized_values import (
    UNLIMITED,
    Limits,
    StoredValues,
    activation_for,
    clipped,
)
from smelt.codegen.passes.quantized.table import tabulate
from smelt.ir import DType, Graph, Node, Op, Origin, Quant, Rewrite, Rounding, TensorType, Value
from smelt.ops.arithmetic.fixed_point import Activation, quantize_onnx
from smelt.ops.core.binary import Binary
from smelt.ops.core.matmul import MatMul
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.quantize import Dequantize, Quantize
from smelt.ops.core.reduce import Reduce


def use_integer_arithmetic(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Replace operators between Dequantize and Quantize of rounding `onnx` by integer ones."""
    if not any(_is_quantize(node) or _is_dequantize(node) for node in graph.nodes):
        return graph
    return drop_dead_nodes(_Folder(graph).run()).rewrite(_dequantized_constant)


def _dequantized_constant(node: Node) -> Rewrite:
    """Compute the Dequantize of a constant whose integers no operator reads."""
    source, y = node.inputs[0] if node.inputs else None, node.outputs[0]
    if not _is_dequantize(node) or source is None or source.data is None:
        return None
    (array,) = node.op.reference(node, [source.data])
    return (), [Value.constant(y.name, array)]


def _is_quantize(node: Node) -> bool:
    """Return whether a node stores float32 as per-tensor 8-bit integers with ONNX rounding."""
    y = node.outputs[0].type
    return (
        isinstance(node.op, Quantize)
        and node.rounding is Rounding.ONNX
        and node.input(0).type.dtype is DType.FLOAT32
        and y.dtype.size == 1
        and y.quant is not None
        and y.quant.is_per_tensor
    )


def _is_dequantize(node: Node) -> bool:
    return isinstance(node.op, Dequantize) and node.rounding is Rounding.ONNX


class _Folder(StoredValues):
    """A single traversal of a graph that builds a new graph."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._graph = graph
        self._products = Products(self)
        self._renamed: dict[Value, Value] = {}

    def run(self) -> Graph:
        """Return the graph in integers, which may still contain nodes that nothing reads."""
        renamed = self._renamed
        for node in self._graph.nodes:
            inputs = tuple(None if v is None else renamed.get(v, v) for v in node.inputs)
            if inputs != node.inputs:
                node = replace(node, inputs=inputs)
            if _is_quantize(node):
                self._quantize(node)
            elif _is_dequantize(node):
                self.append(replace(node, inputs=(self.as_signed(node.input(0)),)))
            elif not self._sink(node):
                self.append(node)
        return replace(
            self._graph,
            nodes=tuple(self.nodes),
            outputs=tuple(renamed.get(v, v) for v in self._graph.outputs),
            states=tuple(
                replace(s, after=renamed.get(s.after, s.after)) for s in self._graph.states
            ),
        )

    def _sink(self, node: Node) -> bool:
        """Move elements before Dequantize instead of after it; return whether that was possible."""
        count = node.op.selects(node)
        data = node.inputs[:count]
        if not count or any(v in self.results for v in node.outputs):
            return False
        stored = [None if v is None else self.stored(v) for v in data]
        present = [v for v in stored if v is not None]
        types = {(v.type.dtype, v.type.quant) for v in present}
        if len(present) != len(stored) or len(types) != 1 or present[0].type.dtype is not _INT8:
            return False
        if not self.movable(node, self.signed(present[0].type)):
            return False
        outputs = self.move(node, [*present, *node.inputs[count:]])
        for old, new in zip(node.outputs, outputs, strict=True):
            self.append(Node(Dequantize(), (new,), (old,), node.origin, Rounding.ONNX))
        return True

    def _quantize(self, node: Node) -> None:
        y = node.output
        assert y.type.quant is not None
        quant = self.signed(y.type)
        found = self._integer(node.input(0), quant, UNLIMITED, node.origin)
        if found is None and (y.type.dtype is DType.INT8 or y in self.results):
            self.append(node)
            return
        if found is None:
            found = self.emit(Quantize(DType.INT8), (node.input(0),), quant, node.origin)
        if y.type.dtype is DType.INT8 and y not in self.results:
            self._renamed[y] = found
        else:
            op = Quantize(y.type.dtype)
            self.append(Node(op, (found,), (y,), node.origin, Rounding.ONNX))
        self.note_signed(y, found)

    def _required(self, value: Value, quant: Quant, limits: Limits, origin: Origin) -> Value:
        """Return the stored integers of a real value, quantizing it if no integer operator can."""
        found = self._integer(value, quant, limits, origin)
        if found is not None:
            return found
        if limits != UNLIMITED:
            for kind, limit in zip(("maximum", "minimum"), limits, strict=True):
                if math.isfinite(limit):
                    bound = self.constant(np.asarray(limit, np.float32), "limit")
                    value = self.emit(Binary(kind), (value, bound), None, origin)
        return self.emit(Quantize(DType.INT8), (value,), quant, origin)

    def _integer(self, value: Value, quant: Quant, limits: Limits, origin: Origin) -> Value | None:
        """Return the integers that store a clamped real value, or None if no integer operator can.

        Args:
            value: A float32 value.
            quant: The quantization of the int8 result.
            limits: Smallest and largest real number.
            origin: The origin of the Quantize.
        """
        target = TensorType(value.type.shape, DType.INT8, quant)
        if value.is_constant:
            real = np.clip(value.array, *limits).astype(np.float32)
            return self.constant(quantize_onnx(real, quant, target), value.name, quant)
        stored = self.stored(value)
        if stored is not None:
            return self._requantized(stored, value, quant, limits, origin)
        table = tabulate(self, value, quant, limits)
        if table is not None:
            return table
        node = self.producer.get(value)
        if node is None or self.uses[value] != 1:
            return None
        return (
            self._clamp(node, quant, limits, origin)
            or self._products.integer(node, quant, limits)
            or self._sum(node, quant, limits)
            or self._moved(node, quant, limits, origin)
        )

    def _requantized(
        self, stored: Value, value: Value, quant: Quant, limits: Limits, origin: Origin
    ) -> Value | None:
        """Convert stored integers to another quantization."""
        type_ = stored.type
        if activation_for(limits, TensorType((), DType.INT8, quant)) is Activation.NONE:
            if type_.dtype is DType.INT8 and type_.quant == quant:
                return stored
            return self.emit(Quantize(DType.INT8), (stored,), quant, origin)
        return tabulate(self, value, quant, limits)

    def _clamp(self, node: Node, quant: Quant, limits: Limits, origin: Origin) -> Value | None:
        """Return the integers of a clamped result of another operator."""
        found = clipped(node)
        if found is None:
            return None
        x, (low, high) = found
        # This clamp is applied first, then the clamp to `limits`.
        inner = min(max(low, limits[0]), limits[1]), min(max(high, limits[0]), limits[1])
        return self._integer(x, quant, inner, origin)

    def _sum(self, node: Node, quant: Quant, limits: Limits) -> Value | None:
        """Return the integers of a binary operation, matrix product, reduction or average pool."""
        op: Op = node.op
        y = TensorType(node.outputs[0].type.shape, DType.INT8, quant)
        activation = activation_for(limits, y)
        if activation is None:
            return None
        match op:
            case Binary(kind, Activation.NONE) if kind in ("add", "sub", "mul", "div"):
                op = replace(op, activation=activation)
            case MatMul():
                if activation is not Activation.NONE:
                    return None
            case Reduce(kind) if kind in ("mean", "sum") and activation is Activation.NONE:
                if op.count(node.input(0).type) > _LONGEST_SUM:
                    return None
            case Pool2D("average", activation=Activation.NONE):
                if op.window[0] * op.window[1] > _LONGEST_SUM:
                    return None
                op = replace(op, activation=activation)
            case _:
                return None
        operands = [None if v is None else self.stored(v) for v in node.inputs]
        if any(v is None or v.type.dtype is not DType.INT8 for v in operands):
            return None
        return self.try_emit(op, operands, quant, node.origin)

    def _moved(self, node: Node, quant: Quant, limits: Limits, origin: Origin) -> Value | None:
        """Return the integers of an operator that only moves elements or selects the largest."""
        count = node.op.selects(node)
        if not count or len(node.outputs) != 1 or not self.movable(node, quant):
            return None
        data = [v for v in node.inputs[:count] if v is not None]
        stored = [self._required(v, quant, limits, origin) for v in data]
        return self.move(node, [*stored, *node.inputs[count:]])[0]


_INT8 = DType.INT8

_LONGEST_SUM = (2**31 - 1) // 255
"""Number of 8-bit elements whose sum is sure to fit into 32 bits."""

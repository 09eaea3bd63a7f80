"""The stored integers behind real values, for the pass to integer arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from smelt.codegen.passes.subgraphs import Names
from smelt.errors import SmeltError
from smelt.ir import Array, DType, Graph, Node, Op, Origin, Quant, Rounding, TensorType, Value
from smelt.ops.arithmetic.fixed_point import Activation, clamp_limits, quantize_real
from smelt.ops.core.binary import Binary
from smelt.ops.core.quantize import Dequantize, Quantize
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.transpose import Transpose

Limits = tuple[float, float]
UNLIMITED: Limits = (-math.inf, math.inf)

_CLAMPS = {activation.value: activation.limits for activation in Activation}


def clipped(node: Node) -> tuple[Value, Limits] | None:
    """Return the operand and the limits of a clamp, or None."""
    match node.op:
        case Unary(kind) if kind in _CLAMPS:
            return node.input(0), _CLAMPS[kind]
        case Binary("maximum" | "minimum" as kind, Activation.NONE):
            x, bound = node.input(0), node.input(1)
            if x.is_constant:
                x, bound = bound, x
            if bound.data is None or bound.type.size != 1 or x.type.shape != node.output.type.shape:
                return None
            limit = float(bound.data.item())
            return x, (limit, math.inf) if kind == "maximum" else (-math.inf, limit)
        case _:
            return None


def activation_for(limits: Limits, y: TensorType) -> Activation | None:
    """Return the activation that clamps to the same stored limits, or None."""
    low, high = y.dtype.limits
    wanted = tuple(
        min(max(quantize_real(limit, y.scale, y.zero_point, Rounding.ONNX), low), high)
        if math.isfinite(limit)
        else bound
        for limit, bound in zip(limits, (low, high), strict=True)
    )
    for activation in Activation:
        if clamp_limits(activation, y, Rounding.ONNX) == wanted:
            return activation
    return None


class StoredValues:
    """The new graph under construction, and the stored integers behind its real values.

    Attributes:
        nodes: The nodes so far.
        producer: The node that computes each value.
        uses: The number of uses of each value of the old graph.
        results: The results of the old graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.producer: dict[Value, Node] = {}
        self.results = set(graph.results)
        operands = (v for node in graph.nodes for v in node.inputs if v is not None)
        self.uses = Counter([*operands, *graph.results])
        self._names = Names(graph)
        self._signed: dict[Value, Value] = {}

    def append(self, node: Node) -> None:
        """Add a node."""
        self.nodes.append(node)
        self.producer |= dict.fromkeys(node.outputs, node)

    def constant(self, array: Array, name: str, quant: Quant | None = None) -> Value:
        """Return a new constant."""
        return Value.constant(self._names.fresh(name), array, quant)

    def emit(
        self, op: Op, inputs: Sequence[Value | None], quant: Quant | None, origin: Origin
    ) -> Value:
        """Add a node with one output of this quantization, and return the output.

        If all operands are constant, the result is computed and returned as a constant.
        """
        (type_,) = op.infer([None if v is None else v.type for v in inputs])
        name = next((v.name for v in inputs if v is not None), origin.kind)
        output = Value(self._names.fresh(origin.name or name), replace(type_, quant=quant))
        node = Node(op, tuple(inputs), (output,), origin, Rounding.ONNX)
        op.check(node)
        if all(v is None or v.is_constant for v in inputs):
            (array,) = op.reference(node, [None if v is None else v.data for v in inputs])
            return Value.constant(output.name, array, quant)
        self.append(node)
        return output

    def try_emit(
        self, op: Op, inputs: Sequence[Value | None], quant: Quant | None, origin: Origin
    ) -> Value | None:
        """Add a node as `emit` does; return None if the operator rejects these operands."""
        try:
            return self.emit(op, inputs, quant, origin)
        except SmeltError:
            return None

    # Stored integers

    def signed(self, type_: TensorType) -> Quant:
        """Return the quantization after uint8 is converted to int8.

        Raises:
            ValueError: The type is not quantized.
        """
        if type_.quant is None:
            raise ValueError(f"{type_} is not quantized")
        down = type_.dtype.limits[0] - DType.INT8.limits[0] if type_.dtype.size == 1 else 0
        zero_point = tuple(z - down for z in type_.quant.zero_point)
        return replace(type_.quant, zero_point=zero_point)

    def note_signed(self, value: Value, signed: Value) -> None:
        """Record `signed` as the int8 form of a uint8 value: its stored numbers are 128 lower."""
        self._signed[value] = signed

    def as_signed(self, value: Value) -> Value:
        """Return the int8 form of a value if it has one, else the value."""
        return self._signed.get(value, value)

    def stored(self, value: Value) -> Value | None:
        """Return the integers (int8, 16 or 32 bits) that a real value is dequantized from.

        Returns None if the value is not dequantized, or not with a single scale.
        """
        node = self.producer.get(value)
        if node is None or not isinstance(node.op, Dequantize) or node.rounding is not _ONNX:
            return None
        source = node.input(0)
        if source.type.quant is None or not source.type.quant.is_per_tensor:
            return None
        if source.type.dtype is not DType.UINT8:
            return source
        if source not in self._signed:
            quant = self.signed(source.type)
            if source.data is not None:
                centered = (source.data.astype(np.int16) - 128).astype(np.int8)
                self._signed[source] = self.constant(centered, source.name, quant)
            else:
                op = Quantize(DType.INT8)
                self._signed[source] = self.emit(op, (source,), quant, node.origin)
        return self._signed[source]

    def known(self, value: Value | None) -> tuple[Array, Quant] | None:
        """Return the integers and quantization of a dequantized constant; None for other values.

        8-bit integers are returned as int8.
        """
        node = None if value is None else self.producer.get(value)
        if node is None:
            return None
        source = node.input(0)
        match node.op:
            case Dequantize() if source.data is not None and source.type.quant is not None:
                centered = source.data.astype(np.int64)
                if source.type.dtype is DType.UINT8:
                    centered = centered - 128
                dtype = np.int8 if source.type.dtype.size == 1 else source.type.dtype.numpy
                return centered.astype(dtype), self.signed(source.type)
            case Transpose(permutation):
                found = self.known(source)
                if found is None:
                    return None
                array, quant = found
                axis = None if quant.axis is None else permutation.index(quant.axis)
                return np.ascontiguousarray(array.transpose(permutation)), replace(quant, axis=axis)
            case Reshape(shape):
                found = self.known(source)
                if found is None:
                    return None
                array, quant = found
                if quant.axis is not None:
                    axis = _axis_after(array.shape, shape, quant.axis)
                    if axis is None:
                        return None
                    quant = replace(quant, axis=axis)
                return array.reshape(shape), quant
            case _:
                return None

    def real(self, value: Value | None) -> Array | None:
        """Return the elements of a constant, dequantized or not, as float64."""
        if value is None:
            return None
        if value.data is not None:
            return value.data.astype(np.float64)
        found = self.known(value)
        if found is None:
            return None
        array, quant = found
        shape = [-1 if i == quant.axis else 1 for i in range(array.ndim)]
        if quant.axis is None:
            shape = []
        scale = np.reshape(np.asarray(quant.scale, np.float64), shape)
        zero_point = np.reshape(np.asarray(quant.zero_point, np.int64), shape)
        return (array.astype(np.int64) - zero_point) * scale

    # Operators that move elements

    def movable(self, node: Node, quant: Quant) -> bool:
        """Return whether a node can move int8 elements of this quantization."""
        count = node.op.selects(node)
        if not node.outputs[0].type.dtype.is_float:
            return False
        fakes = [
            v
            if v is None or i >= count
            else Value(v.name, TensorType(v.type.shape, DType.INT8, quant))
            for i, v in enumerate(node.inputs)
        ]
        try:
            types = node.op.infer([None if v is None else v.type for v in fakes])
            outputs = tuple(
                Value(v.name, replace(t, quant=quant))
                for v, t in zip(node.outputs, types, strict=True)
            )
            node.op.check(replace(node, inputs=tuple(fakes), outputs=outputs, rounding=_ONNX))
        except SmeltError:
            return False
        return True

    def move(self, node: Node, inputs: Sequence[Value | None]) -> list[Value]:
        """Add a node that moves elements of these operands, and return its outputs.

        Constant operands are moved at compile time.
        """
        data = [v for v in inputs[: node.op.selects(node)] if v is not None]
        quant = data[0].type.quant
        types = node.op.infer([None if v is None else v.type for v in inputs])
        outputs = tuple(
            Value(self._names.fresh(v.name), replace(t, quant=quant))
            for v, t in zip(node.outputs, types, strict=True)
        )
        made = replace(node, inputs=tuple(inputs), outputs=outputs, rounding=_ONNX)
        if all(v is None or v.is_constant for v in inputs):
            arrays = node.op.reference(made, [None if v is None else v.data for v in inputs])
            return [Value.constant(v.name, a, quant) for v, a in zip(outputs, arrays, strict=True)]
        self.append(made)
        return list(outputs)


_ONNX = Rounding.ONNX


def _axis_after(old: Sequence[int], new: Sequence[int], axis: int) -> int | None:
    """Return the index of an axis after a reshape that keeps it, or None."""
    before = prod(old[:axis])
    for index, size in enumerate(new):
        if size == old[axis] and prod(new[:index]) == before:
            return index
    return None

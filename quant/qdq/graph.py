"""Builder of the ONNX graph of a quantized network.

Images are channels first, and are transposed only where the network's own axes require it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from smelt.errors import UnsupportedError
from smelt.ir import Array, DType, Graph, Node, Op, Value
from smelt.ir.onnx_form import OnnxForm
from smelt.quant.qdq.table_functions import FunctionNodes

OPSET = 17
FIRST = (0, 3, 1, 2)
"""Permutation from `[n,h,w,c]` to channels first."""

_TYPES = {
    DType.FLOAT32: TensorProto.FLOAT,
    DType.FLOAT64: TensorProto.DOUBLE,
    DType.FLOAT16: TensorProto.FLOAT16,
    DType.INT8: TensorProto.INT8,
    DType.UINT8: TensorProto.UINT8,
    DType.INT16: TensorProto.INT16,
    DType.UINT16: TensorProto.UINT16,
    DType.INT32: TensorProto.INT32,
    DType.UINT32: TensorProto.UINT32,
    DType.INT64: TensorProto.INT64,
    DType.UINT64: TensorProto.UINT64,
    DType.BOOL: TensorProto.BOOL,
}
_SIXTEEN = (DType.INT16, DType.UINT16)
_MICROSOFT = "com.microsoft"
"""Domain of the QuantizeLinear that supports 16 bits in this operator set."""

Emitter = Callable[["Exporter", Node, Any], None]
"""Emits the ONNX nodes of a node; the last argument is the node's operator."""


class Exporter:
    """Builder of an ONNX graph.

    Each tensor may exist in two orders of its axes: that of the network, and channels first.

    Attributes:
        nodes: the ONNX nodes emitted so far.
        functions: the functions that tables of the network replace, as far as they are known.
    """

    def __init__(
        self,
        graph: Graph,
        emitters: Mapping[type[Op], Emitter],
        functions: Mapping[Node, FunctionNodes],
        results: Sequence[str],
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.functions = functions
        self._emitters = emitters
        self._read = {v for node in graph.nodes for v in node.inputs} | set(graph.results)
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._names = {value.name for value in graph.inputs}
        # A network's output may also be an input, or another output; ONNX needs distinct names.
        self._results = tuple(map(self.fresh, results))
        self._stored: dict[tuple[Value, bool], str] = {}
        self._real: dict[tuple[Value, bool], str] = {}

    def is_read(self, value: Value) -> bool:
        """Return whether a value is a result of the network or is read by a node."""
        return value in self._read

    def serves(self, node: Node) -> bool:
        """Return whether a node's operator can be exported."""
        return type(node.op) in self._emitters or node.op.onnx_form(node) is not None

    def emit_node(self, node: Node) -> None:
        """Emit the ONNX nodes of a node of the network.

        Raises:
            UnsupportedError: its operator cannot be exported.
        """
        emitter, form = self._emitters.get(type(node.op)), node.op.onnx_form(node)
        if emitter is not None:
            emitter(self, node, node.op)
        elif form is not None:
            self._emit_form(node, form)
        else:
            raise UnsupportedError(f"{node.origin}: {node.op.name} cannot be exported to ONNX")

    def _emit_form(self, node: Node, form: OnnxForm) -> None:
        """Emit a node that corresponds to a single ONNX operator."""
        first = node.op.elementwise and self.may_be_channels_first(node)
        hint = f"{node.name}_{form.operator.lower()}"
        constants = [self.constant(f"{node.name}_{k}", data) for k, data in form.constants.items()]
        operands = [self.real(v, first=first) for v in node.inputs if v is not None]
        name = self.emit(form.operator, [*operands, *constants], hint, **form.attributes)
        self.finish(node.output, name, first=first)

    def emit(self, operator: str, inputs: Sequence[str], hint: str, **attributes: Any) -> str:
        """Emit a node with one result, and return the result's name."""
        (name,) = self.emit_several(operator, inputs, [hint], **attributes)
        return name

    def emit_several(
        self, operator: str, inputs: Sequence[str], hints: Sequence[str], **attributes: Any
    ) -> list[str]:
        """Emit a node, and return its results' names; an empty hint omits that result."""
        names = [self.fresh(hint) if hint else "" for hint in hints]
        title = next(name for name in names if name)
        self.nodes.append(helper.make_node(operator, inputs, names, title, **attributes))
        return names

    def constant(self, hint: str, data: Array) -> str:
        """Add an initializer, and return its name."""
        name = self.fresh(hint)
        self._initializers[name] = numpy_helper.from_array(np.asarray(data, order="C"), name)
        return name

    def fresh(self, hint: str) -> str:
        """Return an unused name."""
        name, count = hint, 2
        while name in self._names:
            name, count = f"{hint}_{count}", count + 1
        self._names.add(name)
        return name

    def is_channels_first(self, value: Value | None) -> bool:
        """Return whether a tensor exists only with channels first."""
        return (value, True) in self._stored and (value, False) not in self._stored

    def may_be_channels_first(self, node: Node) -> bool:
        """Return whether an operator can and should take its operands with channels first."""
        given = [v for v in node.inputs if v is not None]
        spatial = all(v.data is not None or len(v.type.shape) == 4 for v in given)
        return spatial and any(self.is_channels_first(v) for v in given)

    def real(self, value: Value, *, first: bool = False) -> str:
        """Return a tensor's float form in the given order, dequantizing it if needed."""
        key = value, first
        if key not in self._real:
            self._real[key] = self._make_real(value, first)
        return self._real[key]

    def weights(self, value: Value, data: Array, axis: int | None) -> str:
        """Add a constant with reordered elements, and return its (dequantized) name.

        Args:
            value: the constant.
            data: its elements in the new order.
            axis: axis of `data` along which the scales vary, or None for a single scale.
        """
        name = self.constant(value.name, data)
        if value.type.quant is None:
            return name
        return self._dequantize(value, name, axis)

    def finish(self, value: Value, real: str, *, first: bool = False) -> None:
        """Set the float form of a node's result, and quantize it if the tensor is quantized."""
        if value.type.quant is None:
            self._real[value, first] = self._stored[value, first] = real
            return
        scale, zero_point = self._quantization(value)
        self._stored[value, first] = self.emit(
            "QuantizeLinear",
            [real, scale, zero_point],
            f"{value.name}_quantized",
            **_domain(value),
        )

    def set_alias(self, value: Value, real: str, *, first: bool) -> None:
        """Make a tensor of another network an alias of float numbers of this one."""
        for order in (False, True):
            self._stored.pop((value, order), None)
            self._real.pop((value, order), None)
        self._real[value, first] = self._stored[value, first] = real

    def stored(self, value: Value) -> str:
        """Return the stored form of a tensor, in the network's order of axes."""
        if value.data is not None and (value, False) not in self._stored:
            self._stored[value, False] = self.constant(value.name, value.data)
        if (value, False) not in self._stored:
            back = tuple(int(i) for i in np.argsort(FIRST))
            self._stored[value, False] = self.emit(
                "Transpose", [self._stored[value, True]], f"{value.name}_last", perm=back
            )
        return self._stored[value, False]

    def set_stored(self, value: Value, name: str) -> None:
        """Set the stored form of a tensor, in the network's order of axes."""
        self._stored[value, False] = name

    def model(self, graph: Graph) -> onnx.ModelProto:
        """Return the complete model; all nodes must have been emitted."""
        for value, result in zip(graph.outputs, self._results, strict=True):
            # The tensor's float form has another name, since other nodes may read it.
            self.nodes.append(helper.make_node("Identity", [self.real(value)], [result], result))
        proto = helper.make_graph(
            self.nodes,
            graph.name,
            [_info(value, value.name) for value in graph.inputs],
            [_info(v, name) for v, name in zip(graph.outputs, self._results, strict=True)],
            list(self._initializers.values()),
        )
        opsets = [helper.make_opsetid("", OPSET)]
        if any(node.domain == _MICROSOFT for node in self.nodes):
            opsets.append(helper.make_opsetid(_MICROSOFT, 1))
        return helper.make_model(proto, opset_imports=opsets, producer_name="smelt", ir_version=8)

    def _make_real(self, value: Value, first: bool) -> str:
        if value.data is not None:
            data, quant = value.array, value.type.quant
            axis = None if quant is None else quant.axis
            if first:
                data = data.reshape((1,) * (4 - data.ndim) + data.shape).transpose(FIRST)
                axis = None if axis is None else FIRST.index(axis + 4 - value.array.ndim)
            return self.weights(value, data, axis)
        for source, order in ((first, None), (not first, FIRST if first else np.argsort(FIRST))):
            if (value, source) in self._stored:
                name = self._stored[value, source]
                if value.type.quant is not None:
                    name = self._real.get((value, source)) or self._dequantize(value, name, None)
                    self._real[value, source] = name
                if order is None:
                    return name
                permutation = [int(i) for i in order]
                return self.emit("Transpose", [name], f"{value.name}_moved", perm=permutation)
        raise KeyError(value.name)

    def _dequantize(self, value: Value, name: str, axis: int | None) -> str:
        scale, zero_point = self._quantization(value)
        along = {} if axis is None else {"axis": axis}
        return self.emit(
            "DequantizeLinear",
            [name, scale, zero_point],
            f"{value.name}_real",
            **along,
            **_domain(value),
        )

    def _quantization(self, value: Value) -> tuple[str, str]:
        """Return the initializers of scale and zero point."""
        quant, dtype = value.type.quant, value.type.dtype.numpy
        if quant is None:
            raise ValueError(f"{value.name} is not quantized")
        scale = np.asarray(quant.scale, np.float32)
        zero_point = np.asarray(quant.zero_point, dtype)
        if quant.is_per_tensor:
            scale, zero_point = scale.reshape(()), zero_point.reshape(())
        return (
            self.constant(f"{value.name}_scale", scale),
            self.constant(f"{value.name}_zero_point", zero_point),
        )


def _domain(value: Value) -> dict[str, str]:
    return {"domain": _MICROSOFT} if value.type.dtype in _SIXTEEN else {}


def _info(value: Value, name: str) -> onnx.ValueInfoProto:
    type_ = TensorProto.FLOAT if value.type.quant is not None else _TYPES[value.type.dtype]
    return helper.make_tensor_value_info(name, type_, value.type.shape)

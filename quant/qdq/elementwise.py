"""QDQ export of elementwise operators, and of the tables that replace functions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from smelt.ir import Node, Op
from smelt.ops.core.binary import Binary
from smelt.ops.core.quantize import Dequantize, Quantize
from smelt.ops.core.table import Table
from smelt.ops.core.unary import Unary
from smelt.quant.qdq.graph import Emitter, Exporter
from smelt.quant.qdq.shapes import activated, unsupported
from smelt.quant.qdq.unary import SERVED, emit_unary

_BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "pow": "Pow",
}


def _binary(exporter: Exporter, node: Node, op: Binary) -> None:
    first = exporter.may_be_channels_first(node)
    a, b = (exporter.real(node.input(index), first=first) for index in (0, 1))
    if op.kind == "squared_difference":
        difference = exporter.emit("Sub", [a, b], f"{node.name}_difference")
        name = exporter.emit("Mul", [difference, difference], f"{node.name}_square")
    elif op.kind in _BINARY:
        name = exporter.emit(_BINARY[op.kind], [a, b], f"{node.name}_{op.kind}")
    else:
        raise unsupported(node, f"of kind {op.kind}")
    exporter.finish(node.output, activated(exporter, node, name, op.activation), first=first)


def _unary(exporter: Exporter, node: Node, op: Unary) -> None:
    if op.kind not in SERVED:
        raise unsupported(node, f"of kind {op.kind}")
    first = exporter.may_be_channels_first(node)
    name = emit_unary(exporter, op, exporter.real(node.input(0), first=first), node.name)
    exporter.finish(node.output, name, first=first)


def _table(exporter: Exporter, node: Node, _: Table) -> None:
    """Emit the float operators that the table replaces, or a look-up if they are unknown."""
    function = exporter.functions.get(node)
    if function is None or not all(_is_written(exporter, inner) for inner in function[1]):
        _look_up(exporter, node)
        return
    x, path = function
    first = exporter.is_channels_first(node.input(0))
    exporter.set_alias(x, exporter.real(node.input(0), first=first), first=first)
    for inner in path:
        exporter.emit_node(inner)
    result = path[-1].output if path else x
    first = exporter.is_channels_first(result)
    exporter.finish(node.output, exporter.real(result, first=first), first=first)


def _is_written(exporter: Exporter, node: Node) -> bool:
    match node.op:
        case Unary(kind=kind):
            return kind in SERVED
        case Binary(kind=kind):
            return kind in _BINARY
        case _:
            return exporter.serves(node)


def _look_up(exporter: Exporter, node: Node) -> None:
    value, table = node.input(0), node.input(1)
    lowest = np.asarray(-value.type.dtype.limits[0], np.int32)
    index = exporter.emit(
        "Cast", [exporter.stored(value)], f"{node.name}_index", to=TensorProto.INT32
    )
    index = exporter.emit(
        "Add", [index, exporter.constant(f"{node.name}_lowest", lowest)], f"{node.name}_index"
    )
    results = exporter.constant(table.name, table.array)
    exporter.set_stored(
        node.output, exporter.emit("Gather", [results, index], f"{node.name}_quantized")
    )


def _between_scales(exporter: Exporter, node: Node, _: Quantize | Dequantize) -> None:
    """Pass on the real numbers of Quantize and Dequantize; the types say how they are stored."""
    first = exporter.is_channels_first(node.input(0))
    exporter.finish(node.output, exporter.real(node.input(0), first=first), first=first)


EMITTERS: Mapping[type[Op], Emitter] = {
    Binary: _binary,
    Dequantize: _between_scales,
    Quantize: _between_scales,
    Table: _table,
    Unary: _unary,
}
"""Emitters by operator."""

"""Functions shared by the emitters of several operators."""

from __future__ import annotations

import numpy as np

from smelt.errors import UnsupportedError
from smelt.ir import Node, Value
from smelt.ops.arithmetic.fixed_point import Activation, clamp_limits
from smelt.ops.core.convolution import Padding2D
from smelt.quant.qdq.graph import FIRST, Exporter


def order_of(first: bool, value: Value) -> tuple[int, ...]:
    """Return the axes of a tensor in the order in which it exists."""
    return FIRST if first else tuple(range(len(value.type.shape)))


def activated(exporter: Exporter, node: Node, name: str, activation: Activation) -> str:
    """Emit an activation, unless the quantization of the result clamps at the same limits."""
    y = node.output.type
    if activation is Activation.NONE:
        return name
    if y.quant is not None and clamp_limits(activation, y, node.rounding) == y.dtype.limits:
        return name
    if activation is Activation.RELU:
        return exporter.emit("Relu", [name], f"{node.name}_relu")
    limits = [
        exporter.constant(f"{node.name}_limit", np.asarray(limit, np.float32))
        for limit in activation.limits
    ]
    return exporter.emit("Clip", [name, *limits], f"{node.name}_clip")


def reshaped(
    exporter: Exporter, name: str, shape: tuple[int, ...], wanted: tuple[int, ...], hint: str
) -> str:
    """Reshape a tensor if needed, and return its name."""
    if shape == wanted:
        return name
    sizes = exporter.constant(f"{hint}_shape", np.asarray(wanted, np.int64))
    return exporter.emit("Reshape", [name, sizes], f"{hint}_reshaped")


def pads_of(padding: Padding2D) -> list[int]:
    """Return padding in ONNX's order: top, left, bottom, right."""
    (top, bottom), (left, right) = padding
    return [top, left, bottom, right]


def unsupported(node: Node, what: str) -> UnsupportedError:
    """Return the error for an operator that cannot be exported; `what` says in which case."""
    return UnsupportedError(f"{node.origin}: {node.op.name} {what} cannot be exported to ONNX")

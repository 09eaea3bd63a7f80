"""QDQ export of pooling, reductions and normalizations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from smelt.ir import Node, Op
from smelt.ops.core.l2_normalization import L2Normalization
from smelt.ops.core.normalization import Normalization
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.softmax import LogSoftmax, Softmax
from smelt.quant.qdq.graph import FIRST, Emitter, Exporter
from smelt.quant.qdq.shapes import activated, order_of, pads_of, unsupported


def _pool(exporter: Exporter, node: Node, op: Pool2D) -> None:
    if op.kind == "sum" or (op.kind == "average" and op.dilation != (1, 1)):
        raise unsupported(node, "of sums, or dilated,")
    average = op.kind == "average"
    attributes = (
        {"count_include_pad": int(op.counts_padding)} if average else {"dilations": op.dilation}
    )
    name = exporter.emit(
        "AveragePool" if average else "MaxPool",
        [exporter.real(node.input(0), first=True)],
        f"{node.name}_pool",
        kernel_shape=op.window,
        strides=op.stride,
        pads=pads_of(op.padding),
        **attributes,
    )
    exporter.finish(node.output, activated(exporter, node, name, op.activation), first=True)


_REDUCE = {
    "mean": "ReduceMean",
    "sum": "ReduceSum",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
    "l1": "ReduceL1",
    "l2": "ReduceL2",
    "log_sum": "ReduceLogSum",
    "log_sum_exp": "ReduceLogSumExp",
    "sum_square": "ReduceSumSquare",
}


def _reduce(exporter: Exporter, node: Node, op: Reduce) -> None:
    x = node.input(0)
    left = [axis for axis in FIRST if axis not in op.axes]
    first = exporter.may_be_channels_first(node) and (op.keep_dims or left == sorted(left))
    axes = sorted(order_of(first, x).index(axis) for axis in op.axes)
    real = exporter.real(x, first=first)
    if op.kind == "sum":
        where = exporter.constant(f"{node.name}_axes", np.asarray(axes, np.int64))
        name = exporter.emit(
            "ReduceSum", [real, where], f"{node.name}_sum", keepdims=int(op.keep_dims)
        )
    else:
        name = exporter.emit(
            _REDUCE[op.kind], [real], f"{node.name}_reduced", axes=axes, keepdims=int(op.keep_dims)
        )
    exporter.finish(node.output, name, first=first and op.keep_dims)


def _softmax(exporter: Exporter, node: Node, op: Softmax | LogSoftmax) -> None:
    first = exporter.may_be_channels_first(node)
    name = exporter.real(node.input(0), first=first)
    if isinstance(op, Softmax) and op.beta != 1.0:
        beta = exporter.constant(f"{node.name}_beta", np.asarray(op.beta, np.float32))
        name = exporter.emit("Mul", [name, beta], f"{node.name}_scaled")
    operator = "LogSoftmax" if isinstance(op, LogSoftmax) else "Softmax"
    name = exporter.emit(operator, [name], f"{node.name}_softmax", axis=1 if first else -1)
    exporter.finish(node.output, name, first=first)


def _l2_normalization(exporter: Exporter, node: Node, op: L2Normalization) -> None:
    hint, name = node.name, exporter.real(node.input(0))
    norm = exporter.emit("ReduceL2", [name], f"{hint}_norm", axes=(-1,), keepdims=1)
    least = exporter.constant(f"{hint}_least", np.asarray(op.least, np.float32))
    norm = exporter.emit("Max", [norm, least], f"{hint}_at_least")
    exporter.finish(node.output, exporter.emit("Div", [name, norm], f"{hint}_normalized"))


def _normalization(exporter: Exporter, node: Node, op: Normalization) -> None:
    if op.statistics:
        raise unsupported(node, "with its statistics as results")
    hint, name = node.name, exporter.real(node.input(0))
    if op.centered:
        mean = exporter.emit("ReduceMean", [name], f"{hint}_mean", axes=op.axes, keepdims=1)
        name = exporter.emit("Sub", [name, mean], f"{hint}_centered")
    square = exporter.emit("Mul", [name, name], f"{hint}_square")
    variance = exporter.emit("ReduceMean", [square], f"{hint}_variance", axes=op.axes, keepdims=1)
    epsilon = exporter.constant(f"{hint}_epsilon", np.asarray(op.epsilon, np.float32))
    root = exporter.emit("Sqrt", [exporter.emit("Add", [variance, epsilon], hint)], f"{hint}_root")
    name = exporter.emit("Div", [name, root], f"{hint}_normalized")
    for operator, value in zip(("Mul", "Add"), (node.optional(1), node.optional(2)), strict=True):
        if value is not None:
            name = exporter.emit(operator, [name, exporter.real(value)], f"{hint}_{operator}")
    exporter.finish(node.output, name)


EMITTERS: Mapping[type[Op], Emitter] = {
    L2Normalization: _l2_normalization,
    LogSoftmax: _softmax,
    Normalization: _normalization,
    Pool2D: _pool,
    Reduce: _reduce,
    Softmax: _softmax,
}
"""Emitters by operator."""

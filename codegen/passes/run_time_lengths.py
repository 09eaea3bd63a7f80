"""Rewrites length-dependent nodes to take the run-time length as an operand."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from smelt.ir import Array, DType, Length, Node, Op, Rewrite, TensorType, Value
from smelt.ops.control.run_time_length import FillRows, LengthOf, TransposeLength
from smelt.ops.core.binary import Binary
from smelt.ops.core.cast import Cast
from smelt.ops.core.reduce import REDUCE, Reduce
from smelt.ops.run_time_lengths import Mark, Marks, from_end, picks_rows
from smelt.ops.sequence.recurrence import LENGTHS, Recurrence
from smelt.ops.tensor.gather import Gather
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.slice import Slice
from smelt.ops.tensor.transpose import Transpose


def with_length_operand(node: Node, marks: Marks) -> Rewrite:
    """Return nodes that take the length as an operand, or None if the node does not depend on it.

    - A recurrence stops at the end of its sequence.
    - A slice of the last rows becomes a gather whose indices are computed from the length.
    - A reduction along the length first fills the missing rows with its neutral element, then
      reduces all rows.
    - A transposition that moves the length to or from the outermost axis takes the length to
      compute its strides.
    """
    source = node.inputs[0] if node.inputs else None
    mark = None if source is None else marks.get(source)
    if source is None or mark is None:
        return None
    match node.op:
        case Recurrence() if not node.op.has_length_operand(node):
            return _recurrence(node, mark.length, source.type.shape[1])
        case Slice() as op if picks_rows(node, marks) and from_end(op, mark):
            return _last_rows(node, op, mark)
        case Reduce() as op if mark.axis in op.axes:
            return _reduction(node, op, mark)
        case Transpose() as op:
            return _transposition(node, op, mark, marks[node.output])
        case _:
            return None


def _length_node(node: Node, length: Length, count: int = 1) -> Node:
    """Return a node that outputs the length, repeated `count` times."""
    return _new(node, "length", LengthOf(length.name, length.maximum, count))


def _new(node: Node, suffix: str, op: Op, *inputs: Value) -> Node:
    """Return a new node that computes an intermediate step of `node`."""
    types = [value.type for value in inputs]
    (type_,) = op.infer(types)
    type_ = TensorType(type_.shape, type_.dtype, op.output_quant(types) if inputs else None)
    return Node(op, inputs, (Value(f"{node.name}:{suffix}", type_),), node.origin)


def _constant(node: Node, suffix: str, array: Array) -> Value:
    return Value.constant(f"{node.name}:{suffix}", array)


def _recurrence(node: Node, length: Length, batch: int) -> Rewrite:
    length_node = _length_node(node, length, batch)
    absent = (None,) * (LENGTHS - len(node.inputs))
    operands = (*node.inputs[:LENGTHS], *absent, length_node.output)
    return [length_node, replace(node, inputs=operands)], node.outputs


def _last_rows(node: Node, op: Slice, mark: Mark) -> Rewrite:
    axis, x, count = mark.axis, node.input(0), op.sizes[mark.axis]
    length_node = _length_node(node, mark.length, count)
    distance = _constant(node, "distance", np.arange(count, 0, -1, dtype=np.int32))
    rows = _new(node, "rows", Binary("sub"), length_node.output, distance)
    last = _new(node, "last", Gather(axis), x, rows.output)
    starts = (*op.starts[:axis], 0, *op.starts[axis + 1 :])
    if (op.sizes, starts) == (last.output.type.shape, (0,) * len(starts)):
        return [length_node, rows, replace(last, outputs=node.outputs)], node.outputs
    rest = replace(node, op=replace(op, starts=starts), inputs=(last.output,))
    return [length_node, rows, last, rest], node.outputs


def _reduction(node: Node, op: Reduce, mark: Mark) -> Rewrite:
    """Reduce along the length, after the missing rows were filled with the neutral element.

    A mean is computed over the maximum number of rows, then multiplied by maximum / length.
    """
    x, y = node.input(0), node.output
    quantized, mean = x.type.quant is not None, op.kind == "mean"
    plain = (mark.outer, mark.factor) == (1, 1)
    if not plain or x.type.dtype is DType.BOOL:
        return None
    if (quantized and op.kind not in ("max", "min")) or (mean and not x.type.dtype.is_float):
        return None
    length_node = _length_node(node, mark.length)
    fill = FillRows(x.type.shape[mark.axis], mark.axis, REDUCE[op.kind].neutral)
    filled = _new(node, "filled", fill, x, length_node.output)
    if not mean:
        return [length_node, filled, replace(node, inputs=(filled.output,))], (y,)
    whole = _new(node, "whole", op, filled.output)
    scalar = _new(node, "scalar", Reshape(()), length_node.output)
    count = _new(node, "count", Cast(x.type.dtype), scalar.output)
    most = _constant(node, "most", np.asarray(mark.length.maximum, x.type.dtype.numpy))
    ratio = _new(node, "ratio", Binary("div"), most, count.output)
    last = replace(node, op=Binary("mul"), inputs=(whole.output, ratio.output))
    return [length_node, filled, whole, scalar, count, ratio, last], (y,)


def _transposition(node: Node, op: Transpose, source: Mark, target: Mark) -> Rewrite:
    """Transpose with strides that depend on the length.

    Each mark's length must be alone on its axis.
    """
    x, y = node.input(0), node.output
    plain = all(
        mark.outer == prod(value.type.shape[: mark.axis])
        for value, mark in ((x, source), (y, target))
    )
    if not plain or source.outer == target.outer == 1:
        return None
    length_node = _length_node(node, source.length)
    moved = TransposeLength(op.permutation, source.axis, source.factor)
    return [length_node, replace(node, op=moved, inputs=(x, length_node.output))], (y,)

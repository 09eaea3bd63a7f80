"""Converters of operators that select elements: by bounds, by indices, or by order."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from smelt.frontend.onnx import expansion
from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.frontend.onnx.operators.shape import axis_of, require_size, slice_along
from smelt.ir import Array, Value
from smelt.ops.core.arg_reduce import ArgReduce
from smelt.ops.sequence.reverse_sequence import ReverseSequence
from smelt.ops.tensor.gather import Gather, GatherElements, GatherND
from smelt.ops.tensor.indices import positions
from smelt.ops.tensor.one_hot import OneHot
from smelt.ops.tensor.scatter import REDUCTIONS, ScatterElements, ScatterND, TensorScatter
from smelt.ops.tensor.slice import Slice
from smelt.ops.tensor.top_k import TopK
from smelt.ops.tensor.triangle import Triangle


def _slice(operation: Operation) -> Value:
    """Convert Slice; bounds work as in Python, so that those out of range are clamped."""
    x = operation.value(0)
    shape = x.type.shape
    bounds = [
        operation.attribute_or_operand(name, i) for i, name in enumerate(("starts", "ends"), 1)
    ]
    starts, ends = bounds
    if starts is None or ends is None:
        raise operation.wrong("it has no starts or no ends")
    axes = operation.attribute_or_operand("axes", 3) or tuple(range(len(starts)))
    steps = operation.attribute_or_operand("steps", 4) or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise operation.wrong(
            f"starts {list(starts)}, ends {list(ends)}, axes {list(axes)} and steps {list(steps)} "
            "must have equally many entries, and no step may be 0"
        )
    resolved = [range(size) for size in shape]
    own = operation.axes(axes, len(shape)) if shape else ()
    if len(own) != len(starts):
        raise operation.wrong(f"axes {list(axes)} do not exist in '{x.name}' {x.type}")
    for axis, start, end, step in zip(own, starts, ends, steps, strict=True):
        resolved[axis] = range(shape[axis])[start:end:step]
    if all(len(r) == n and r.step > 0 for r, n in zip(resolved, shape, strict=True)):
        return x
    op = Slice(
        tuple(r.start if r else 0 for r in resolved),
        tuple(len(r) for r in resolved),
        tuple(r.step if len(r) > 1 else 1 for r in resolved),
    )
    return operation.emit(op, x, quant=x.type.quant)


def _gather(operation: Operation) -> Value:
    x, indices = operation.value(0), operation.value(1)
    axis = axis_of(operation, x, 0)
    if indices.data is not None:
        return gathered(operation, x, indices.data, axis)
    return operation.emit(Gather(axis), x, indices, quant=x.type.quant)


def gathered(operation: Operation, x: Value, indices: Array, axis: int) -> Value:
    """Return the elements at constant indices: a slice if these are evenly spaced."""
    size = x.type.shape[axis]
    if indices.size and (int(indices.max()) >= size or int(indices.min()) < -size):
        raise operation.wrong(
            f"indices from {int(indices.min())} to {int(indices.max())} are out of range for axis "
            f"{axis} of '{x.name}' {x.type}"
        )
    where = positions(indices, size).ravel()
    steps = set(np.diff(where).tolist())
    shape = (*x.type.shape[:axis], *indices.shape, *x.type.shape[axis + 1 :])
    if where.size and len(steps) < 2 and steps != {0}:
        step = steps.pop() if steps else 1
        part = slice_along(operation, x, axis, int(where[0]), where.size, step)
        return operation.reshape(part, shape)
    table = operation.literal(where.reshape(indices.shape))
    return operation.emit(Gather(axis), x, table, quant=x.type.quant)


def _gather_elements(operation: Operation) -> Value:
    x, indices = operation.value(0), operation.value(1)
    axis = axis_of(operation, x, 0)
    return operation.emit(GatherElements(axis), x, indices, quant=x.type.quant)


def _gather_nd(operation: Operation) -> Value:
    x, indices = operation.value(0), operation.value(1)
    op = GatherND(operation.integer("batch_dims", 0))
    return operation.emit(op, x, indices, quant=x.type.quant)


def _array_feature_extractor(operation: Operation) -> Value:
    """Convert ArrayFeatureExtractor: elements along the last axis; a vector is a single row."""
    x, indices = operation.value(0), operation.value(1)
    if not x.type.shape:
        raise operation.wrong(f"'{x.name}' is {x.type}, which has no axes")
    rows = x if len(x.type.shape) > 1 else operation.reshape(x, (1, *x.type.shape))
    flat = operation.reshape(indices, (indices.type.size,))
    if flat.data is not None:
        return gathered(operation, rows, flat.data, len(rows.type.shape) - 1)
    return operation.emit(Gather(len(rows.type.shape) - 1), rows, flat, quant=x.type.quant)


def _reduction(operation: Operation) -> str:
    reduction = operation.text("reduction", "none")
    if reduction not in REDUCTIONS:
        raise operation.wrong(
            f"reduction '{reduction}' does not exist; use one of {', '.join(REDUCTIONS)}"
        )
    return reduction


def _scatter_elements(operation: Operation) -> Value:
    x, indices, updates = (operation.value(i) for i in range(3))
    axis = axis_of(operation, x, 0)
    op = ScatterElements(axis, _reduction(operation))
    return operation.emit(op, x, updates, indices, quant=x.type.quant)


def _scatter_nd(operation: Operation) -> Value:
    x, indices, updates = (operation.value(i) for i in range(3))
    op = ScatterND(_reduction(operation))
    return operation.emit(op, x, updates, indices, quant=x.type.quant)


def _tensor_scatter(operation: Operation) -> Value:
    x, updates = operation.value(0), operation.value(1)
    axis = axis_of(operation, x, -2)
    mode = operation.text("mode", "linear")
    if mode not in ("linear", "circular"):
        raise operation.wrong(f"mode '{mode}' does not exist; use 'linear' or 'circular'")
    op = TensorScatter(axis, mode == "circular")
    return operation.emit(op, x, updates, operation.optional(2), quant=x.type.quant)


def _one_hot(operation: Operation) -> Value:
    indices, values = operation.value(0), operation.value(2)
    depth = operation.number(1, "depth")
    if not isfinite(depth):
        raise operation.wrong(f"its depth is {depth}; it must be a finite number")
    rank = len(indices.type.shape) + 1
    op = OneHot(int(depth), operation.axis(operation.integer("axis", -1), rank))
    require_size(operation, (*indices.type.shape, op.depth))
    return operation.emit(op, values, indices, quant=values.type.quant)


def _top_k(operation: Operation) -> Sequence[Value]:
    x = operation.value(0)
    axis = axis_of(operation, x, -1)
    k = operation.integer("k") if operation.has("k") else operation.whole_number(1, "k")
    op = TopK(k, axis, operation.flag("largest", default=True))
    return operation.emit_all(op, x, quants=(x.type.quant, None))


def _arg(kind: str) -> OnnxConverter:
    def convert(operation: Operation) -> Value:
        x = operation.value(0)
        op = ArgReduce(
            kind,
            axis_of(operation, x, 0),
            operation.flag("keepdims", default=True),
            operation.flag("select_last_index"),
        )
        return operation.emit(op, x)

    return convert


def _trilu(operation: Operation) -> Value:
    x = operation.value(0)
    k = operation.whole_number(1, "diagonal") if operation.optional(1) is not None else 0
    if len(x.type.shape) < 2:
        raise operation.wrong(f"'{x.name}' is {x.type}, but must have at least 2 dimensions")
    rows, columns = x.type.shape[-2:]
    op = Triangle(operation.flag("upper", default=True), max(-rows, min(k, columns)))
    return operation.emit(op, x, quant=x.type.quant)


def _reverse_sequence(operation: Operation) -> Value:
    x, lengths = operation.value(0), operation.value(1)
    axes = operation.integer("batch_axis", 1), operation.integer("time_axis", 0)
    op = ReverseSequence(*operation.axes(axes, len(x.type.shape)))
    return operation.emit(op, x, lengths, quant=x.type.quant)


def _compress(operation: Operation) -> Value:
    x = operation.value(0)
    if operation.value(1).data is None:
        raise _depends_on_data(operation, 1)
    chosen = np.flatnonzero(operation.constant(1, "condition")).astype(np.int64)
    if not operation.has("axis"):
        x = operation.reshape(x, (x.type.size,))
    return gathered(operation, x, chosen, axis_of(operation, x, 0))


def _of_constants(operation: Operation) -> Sequence[Value]:
    """Convert operators on constants; with other operands, the size of the result is unknown."""
    if operation.value(0).data is None:
        raise _depends_on_data(operation, 0)
    arrays = expansion.computed(operation.proto, operation)
    return [operation.literal(array) for array in arrays]


def _depends_on_data(operation: Operation, index: int) -> Exception:
    return operation.refuse(
        f"the shape of its result depends on the values of '{operation.value(index).name}' at run "
        "time, but Smelt needs shapes at compile time to plan memory. Cut the network before this "
        "operator, and compute the rest in the code that uses its outputs"
    )


CONVERTERS: dict[str, OnnxConverter] = {
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ai.onnx.ml::ArrayFeatureExtractor": _array_feature_extractor,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "OneHot": _one_hot,
    "TopK": _top_k,
    "ArgMax": _arg("max"),
    "ArgMin": _arg("min"),
    "Trilu": _trilu,
    "ReverseSequence": _reverse_sequence,
    "Compress": _compress,
    "NonMaxSuppression": _of_constants,
    "NonZero": _of_constants,
    "Unique": _of_constants,
}

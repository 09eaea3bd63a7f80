"""Converters of comparisons, logical operators, selections, and constants of a computed shape."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smelt.errors import ModelError
from smelt.frontend.tflite.indexing import broadcast
from smelt.frontend.tflite.operation import ANY_TYPE, Converter, TfliteOperation
from smelt.frontend.tflite.pooling import reduction
from smelt.ir import Array, DType, TensorType, Value
from smelt.ops.arithmetic.fixed_point import multiply_by_quantized_multiplier, quantize_multiplier
from smelt.ops.core.binary import Binary
from smelt.ops.core.table import Table
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.select import Select

_GUARD_BITS = 8
"""Bits by which TensorFlow Lite shifts stored integers before it rescales them to compare them."""

_COMPARED = frozenset({DType.FLOAT32, DType.INT8, DType.INT32, DType.INT64, DType.BOOL})
_BOOL = frozenset({DType.BOOL})


def _comparison(kind: str, compare: Callable[[Array, Array], Array]) -> Converter:
    """Return a converter; `kind` is that of `Binary`, or `not_equal`."""

    def convert(operation: TfliteOperation) -> None:
        a, b = operation.input(0), operation.input(1)
        if a.type.is_quantized and b.type.is_quantized:
            _compare_quantized(operation, a, b, kind, compare)
        else:
            _compare(operation, kind, a, b)

    return Converter(convert, _COMPARED)


def _compare(operation: TfliteOperation, kind: str, a: Value, b: Value) -> None:
    if kind == "not_equal":
        equal = operation.step(Binary("equal"), a, b, name="equal")
        operation.emit(Unary("not"), equal)
    else:
        operation.emit(Binary(kind), a, b)


def _compare_quantized(
    operation: TfliteOperation,
    a: Value,
    b: Value,
    kind: str,
    compare: Callable[[Array, Array], Array],
) -> None:
    """Compare 8-bit operands by tables.

    With a constant of one element, the table has the results. Otherwise, tables turn both operands
    into the ranks of what TensorFlow Lite compares.
    """
    left, right = _rescaled(a.type), _rescaled(b.type)
    lowest = np.iinfo(a.type.dtype.numpy).min
    for x, constant, table, other in ((a, b, left, right), (b, a, right, left)):
        if x.data is None and constant.data is not None and constant.type.size == 1:
            fixed = other[int(constant.array.ravel()[0]) - lowest]
            result = compare(table, fixed) if x is a else compare(fixed, table)
            shape = np.broadcast_shapes(a.type.shape, b.type.shape)
            wide = operation.step(Reshape(shape), x, name="axes") if shape != x.type.shape else x
            name = f"{operation.kind.lower()}_{fixed}"
            operation.emit(Table(), wide, operation.derived(name, result, None), moves_data=True)
            return
    order = np.unique(np.concatenate([left, right]))
    ranks = [
        operation.step(
            Table(),
            x,
            operation.derived(f"{x.name}:table", np.searchsorted(order, t).astype(np.int16), None),
            name=f"rank{i}",
        )
        for i, (x, t) in enumerate(((a, left), (b, right)))
    ]
    _compare(operation, kind, *ranks)


def _rescaled(type_: TensorType) -> Array:
    """Return what TensorFlow Lite compares for each stored 8-bit integer, in ascending order."""
    low, high = type_.dtype.limits
    centered = np.arange(low, high + 1, dtype=np.int64) - type_.zero_point
    multiplier = quantize_multiplier(type_.scale)
    return multiply_by_quantized_multiplier(centered << _GUARD_BITS, *multiplier)


def _logical(kind: str) -> Converter:
    def convert(operation: TfliteOperation) -> None:
        operation.emit(Binary(kind), operation.input(0), operation.input(1))

    return Converter(convert, _BOOL)


def _select(operation: TfliteOperation) -> None:
    """Convert SELECT; the condition has the operands' shape, or an element for each first index."""
    condition, a, b = map(operation.input, range(3))
    shape, rank = condition.type.shape, len(a.type.shape)
    if shape != a.type.shape and len(shape) == 1 and rank > 1:
        column = Reshape((*shape, *[1] * (rank - 1)))
        condition = operation.step(column, condition, name="condition")
    operation.emit(Select(), condition, a, b, moves_data=True)


def _select_v2(operation: TfliteOperation) -> None:
    operation.emit(Select(), *map(operation.input, range(3)), moves_data=True)


def _fill(operation: TfliteOperation) -> None:
    shape, value = operation.integers(0, "dimensions"), operation.input(1)
    if value.type.size != 1:
        raise ModelError(f"{operation}: its value {value.type} must have one element")
    broadcast(operation, value, shape)


def _zeros_like(operation: TfliteOperation) -> None:
    """Convert ZEROS_LIKE, which stores integer 0 for quantized tensors too."""
    type_ = operation.input(0).type
    operation.set_constant(np.zeros(type_.shape, type_.dtype.numpy))


CONVERTERS = {
    "EQUAL": _comparison("equal", np.equal),
    "NOT_EQUAL": _comparison("not_equal", np.not_equal),
    "GREATER": _comparison("greater", np.greater),
    "GREATER_EQUAL": _comparison("greater_equal", np.greater_equal),
    "LESS": _comparison("less", np.less),
    "LESS_EQUAL": _comparison("less_equal", np.less_equal),
    "LOGICAL_AND": _logical("and"),
    "LOGICAL_OR": _logical("or"),
    "LOGICAL_NOT": Converter(lambda o: o.emit(Unary("not"), o.input(0)), _BOOL),
    "REDUCE_ALL": reduction("min", _BOOL),
    "REDUCE_ANY": reduction("max", _BOOL),
    "SELECT": Converter(_select, ANY_TYPE),
    "SELECT_V2": Converter(_select_v2, ANY_TYPE),
    "FILL": Converter(_fill, ANY_TYPE, data=1),
    "ZEROS_LIKE": Converter(_zeros_like, ANY_TYPE),
}

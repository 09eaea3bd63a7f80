"""Arithmetic on shapes, which is computed at import.

If the batch size is unknown, converters write operators that take a tensor's shape apart, multiply
and join its numbers, and reshape by the result. Here, all shapes are known, so the results are too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tflite

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.tflite.operation import TfliteOperation
from smelt.ir import Array, DType
from smelt.ops.arithmetic.fixed_point import Activation

_INTEGERS = (DType.INT32, DType.INT64)
_MOST_ELEMENTS = 1024
"""Far more elements than a shape has; a larger tensor is data."""


def try_compute(operation: TfliteOperation) -> bool:
    """Compute the operator if it is integer arithmetic on constants, and return whether it was.

    Raises:
        ModelError: operands, options and output are contradictory.
        UnsupportedError: an option is not supported.
    """
    fold = FOLDS.get(operation.kind)
    if fold is None:
        return False
    if fold is _shape_of:
        operands: list[Array] = [np.asarray(operation.input(0).type.shape)]
    else:
        values = operation.inputs()
        if operation.output_type.dtype not in _INTEGERS or not all(
            v.is_constant and v.type.dtype in _INTEGERS and v.type.size <= _MOST_ELEMENTS
            for v in values
        ):
            return False
        operands = [v.array for v in values]
    try:
        result = fold(operation, operands)
    except (IndexError, OverflowError, ValueError) as error:
        raise ModelError(f"{operation}: its operands are invalid: {error}") from error
    operation.set_constant(np.asarray(result, operation.output_type.dtype.numpy))
    return True


def refusal(operation: TfliteOperation) -> UnsupportedError:
    """Return the error for an operator that is only in this table and was not computed."""
    return UnsupportedError(
        f"{operation}: Smelt supports it only in arithmetic on shapes: on int32 or int64 tensors "
        f"of at most {_MOST_ELEMENTS} elements that do not depend on the network's inputs. "
        "Replace it by operators that `smelt ops` lists, or add it by a plugin (--plugin file.py)"
    )


Fold = Callable[[TfliteOperation, Sequence[Array]], Array]


def _shape_of(operation: TfliteOperation, operands: Sequence[Array]) -> Array:
    return operands[0]


def _cast(operation: TfliteOperation, operands: Sequence[Array]) -> Array:
    (x,) = _exactly(operation, operands, 1)
    return x


def _arithmetic(function: Callable[[Array, Array], Array], table: type) -> Fold:
    def fold(operation: TfliteOperation, operands: Sequence[Array]) -> Array:
        a, b = _exactly(operation, operands, 2)
        if operation.options(table, optional=True).activation() is not Activation.NONE:
            raise UnsupportedError(
                f"{operation}: a fused activation is not supported in arithmetic on shapes"
            )
        return function(a, b)

    return fold


def _product(operation: TfliteOperation, operands: Sequence[Array]) -> Array:
    x, axes = _exactly(operation, operands, 2)
    keep = operation.options(tflite.ReducerOptions, optional=True).flag("KeepDims")
    along = operation.axes([int(n) for n in axes.ravel()], x.ndim)
    return np.prod(x, axis=along, dtype=x.dtype, keepdims=keep)


def _concatenation(operation: TfliteOperation, operands: Sequence[Array]) -> Array:
    axis = operation.options(tflite.ConcatenationOptions).integer("Axis")
    return np.concatenate(operands, axis)


def _pack(operation: TfliteOperation, operands: Sequence[Array]) -> Array:
    return np.stack(operands, operation.options(tflite.PackOptions).integer("Axis"))


def _broadcast_args(operation: TfliteOperation, operands: Sequence[Array]) -> Array:
    a, b = _exactly(operation, operands, 2)
    return np.asarray(np.broadcast_shapes(tuple(a.ravel()), tuple(b.ravel())))


def _gather(operation: TfliteOperation, operands: Sequence[Array]) -> Array:
    x, indices = _exactly(operation, operands, 2)
    options = operation.options(tflite.GatherOptions)
    if options.integer("BatchDims"):
        raise UnsupportedError(f"{operation}: gathering by batch is not supported")
    if indices.size and indices.min() < 0:
        raise ModelError(f"{operation}: indices {indices.tolist()} must not be negative")
    return np.take(x, indices, options.integer("Axis"))


def _strided_slice(operation: TfliteOperation, operands: Sequence[Array]) -> Array:
    x, *numbers = _exactly(operation, operands, 4)
    options = operation.options(tflite.StridedSliceOptions)
    if options.integer("EllipsisMask") or options.integer("NewAxisMask"):
        raise UnsupportedError(f"{operation}: ellipses and new axes are not supported")
    open_begin, open_end = options.integer("BeginMask"), options.integer("EndMask")
    single = options.integer("ShrinkAxisMask")
    picks: list[int | slice] = []
    begins, ends, strides = (list(map(int, n.ravel())) for n in numbers)
    for axis, (begin, end, stride) in enumerate(zip(begins, ends, strides, strict=True)):
        first = None if open_begin >> axis & 1 else begin
        last = None if open_end >> axis & 1 else end
        picks.append(begin if single >> axis & 1 else slice(first, last, stride))
    return x[tuple(picks)]


def _exactly(operation: TfliteOperation, operands: Sequence[Array], count: int) -> Sequence[Array]:
    if len(operands) != count:
        raise ModelError(f"{operation} has {len(operands)} operands, but must have {count}")
    return operands


FOLDS: dict[str, Fold] = {
    "SHAPE": _shape_of,
    "CAST": _cast,
    "ADD": _arithmetic(np.add, tflite.AddOptions),
    "SUB": _arithmetic(np.subtract, tflite.SubOptions),
    "MUL": _arithmetic(np.multiply, tflite.MulOptions),
    "REDUCE_PROD": _product,
    "CONCATENATION": _concatenation,
    "PACK": _pack,
    "BROADCAST_ARGS": _broadcast_args,
    "GATHER": _gather,
    "STRIDED_SLICE": _strided_slice,
}
"""Function of each operator, by its name in the file; several operators have a converter too."""

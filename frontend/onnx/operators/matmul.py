"""Converters of MatMul, Gemm, and onnxruntime's FusedMatMul."""

from __future__ import annotations

import numpy as np

from smelt.frontend.onnx.operation import Declared, OnnxConverter, Operation
from smelt.ir import Array, DType, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.matmul import MatMul

Permutation = tuple[int, ...]


def product(
    operation: Operation, a: Value, b: Value, left: Permutation = (), right: Permutation = ()
) -> Value:
    """Multiply `a` by `b`, with their axes permuted by `left` and `right`.

    Both have at least 2 dimensions. A product with a constant matrix becomes a dense layer.
    """
    if b.data is not None and not a.is_constant and len(b.type.shape) == 2:
        return dense(operation, operation.transpose(a, left), b.data.transpose(right or (0, 1)))
    return operation.emit(MatMul(left, right), a, b)


def dense(operation: Operation, x: Value, matrix: Array, bias: Array | None = None) -> Value:
    """Multiply the rows of `x` by a constant matrix `[inputs, outputs]`, and add a bias."""
    if x.type.dtype is not DType.FLOAT32 or not matrix.size or not x.type.size:
        y = operation.emit(MatMul(), x, operation.literal(matrix))
        return y if bias is None else operation.emit(Binary("add"), y, operation.literal(bias))
    weights = operation.literal(np.ascontiguousarray(matrix.T))
    added = None if bias is None else operation.literal(bias)
    return operation.emit(FullyConnected(keep_dims=True), x, weights, added)


def scaled(operation: Operation, value: Value, factor: float) -> Value:
    """Multiply a value by a number; integers can be multiplied by an integer only."""
    if factor == 1:
        return value
    if value.type.dtype.is_integer and factor != int(factor):
        raise operation.refuse(
            f"'{value.name}' {value.type} cannot be multiplied by {factor}: integers need an "
            "integer factor"
        )
    return operation.emit(Binary("mul"), value, operation.scalar(factor, value))


def _matmul(operation: Operation) -> Value:
    a, b = operation.value(0), operation.weights(1)
    if not a.type.shape or not b.type.shape:
        raise operation.wrong(
            f"it cannot multiply {a.type} by {b.type}: both must have at least one axis"
        )
    rows, columns = len(a.type.shape) > 1, len(b.type.shape) > 1
    matrix_a = a if rows else operation.reshape(a, (1, *a.type.shape))
    matrix_b = b if columns else operation.reshape(b, (*b.type.shape, 1))
    y = product(
        operation,
        matrix_a,
        matrix_b,
        _order(operation, a, "A"),
        _order(operation, b, "B"),
    )
    shape = y.type.shape
    shape = shape if columns else shape[:-1]
    if not rows:
        shape = (*shape[:-2], shape[-1]) if columns else shape[:-1]
    return operation.reshape(y, shape)


def _fused_matmul(operation: Operation) -> Value:
    """Convert FusedMatMul: factors may be transposed, and the product is multiplied by alpha."""
    return scaled(operation, _matmul(operation), operation.real("alpha", 1.0))


def _order(operation: Operation, matrix: Value, side: str) -> Permutation:
    """Return the permutation of a factor's axes by the attributes of FusedMatMul.

    A vector is not permuted, as in onnxruntime.
    """
    if len(matrix.type.shape) < 2:
        return ()
    order = list(range(len(matrix.type.shape)))
    if operation.flag(f"transBatch{side}"):
        order = [*order[1:-1], order[0], order[-1]]
    if operation.flag(f"trans{side}"):
        order[-2:] = order[:-3:-1]
    return () if order == sorted(order) else tuple(order)


def _gemm(operation: Operation) -> Value:
    """Convert Gemm, `alpha · A · B + beta · C`; constants are multiplied in advance."""
    a, b = operation.image(0, 2), operation.weights(1)
    if len(b.type.shape) != 2:
        raise operation.wrong(f"'{b.name}' is {b.type}, but must be a matrix")
    alpha, beta = operation.real("alpha", 1.0), operation.real("beta", 1.0)
    left: Permutation = (1, 0) if operation.flag("transA") else ()
    right: Permutation = (1, 0) if operation.flag("transB") else ()
    c = None if operation.optional(2) is None or beta == 0 else operation.weights(2, "bias")
    if b.data is None or b.type.dtype is not DType.FLOAT32 or a.is_constant:
        y = scaled(operation, operation.emit(MatMul(left, right), a, b), alpha)
        return _plus(operation, y, c, beta)
    matrix = b.data.transpose(right or (0, 1))
    if alpha != 1:
        matrix = (matrix * np.float64(alpha)).astype(np.float32)
    x = operation.transpose(a, left)
    if c is None or c.data is None or c.type.shape[:-1] not in ((), (1,)):
        return _plus(operation, dense(operation, x, matrix), c, beta)
    bias: Array = (c.data * np.float64(beta)).astype(np.float32).ravel()
    if bias.size not in (1, matrix.shape[1]):
        raise operation.wrong(
            f"its bias {c.type} must have one element, or {matrix.shape[1]}: one for each output"
        )
    return dense(operation, x, matrix, np.broadcast_to(bias, matrix.shape[1:]).copy())


def _plus(operation: Operation, y: Value, c: Value | None, beta: float) -> Value:
    """Add `beta · C` to the product; C is broadcast to it."""
    if c is None:
        return y
    total = operation.emit(Binary("add"), y, scaled(operation, c, beta))
    if total.type.shape != y.type.shape:
        raise operation.wrong(f"'{c.name}' of {c.type} cannot be broadcast to {y.type}")
    return total


CONVERTERS: dict[str, OnnxConverter] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "com.microsoft::FusedMatMul": Declared(
        _fused_matmul, ("alpha", "transA", "transB", "transBatchA", "transBatchB")
    ),
}

"""MatMul: products of stacks of matrices, broadcast as in numpy.

It implements MatMul and Gemm of ONNX for operands computed at run time, and BATCH_MATMUL of
TensorFlow Lite. A product with constant weights is a `FullyConnected` instead. The integer
arithmetic is that of TensorFlow Lite Micro's reference kernel of BATCH_MATMUL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Node, Op, Rounding, TensorType
from smelt.ir.homogeneity import Homogeneity, in_place
from smelt.ops.arithmetic.fixed_point import Activation, Requantizer, finish
from smelt.ops.case import Case, Constant, Data, onnx_cases
from smelt.ops.constraints import arrays, operands, quantized, requantizing_rounding, same_dtype
from smelt.ops.core.fully_connected import fully_connected_scales

MATMUL_DTYPES = (
    DType.FLOAT32,
    DType.FLOAT64,
    DType.FLOAT16,
    DType.INT32,
    DType.INT64,
    DType.UINT32,
    DType.UINT64,
)
"""Element types that can be multiplied unquantized; sums of integers wrap around."""

DEPTH_LIMIT = 1 << 15
"""Fewer products than this of int8 numbers without zero points have a sum that fits in 32 bits."""


def swapped(rank: int) -> tuple[int, ...]:
    """Return the permutation of `rank` axes that exchanges the last two."""
    return (*range(rank - 2), rank - 1, rank - 2)


@dataclass(frozen=True)
class MatMul(Op):
    """Matrices `[..., m, k]` times `[..., k, n]`, with leading axes broadcast.

    Quantized operands are int8, each with a scale and a zero point; sums are requantized.

    Attributes:
        left: permutation that gives the first operand the shape `[..., m, k]`; () for none.
        right: permutation that gives the second operand the shape `[..., k, n]`; () for none.
        result: permutation from the product `[..., m, n]` to the output; () for none.
    """

    left: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    result: tuple[int, ...] = ()

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        a, b = operands(self, inputs, 2)
        dtype = same_dtype(self, (a, b))
        stored = dtype is DType.INT8 and a.is_quantized and b.is_quantized
        if dtype not in MATMUL_DTYPES and not stored:
            served = ", ".join(d.value for d in MATMUL_DTYPES)
            raise ModelError(
                f"MatMul of {a} and {b}: its element type must be one of {served}, or quantized i8"
            )
        shape = _moved(self.product_shape(a, b), self.result, "product")
        return (TensorType(shape, dtype),)

    def product_shape(self, a: TensorType, b: TensorType) -> tuple[int, ...]:
        """Return the shape `[..., m, n]`, before `result` is applied.

        Raises:
            ModelError: the operands do not fit each other.
        """
        left, right = _moved(a.shape, self.left, str(a)), _moved(b.shape, self.right, str(b))
        if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
            raise ModelError(
                f"MatMul cannot multiply {list(left)} (from {a}) by {list(right)} (from {b}): the "
                "last axis of the first must be as long as the last but one of the second"
            )
        try:
            stack = np.broadcast_shapes(left[:-2], right[:-2])
        except ValueError as error:
            raise ModelError(
                f"MatMul cannot broadcast the leading axes of {list(left)} (from {a}) and "
                f"{list(right)} (from {b})"
            ) from error
        return (*stack, left[-2], right[-1])

    def check(self, node: Node) -> None:
        """Check that operands and output are all quantized, or none; limit the depth of sums."""
        if not quantized(node, (DType.INT8,), 2):
            return
        requantizing_rounding(node)
        depth = self.depth(node.input(0).type)
        if depth >= DEPTH_LIMIT:
            raise UnsupportedError(
                f"{node.origin}: a sum of {depth} products of int8 data may exceed 32 bits; MatMul "
                f"supports fewer than {DEPTH_LIMIT}. Keep this operator in float, or split the sum"
            )

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        a, b = arrays(node, inputs, 2)
        y = node.output.type
        wide = np.float64 if y.dtype.is_float or y.is_quantized else y.dtype.numpy
        a = a.transpose(self.left or range(a.ndim)).astype(wide)
        b = b.transpose(self.right or range(b.ndim)).astype(wide)
        if y.is_quantized:
            a, b = a - node.input(0).type.zero_point, b - node.input(1).type.zero_point
        with np.errstate(all="ignore"):
            product = np.matmul(a, b)
            if y.is_quantized:
                product = _requantized(node, product)
            moved = product.transpose(self.result or range(product.ndim)).astype(y.dtype.numpy)
        return (np.ascontiguousarray(moved),)

    def depth(self, a: TensorType) -> int:
        """Return the number of products in a sum; `a` is the first operand."""
        return a.shape[self.left[-1] if self.left else -1]

    def macs(self, node: Node) -> int:
        """Return the elements of the output times the depth of a sum."""
        return node.output.type.size * self.depth(node.input(0).type)

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return how factors propagate from one operand's columns or rows to output channels.

        These are columns of the second operand that are channels, or rows of the first operand
        that become channels.
        """
        rank = len(node.output.type.shape)
        kept = self.result[-1] if self.result else rank - 1
        for index, order, axis in ((0, self.left, -2), (1, self.right, -1)):
            last = len(node.input(index).type.shape) - 1
            moved = order or tuple(range(last + 1))
            if kept == rank + axis and moved[axis] == last and not node.input(index).is_constant:
                return (Homogeneity(in_place(node, (index,)), fixed=(1 - index,)),)
        return ()

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether one operand has rows and the other has none."""
        return sum(axis is not None for axis in axes) == 1


def _requantized(node: Node, sums: Array) -> Array:
    """Return the stored outputs of sums; float64 represents the sums exactly."""
    types = node.input(0).type, node.input(1).type, node.output.type
    rounding = node.rounding or Rounding.TFLM
    requantize = Requantizer(fully_connected_scales(*types, rounding), rounding)
    return finish(sums.astype(np.int64), requantize, Activation.NONE, node.output.type)


def _moved(shape: tuple[int, ...], permutation: tuple[int, ...], what: str) -> tuple[int, ...]:
    """Return a shape with its axes permuted, if there is a permutation."""
    if not permutation:
        return shape
    if sorted(permutation) != list(range(len(shape))):
        raise ModelError(
            f"MatMul: {permutation} is not a permutation of the axes of {what} {list(shape)}"
        )
    return tuple(shape[axis] for axis in permutation)


def _case(
    name: str,
    a: tuple[int, ...],
    b: tuple[int, ...],
    left: tuple[int, ...] = (),
    right: tuple[int, ...] = (),
    result: tuple[int, ...] = (),
) -> Case:
    operator = MatMul(left, right, result)
    return Case(name, operator, (Data(a), Data(b, -2.0, 1.0)))


_PLAIN = DType.INT32, DType.INT64
_RANGE = -50000.0, 50000.0
_CASES = (
    _case("square", (8, 8), (8, 8)),
    _case("odd", (7, 5), (5, 11)),
    _case("wide", (3, 20), (20, 37)),
    _case("row", (1, 19), (19, 33)),
    _case("column", (13, 18), (18, 1)),
    _case("inner", (1, 21), (21, 1)),
    _case("outer", (6, 1), (1, 9)),
    _case("one", (1, 1), (1, 1)),
    _case("stacked", (2, 3, 4, 6), (2, 3, 6, 5)),
    _case("rows_of_all", (3, 2, 5, 6), (6, 10)),
    _case("broadcast_left", (4, 6), (3, 6, 5)),
    _case("broadcast_both", (2, 1, 4, 6), (3, 6, 2)),
    _case("transposed_left", (9, 6), (9, 5), (1, 0)),
    _case("transposed_right", (5, 18), (6, 18), (), (1, 0)),
    _case("transposed_right_short", (5, 3), (6, 3), (), (1, 0)),
    _case("transposed_both", (9, 6), (5, 9), (1, 0), (1, 0)),
    _case("transposed_result", (5, 6), (6, 3), (), (), (1, 0)),
    _case("scores", (1, 5, 3, 16), (1, 7, 3, 16), (0, 2, 1, 3), (0, 2, 3, 1)),
    _case("context", (1, 3, 5, 7), (1, 7, 3, 16), (), (0, 2, 1, 3), (0, 2, 1, 3)),
    Case(
        "constant_left",
        MatMul(),
        (Constant(tuple(float(i % 7) - 3 for i in range(12)), (3, 4)), Data((4, 5))),
    ),
    Case("positive", MatMul(), (Data((3, 9), 0.0, 4.0), Data((9, 4), 0.0, 0.5))),
    Case("centered", MatMul(), (Data((5, 9), -127.0, 128.0), Data((9, 4), -127.0, 128.0))),
    Case("small_range", MatMul(), (Data((3, 70), -1e-3, 2e-3), Data((70, 4)))),
)
CASES = (
    *_CASES,
    *onnx_cases(_CASES, "odd", "scores", "context", "transposed_both", "positive"),
    Case("plain", MatMul(), (Data((3, 5), *_RANGE), Data((5, 4), *_RANGE)), _PLAIN, plain=True),
    Case(
        "plain_transposed",
        MatMul((), (0, 2, 1)),
        (Data((2, 3, 5), *_RANGE), Data((1, 2, 5), *_RANGE)),
        _PLAIN,
        plain=True,
    ),
)

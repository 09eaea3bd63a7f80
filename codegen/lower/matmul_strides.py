"""Strides of the operands of a matrix product."""

from __future__ import annotations

from smelt.codegen.lower.nested_loops import dense_strides
from smelt.ir import Node
from smelt.ops.core.matmul import MatMul

Strides = tuple[int, ...]


def strides_of(node: Node[MatMul]) -> tuple[tuple[int, ...], Strides, Strides, tuple[int, int]]:
    """Return the shape `[..., m, n]` of a MatMul's product, and its operands' strides in elements.

    Returns:
        The shape. The strides of the left and of the right operand along its axes; 0 where the
        operand is broadcast or lacks the axis. The strides of both along the summed axis.
    """
    op, a, b = node.op, node.input(0).type, node.input(1).type
    shape = op.product_shape(a, b)
    left = _strides(a.shape, op.left)
    right = _strides(b.shape, op.right)
    stack = len(shape) - 2
    return (
        shape,
        (*_stack(a.shape, op.left, left, stack), left[-2], 0),
        (*_stack(b.shape, op.right, right, stack), 0, right[-1]),
        (left[-1], right[-2]),
    )


def _strides(shape: tuple[int, ...], permutation: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a dense array whose axes are permuted."""
    strides = dense_strides(shape)
    return tuple(strides[axis] for axis in permutation) if permutation else strides


def _stack(
    shape: tuple[int, ...],
    permutation: tuple[int, ...],
    strides: tuple[int, ...],
    rank: int,
) -> list[int]:
    """Return an operand's strides along the `rank` stack axes: 0 where it is broadcast."""
    sizes = [shape[axis] for axis in permutation] if permutation else list(shape)
    own = [0 if size == 1 else s for size, s in zip(sizes[:-2], strides[:-2], strict=True)]
    return [0] * (rank - len(own)) + own

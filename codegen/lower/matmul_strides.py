"""How the operands of a product of matrices are crossed in memory."""

from __future__ import annotations

from smelt.codegen.lower.nested_loops import dense_strides
from smelt.ir import Node
from smelt.ops.core.matmul import MatMul

Strides = tuple[int, ...]


def strides_of(node: Node[MatMul]) -> tuple[tuple[int, ...], Strides, Strides, tuple[int, int]]:
    """The shape `[..., m, n]` of a MatMul's product, and how its operands are crossed, in elements.

    Returns:
        The shape; strides along its axes of the left and of the right operand, 0 where it has only
        one element or none; strides of both from one factor of a sum to the next.
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
    """Strides of a dense array whose axes are taken in another order."""
    strides = dense_strides(shape)
    return tuple(strides[axis] for axis in permutation) if permutation else strides


def _stack(
    shape: tuple[int, ...],
    permutation: tuple[int, ...],
    strides: tuple[int, ...],
    rank: int,
) -> list[int]:
    """Strides of an operand along the `rank` axes of the stack: 0 where it is broadcast."""
    sizes = [shape[axis] for axis in permutation] if permutation else list(shape)
    own = [0 if size == 1 else s for size, s in zip(sizes[:-2], strides[:-2], strict=True)]
    return [0] * (rank - len(own)) + own

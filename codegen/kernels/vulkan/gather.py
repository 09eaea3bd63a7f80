"""Gather, GatherElements and GatherND on a GPU."""

from __future__ import annotations

from math import prod

from smelt.codegen.kernels.base import KernelCall, Request
from smelt.codegen.kernels.c.loops import dense_strides
from smelt.codegen.kernels.vulkan.elements import operand_of
from smelt.codegen.kernels.vulkan.moves import Axis, Indices, MoveKernel, Moves, move
from smelt.ir import Node
from smelt.ops.gather import Gather, GatherElements, GatherND
from smelt.ops.indices import positions


class GatherKernel(MoveKernel):
    """Constant indices become a table, others are read."""

    op = Gather

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        op, x, indices = node.op, node.input(0).type, node.input(1)
        if not isinstance(op, Gather):
            raise TypeError(f"{op.name} is no Gather")
        batch, axis = op.batch_dims, op.axis
        size, inner = x.shape[axis], prod(x.shape[axis + 1 :])
        rows, outer = prod(x.shape[:batch]), prod(x.shape[batch:axis])
        found = prod(indices.type.shape[batch:])
        axes = [
            Axis(rows, outer * size * inner, where=found),
            Axis(outer, size * inner),
            Axis(found, where=1),
            Axis(inner, 1),
        ]
        if indices.data is None or rows > 1:
            return Moves.of(axes, x.dtype.size, parts=[(size, inner)])
        table = positions(indices.data, size).ravel() * inner
        axes = [axes[0], axes[1], Axis(table.size, table=table), axes[3]]
        return Moves.of([Axis(a.size, a.step, a.table) for a in axes], x.dtype.size)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        moves = self.moves(node)
        return move(node, moves, indices=_indices(node, moves) if moves.parts else None)


class GatherElementsKernel(MoveKernel):
    """One element an index."""

    op = GatherElements

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        op, x, indices = node.op, node.input(0).type, node.input(1).type
        if not isinstance(op, GatherElements):
            raise TypeError(f"{op.name} is no GatherElements")
        strides, where = dense_strides(x.shape), dense_strides(indices.shape)
        axes = [
            Axis(size, 0 if axis == op.axis else strides[axis], where=where[axis])
            for axis, size in enumerate(indices.shape)
        ]
        return Moves.of(axes, x.dtype.size, parts=[(x.shape[op.axis], strides[op.axis])])

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        moves = self.moves(node)
        return move(node, moves, indices=_indices(node, moves))


class GatherNDKernel(GatherElementsKernel):
    """A slice a tuple of indices."""

    op = GatherND

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        op, x, indices = node.op, node.input(0).type, node.input(1).type
        if not isinstance(op, GatherND):
            raise TypeError(f"{op.name} is no GatherND")
        batch, depth = op.batch_dims, indices.shape[-1]
        strides = dense_strides(x.shape)
        tuples = prod(indices.shape[batch:-1])
        axes = [
            Axis(prod(indices.shape[:batch]), prod(x.shape[batch:]), where=tuples * depth),
            Axis(tuples, where=depth),
            Axis(prod(x.shape[batch + depth :]), 1),
        ]
        parts = [(x.shape[batch + i], strides[batch + i]) for i in range(depth)]
        return Moves.of(axes, x.dtype.size, parts=parts)


def _indices(node: Node, moves: Moves) -> Indices:
    return Indices(operand_of(node, 1, "indices"), node.input(1).type.dtype, moves.parts)


KERNELS = (GatherKernel(), GatherElementsKernel(), GatherNDKernel())

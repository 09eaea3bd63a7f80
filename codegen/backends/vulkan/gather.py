"""Shaders of Gather, GatherElements and GatherND."""

from __future__ import annotations

from math import prod

from typing_extensions import override

from smelt.codegen.backends.vulkan.data_movement import Indices, Moves, OutputAxis, move
from smelt.codegen.backends.vulkan.elementwise import operand_of
from smelt.codegen.lower.kernel import STORED_FLOATS, Kernel, KernelCall, Refusal, Request
from smelt.codegen.lower.nested_loops import dense_strides
from smelt.ir import Node
from smelt.ops.tensor.gather import Gather, GatherElements, GatherND
from smelt.ops.tensor.indices import positions


class GatherShader(Kernel[Gather]):
    """Stores constant indices as a table of positions; reads others at run time."""

    op = Gather
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Gather], request: Request) -> KernelCall | Refusal:
        op, x, indices = node.op, node.input(0).type, node.input(1)
        batch, axis = op.batch_dims, op.axis
        size, inner = x.shape[axis], prod(x.shape[axis + 1 :])
        rows, outer = prod(x.shape[:batch]), prod(x.shape[batch:axis])
        found = prod(indices.type.shape[batch:])
        if indices.data is None or rows > 1:
            axes = [
                OutputAxis(rows, outer * size * inner, where=found),
                OutputAxis(outer, size * inner),
                OutputAxis(found, where=1),
                OutputAxis(inner, 1),
            ]
            return _gathered(node, Moves.of(axes, x.dtype.size, parts=[(size, inner)]))
        table = positions(indices.data, size).ravel() * inner
        axes = [
            OutputAxis(rows, outer * size * inner),
            OutputAxis(outer, size * inner),
            OutputAxis(table.size, table=table),
            OutputAxis(inner, 1),
        ]
        return move(node, Moves.of(axes, x.dtype.size))


class GatherElementsShader(Kernel[GatherElements]):
    """Copies one element per index."""

    op = GatherElements
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[GatherElements], request: Request) -> KernelCall | Refusal:
        op, x, indices = node.op, node.input(0).type, node.input(1).type
        strides, where = dense_strides(x.shape), dense_strides(indices.shape)
        axes = [
            OutputAxis(size, 0 if axis == op.axis else strides[axis], where=where[axis])
            for axis, size in enumerate(indices.shape)
        ]
        parts = [(x.shape[op.axis], strides[op.axis])]
        return _gathered(node, Moves.of(axes, x.dtype.size, parts=parts))


class GatherNDShader(Kernel[GatherND]):
    """Copies one slice per tuple of indices."""

    op = GatherND
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[GatherND], request: Request) -> KernelCall | Refusal:
        op, x, indices = node.op, node.input(0).type, node.input(1).type
        batch, depth = op.batch_dims, indices.shape[-1]
        strides = dense_strides(x.shape)
        tuples = prod(indices.shape[batch:-1])
        axes = [
            OutputAxis(prod(indices.shape[:batch]), prod(x.shape[batch:]), where=tuples * depth),
            OutputAxis(tuples, where=depth),
            OutputAxis(prod(x.shape[batch + depth :]), 1),
        ]
        parts = [(x.shape[batch + i], strides[batch + i]) for i in range(depth)]
        return _gathered(node, Moves.of(axes, x.dtype.size, parts=parts))


def _gathered(node: Node, moves: Moves) -> KernelCall | Refusal:
    """Return the call that reads the indices at run time."""
    operand, dtype = operand_of(node, 1, "indices"), node.input(1).type.dtype
    return move(node, moves, indices=Indices(operand, dtype, moves.parts))


KERNELS = (GatherShader(), GatherElementsShader(), GatherNDShader())

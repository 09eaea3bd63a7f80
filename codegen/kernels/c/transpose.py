"""Transpose."""

from __future__ import annotations

from smelt.codegen.kernels.base import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.kernels.c.loops import block_copies, dense_strides
from smelt.ir import Node
from smelt.ops.transpose import Transpose


class TransposeKernel(Kernel):
    """Writes the output in order; elements that stay neighbours are copied as a block."""

    op = Transpose
    floats = STORED_FLOATS

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op, x, y = node.op, node.input(0).type, node.output.type
        if not isinstance(op, Transpose):
            raise TypeError(f"{op.name} is no Transpose")
        strides = dense_strides(x.shape)
        read = [strides[axis] for axis in op.permutation]
        copies = block_copies(y.shape, read, dense_strides(y.shape), y.dtype.size)
        return KernelCall(
            template="c/transpose.j2",
            stem="transpose",
            parameters={
                "x": x,
                "y": y,
                "permutation": op.permutation,
                "loops": copies.loops,
                "statements": copies.statements,
            },
            operands=(Input(0, "input"), Output(0, "output")),
            summary=copies.summary,
        )


KERNELS = (TransposeKernel(),)

"""Slice."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.kernels.base import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.kernels.c.loops import block_copies, dense_strides
from smelt.ir import Node
from smelt.ops.slice import Slice


class SliceKernel(Kernel[Slice]):
    """Writes the output in order; elements that stay neighbours are copied as a block."""

    op = Slice
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Slice], request: Request) -> KernelCall:
        op, x, y = node.op, node.input(0).type, node.output.type
        strides = dense_strides(x.shape)
        first = sum(start * stride for start, stride in zip(op.starts, strides, strict=True))
        read = [step * stride for step, stride in zip(op.steps, strides, strict=True)]
        copies = block_copies(
            y.shape, read, dense_strides(y.shape), y.dtype.size, read=str(first if y.size else 0)
        )
        return KernelCall(
            template="c/slice.j2",
            stem="slice",
            parameters={
                "x": x,
                "y": y,
                "starts": op.starts,
                "steps": op.steps,
                "loops": copies.loops,
                "statements": copies.statements,
            },
            operands=(Input(0, "input"), Output(0, "output")),
            summary=copies.summary,
        )


KERNELS = (SliceKernel(),)

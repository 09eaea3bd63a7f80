"""Transpose."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.lower.kernel import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.lower.nested_loops import (
    LoopsParameters,
    block_copies,
    dense_strides,
    loops_call,
)
from smelt.ir import Node
from smelt.ops.tensor.transpose import Transpose


class TransposeKernel(Kernel[Transpose]):
    """Writes the output in order; elements that stay neighbors are copied as a block."""

    op = Transpose
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Transpose], request: Request) -> KernelCall:
        op, x, y = node.op, node.input(0).type, node.output.type
        strides = dense_strides(x.shape)
        read = [strides[axis] for axis in op.permutation]
        copies = block_copies(y.shape, read, dense_strides(y.shape), y.dtype.size)
        return loops_call(
            stem="transpose",
            form="c_transpose",
            parameters=LoopsParameters(
                f"Transpose of {x} to {y}: axes {', '.join(map(str, op.permutation))}.",
                copies.lines,
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            summary=copies.summary,
        )


KERNELS = (TransposeKernel(),)

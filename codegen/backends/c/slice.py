"""Slice."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from smelt.codegen.lower.kernel import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.lower.nested_loops import (
    LoopsParameters,
    block_copies,
    dense_strides,
    loops_call,
)
from smelt.ir import Node
from smelt.ops.tensor.slice import Slice


class SliceKernel(Kernel[Slice]):
    """Writes the output in order; elements that stay neighbors are copied as a block."""

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
        starts, steps = (", ".join(map(str, own)) for own in (op.starts, op.steps))
        call = loops_call(
            stem="slice",
            form="c_slice",
            parameters=LoopsParameters(
                (
                    f"Slice: {x} -> {y}, for each axis from",
                    f"{starts or 'its only element'} in steps of {steps or 'none'}.",
                ),
                copies.lines,
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            summary=copies.summary,
        )
        return replace(call, details={"start": "_".join(("from", *map(str, op.starts)))})


KERNELS = (SliceKernel(),)

"""Concat."""

from __future__ import annotations

from math import prod

from typing_extensions import override

from smelt.codegen.kernels.base import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.ir import Node
from smelt.ops.concat import Concat


class ConcatKernel(Kernel[Concat]):
    """Block copies: one an input for each index of the axes before the joined one."""

    op = Concat
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Concat], request: Request) -> KernelCall:
        op, y = node.op, node.output.type
        chunks = [prod(v.type.shape[op.axis :]) for v in node.inputs if v is not None]
        starts = [sum(chunks[:i]) for i in range(len(chunks))]
        return KernelCall(
            template="c/concat.j2",
            stem="concat",
            parameters={
                "axis": op.axis,
                "y": y,
                "rows": prod(y.shape[: op.axis]),
                "parts": [
                    {"size": size, "start": start, "bytes": size * y.dtype.size}
                    for size, start in zip(chunks, starts, strict=True)
                ],
                "row": sum(chunks),
            },
            operands=(*(Input(i, f"input{i}") for i in range(len(chunks))), Output(0, "output")),
            summary=f"{len(chunks)} block copies a row",
        )


KERNELS = (ConcatKernel(),)

"""Cumulative sums and products."""

from __future__ import annotations

from math import prod

from typing_extensions import override

from smelt.codegen.kernels.base import WIDE_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.kernels.c.loops import index, nest
from smelt.ir import Node
from smelt.ops.cumulative import Cumulative


class CumulativeKernel(Kernel[Cumulative]):
    """One pass along the axis for each of the other axes' elements."""

    op = Cumulative
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[Cumulative], request: Request) -> KernelCall:
        op, x = node.op, node.input(0).type
        size, inner = x.shape[op.axis], prod(x.shape[op.axis + 1 :])
        around = prod(x.shape[: op.axis]), inner
        loops = nest(around, (size * inner, 1))
        first = index(loops, 0)
        row = "r" if inner == 1 else f"r * {inner}"
        if op.reverse:
            row = f"({size - 1} - r)" if inner == 1 else f"({size - 1} - r) * {inner}"
        return KernelCall(
            template="c/cumulative.j2",
            stem=f"cumulative_{op.kind}",
            parameters={
                "op": op,
                "x": x,
                "loops": loops,
                "size": size,
                "at": row if first == "0" else f"{first} + {row}",
                # Integers are computed without a sign, so that they wrap.
                "accumulator": x.dtype.c_name if x.dtype.is_float else "uint64_t",
                "operator": "+" if op.kind == "sum" else "*",
            },
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),),
            summary=f"{len(loops) + 1} nested loops",
        )


KERNELS = (CumulativeKernel(),)

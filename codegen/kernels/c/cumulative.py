"""Cumulative sums and products."""

from __future__ import annotations

from math import prod

from smelt.codegen.kernels.base import WIDE_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.kernels.c.loops import index, nest
from smelt.ir import Node
from smelt.ops.cumulative import Cumulative


class CumulativeKernel(Kernel):
    """One pass along the axis for each of the other axes' elements."""

    op = Cumulative
    floats = WIDE_FLOATS

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op, x = node.op, node.input(0).type
        if not isinstance(op, Cumulative):
            raise TypeError(f"{op.name} is no Cumulative")
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

"""Cumulative sums and products (Cumulative)."""

from __future__ import annotations

from math import prod

from typing_extensions import override

from smelt.codegen.lower.kernel import WIDE_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.lower.nested_loops import (
    ArrayLoop,
    LoopsParameters,
    in_loops,
    index,
    loops_call,
    nest,
    total,
)
from smelt.codegen.text.expressions import times
from smelt.ir import Node
from smelt.ops.core.cumulative import Cumulative


class CumulativeKernel(Kernel[Cumulative]):
    """One pass along the axis for each index of the other axes."""

    op = Cumulative
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[Cumulative], request: Request) -> KernelCall:
        op, x = node.op, node.input(0).type
        size, inner = x.shape[op.axis], prod(x.shape[op.axis + 1 :])
        around = prod(x.shape[: op.axis]), inner
        loops = nest(around, (size * inner, 1))
        first = index(loops, 0)
        place = f"({size - 1} - r)" if op.reverse else "r"
        at = total((first, times(place, inner)))
        ends = ", from the end" if op.reverse else ""
        ends += ", without the element itself" if op.exclusive else ""
        # Unsigned integers are computed, so that signed ones wrap as well.
        kind = x.dtype.c_name if x.dtype.is_float else "uint64_t"
        start, operator = ("0", "+") if op.kind == "sum" else ("1", "*")
        store = f"output[at] = ({x.dtype.c_name})acc;"
        step = [f"acc {operator}= ({kind})input[at];", store]
        if op.exclusive:
            # Input and output may be one buffer: read the element before overwriting it.
            step = [f"const {kind} next = acc {operator} ({kind})input[at];", store, "acc = next;"]
        lines = in_loops((ArrayLoop("r", size, ()),), (f"const int32_t at = {at};", *step))
        return loops_call(
            stem=f"cumulative_{op.kind}",
            form="c_cumulative",
            parameters=LoopsParameters(
                (f"Cumulative {op.kind} of {x} along axis {op.axis}{ends}.",),
                in_loops(loops, (f"{kind} acc = {start};", *lines)),
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),),
            summary=f"{len(loops) + 1} nested loops",
        )


KERNELS = (CumulativeKernel(),)

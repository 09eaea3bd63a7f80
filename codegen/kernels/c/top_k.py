"""TopK."""

from __future__ import annotations

from math import prod

from typing_extensions import override

from smelt.codegen.kernels.base import WIDE_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.ir import DType, Node
from smelt.ops.top_k import TopK


class TopKKernel(Kernel[TopK]):
    """A heap of the best elements so far, in the output of the indices; then a heap sort of it."""

    op = TopK
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[TopK], request: Request) -> KernelCall:
        op, x = node.op, node.input(0).type
        size, stride = x.shape[op.axis], prod(x.shape[op.axis + 1 :])
        step = "" if stride == 1 else f" * {stride}"
        cast = "" if op.index is DType.INT32 else "(int32_t)"
        return KernelCall(
            template="c/top_k.j2",
            stem="top_k",
            parameters={
                "x": x,
                "k": op.k,
                "axis": op.axis,
                "order": "greatest" if op.largest else "least",
                "after": "<" if op.largest else ">",
                "index": op.index.c_name,
                "outer": prod(x.shape[: op.axis]) * stride if op.k else 0,
                "stride": stride,
                "row": size * stride,
                "result_row": op.k * stride,
                "parents": op.k // 2,
                "last": op.k - 1,
                "step": step,
                "top": f"{cast}heap[0]",
                "lower": f"{cast}lower",
                "at": f"{cast}heap[at{step}]",
                "child": f"{cast}heap[child{step}]",
                "next": f"{cast}heap[{f'(child + 1){step}' if step else 'child + 1'}]",
                "found": f"heap[j{step}]{step}",
            },
            operands=(Input(0, "input"), Output(0, "values"), Output(1, "indices")),
            summary=f"{op.k} of {size} by a heap",
        )


KERNELS = (TopKKernel(),)

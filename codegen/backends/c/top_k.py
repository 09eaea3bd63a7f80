"""TopK."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from typing_extensions import override

from smelt.codegen.lower.kernel import (
    WIDE_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Request,
)
from smelt.codegen.lower.nested_loops import around_axis, total
from smelt.ir import DType, Node
from smelt.ops.tensor.top_k import TopK


@dataclass(frozen=True)
class TopKParameters(Parameters):
    """The variables of `backends/c/top_k.j2`.

    Attributes:
        title: which elements are found, for the comment.
        element, index: C types.
        k: elements of a heap.
        after: the C operator of an element that comes after another one.
        outer: how many heaps, each of `size` elements.
        start, result: C expressions of where the input and the outputs of heap `i` begin.
        step: what an index within a heap is multiplied by, in C.
        parents: elements of a heap that have children.
        last: the index of the last one.
        top, lower, at, child, next, found: C expressions of indices that a heap holds.
    """

    title: str
    element: str
    index: str
    k: int
    after: str
    outer: int
    size: int
    start: str
    result: str
    step: str
    parents: int
    last: int
    top: str
    lower: str
    at: str
    child: str
    next: str
    found: str


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
        order = "greatest" if op.largest else "least"
        return KernelCall(
            template="backends/c/top_k.j2",
            stem="top_k",
            parameters=TopKParameters(
                title=f"The {op.k} {order} elements of {x} along axis {op.axis}",
                element=x.dtype.c_name,
                index=op.index.c_name,
                k=op.k,
                after="<" if op.largest else ">",
                outer=prod(x.shape[: op.axis]) * stride if op.k else 0,
                size=size,
                start=total(around_axis(stride, size * stride)),
                result=total(around_axis(stride, op.k * stride)),
                step=step,
                parents=op.k // 2,
                last=op.k - 1,
                top=f"{cast}heap[0]",
                lower=f"{cast}lower",
                at=f"{cast}heap[at{step}]",
                child=f"{cast}heap[child{step}]",
                next=f"{cast}heap[{f'(child + 1){step}' if step else 'child + 1'}]",
                found=f"heap[j{step}]{step}",
            ),
            operands=(Input(0, "input"), Output(0, "values"), Output(1, "indices")),
            summary=f"{op.k} of {size} by a heap",
        )


KERNELS = (TopKKernel(),)

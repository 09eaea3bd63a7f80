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
from smelt.codegen.lower.loop_heads import loop_head
from smelt.codegen.lower.nested_loops import around_axis, total
from smelt.ir import DType, Node
from smelt.ops.tensor.top_k import TopK


@dataclass(frozen=True)
class TopKParameters(Parameters):
    """Variables of `top_k.j2`; texts are C.

    Attributes:
        title: text of the function's comment.
        element: type of an element.
        index: type of an index.
        k: elements of a heap.
        after: operator such that `x OPERATOR y` is true if x comes after y in the order.
        each_search: line that opens the loop over searches, each along the axis and with its own
            heap; empty if there is one.
        size: size of the axis.
        input: pointer to the first input of search `i`.
        indices, values: pointers to its first outputs.
        step: factor from an index along the axis to an offset, such as ` * 4`; empty if it is 1.
        parents: number of a heap's elements that have children.
        last: position of a heap's last element.
        top, lower, at, child, next, found: indices along the axis that a heap contains.
    """

    title: str
    element: str
    index: str
    k: int
    after: str
    each_search: str
    size: int
    input: str
    indices: str
    values: str
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
    """Keeps the best elements so far in a heap in the output of indices, then sorts the heap."""

    op = TopK
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[TopK], request: Request) -> KernelCall:
        op, x = node.op, node.input(0).type
        size, stride = x.shape[op.axis], prod(x.shape[op.axis + 1 :])
        step = "" if stride == 1 else f" * {stride}"
        searches = prod(x.shape[: op.axis]) * stride
        start, result = (
            around_axis(stride, count * stride) if searches > 1 else () for count in (size, op.k)
        )
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
                each_search=loop_head("i", searches),
                size=size,
                input=total(("input", *start)),
                indices=total(("indices", *result)),
                values=total(("values", *result)),
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
            summary=f"{op.k} of {size} elements with a heap",
        )


KERNELS = (TopKKernel(),)

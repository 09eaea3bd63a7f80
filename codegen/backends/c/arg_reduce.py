"""Indices of the greatest or least elements along an axis (ArgReduce)."""

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
from smelt.codegen.lower.nested_loops import ArrayLoop, around_axis, total
from smelt.codegen.text.expressions import times
from smelt.ir import DType, Node
from smelt.ops.core.arg_reduce import ArgReduce


@dataclass(frozen=True)
class ArgReduceParameters(Parameters):
    """Variables of `arg_reduce.j2`.

    Attributes:
        x, y: types of input and output.
        element: C type of an input element.
        which: the element that is looked for, in words.
        axis: the axis.
        better: C condition that element `x` replaces the best one so far.
        size: elements along the axis.
        each_result: the line that opens the loop over results; empty if there is one.
        result: C text: the index of a result.
        start: C expression of the offset of the first element of result `i`.
        place: C expression of the offset of its element `j` from there.
    """

    x: str
    y: str
    element: str
    which: str
    axis: int
    better: str
    size: int
    each_result: str
    result: str
    start: str
    place: str


class ArgReduceKernel(Kernel[ArgReduce]):
    """Indices found in one pass over the elements for each result."""

    op = ArgReduce
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[ArgReduce], request: Request) -> KernelCall:
        op, x, y = node.op, node.input(0).type, node.output.type
        size, stride = x.shape[op.axis], prod(x.shape[op.axis + 1 :])
        return KernelCall(
            template="backends/c/arg_reduce.j2",
            stem=f"arg_{op.kind}",
            parameters=ArgReduceParameters(
                x=str(x),
                y=str(y),
                element=x.dtype.c_name,
                which=f"{'last' if op.last else 'first'} of the {_KINDS[op.kind]} elements",
                axis=op.axis,
                better=_better(op, x.dtype),
                size=size,
                each_result=ArrayLoop("i", y.size, ()).head if y.size != 1 else "",
                result="i" if y.size != 1 else "0",
                start=total(around_axis(stride, size * stride)) if y.size != 1 else "0",
                place=times("j", stride),
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            summary=f"{size} elements per result",
        )


_KINDS = {"max": "greatest", "min": "least"}


def _better(op: ArgReduce, dtype: DType) -> str:
    """Return the C condition that element `x` replaces the best one so far.

    NaN is better than any number.
    """
    sign = ">" if op.kind == "max" else "<"
    if op.last:
        return f"x {sign}= best || x != x" if dtype.is_float else f"x {sign}= best"
    worse = "<" if op.kind == "max" else ">"
    return f"!(x {worse}= best) && best == best" if dtype.is_float else f"x {sign} best"


KERNELS = (ArgReduceKernel(),)

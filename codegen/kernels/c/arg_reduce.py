"""ArgReduce."""

from __future__ import annotations

from math import prod

from typing_extensions import override

from smelt.codegen.kernels.base import WIDE_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.ir import DType, Node
from smelt.ops.arg_reduce import ArgReduce


class ArgReduceKernel(Kernel[ArgReduce]):
    """One pass over the elements for each result."""

    op = ArgReduce
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[ArgReduce], request: Request) -> KernelCall:
        op, x, y = node.op, node.input(0).type, node.output.type
        size, stride = x.shape[op.axis], prod(x.shape[op.axis + 1 :])
        return KernelCall(
            template="c/arg_reduce.j2",
            stem=f"arg_{op.kind}",
            parameters={
                "x": x,
                "y": y,
                "kind": {"max": "greatest", "min": "least"}[op.kind],
                "which": "last" if op.last else "first",
                "axis": op.axis,
                "better": _better(op, x.dtype),
                "size": size,
                "count": y.size,
                "row": size * stride,
                "stride": stride,
            },
            operands=(Input(0, "input"), Output(0, "output")),
            summary=f"{size} elements a result",
        )


def _better(op: ArgReduce, dtype: DType) -> str:
    """C that tells whether element `x` takes the place of the best one; NaN is best of all."""
    sign = ">" if op.kind == "max" else "<"
    if op.last:
        return f"x {sign}= best || x != x" if dtype.is_float else f"x {sign}= best"
    worse = "<" if op.kind == "max" else ">"
    return f"!(x {worse}= best) && best == best" if dtype.is_float else f"x {sign} best"


KERNELS = (ArgReduceKernel(),)

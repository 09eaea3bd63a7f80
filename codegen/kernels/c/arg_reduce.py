"""ArgReduce."""

from __future__ import annotations

from math import prod

from smelt.codegen.kernels.base import WIDE_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.ir import Node
from smelt.ops.arg_reduce import ArgReduce


class ArgReduceKernel(Kernel):
    """One pass over the elements for each result."""

    op = ArgReduce
    floats = WIDE_FLOATS

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op, x, y = node.op, node.input(0).type, node.output.type
        if not isinstance(op, ArgReduce):
            raise TypeError(f"{op.name} is no ArgReduce")
        size, stride = x.shape[op.axis], prod(x.shape[op.axis + 1 :])
        better = (">" if op.kind == "max" else "<") + ("=" if op.last else "")
        return KernelCall(
            template="c/arg_reduce.j2",
            stem=f"arg_{op.kind}",
            parameters={
                "x": x,
                "y": y,
                "kind": {"max": "greatest", "min": "least"}[op.kind],
                "which": "last" if op.last else "first",
                "axis": op.axis,
                "better": better,
                "size": size,
                "count": y.size,
                "row": size * stride,
                "stride": stride,
            },
            operands=(Input(0, "input"), Output(0, "output")),
            summary=f"{size} elements a result",
        )


KERNELS = (ArgReduceKernel(),)

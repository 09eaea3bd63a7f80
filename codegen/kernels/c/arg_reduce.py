"""ArgReduce."""

from __future__ import annotations

from math import prod

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Request
from smelt.ir import DType, Node
from smelt.ops.arg_reduce import ArgReduce
from smelt.targets import Target


class ArgReduceKernel(Kernel):
    """One pass over the elements for each result."""

    op = ArgReduce
    float64 = True

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        if node.input(0).type.dtype is DType.FLOAT16:
            return f"{node.op.name} is not served for f16 data."
        return None

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

"""Transpose."""

from __future__ import annotations

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Request
from smelt.codegen.kernels.c.loops import dense_strides, index, nest
from smelt.ir import Node
from smelt.ops.transpose import Transpose


class TransposeKernel(Kernel):
    """Writes the output in order; elements that stay neighbours are copied as a block."""

    op = Transpose

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op, x, y = node.op, node.input(0).type, node.output.type
        if not isinstance(op, Transpose):
            raise TypeError(f"{op.name} is no Transpose")
        strides = dense_strides(x.shape)
        loops = nest(y.shape, [strides[axis] for axis in op.permutation], dense_strides(y.shape))
        block = loops[-1].size if loops and loops[-1].strides[0] == 1 else 1
        if block > 1:
            loops = loops[:-1]
        source, target = index(loops, 0), index(loops, 1)
        statement = f"output[{target}] = input[{source}];"
        if block > 1:
            size = block * y.dtype.size
            statement = f"memcpy(output + {target}, input + {source}, {size});"
        return KernelCall(
            template="c/transpose.j2",
            stem="transpose",
            parameters={
                "x": x,
                "y": y,
                "permutation": op.permutation,
                "loops": loops,
                "statements": [*([] for _ in loops), [statement]],
            },
            operands=(Input(0, "input"), Output(0, "output")),
            summary=f"{len(loops)} nested loops, {block} elements at a time",
        )


KERNELS = (TransposeKernel(),)

"""Copy and BitCast."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.kernels.base import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.ir import Node
from smelt.ops.bit_cast import BitCast
from smelt.ops.copy import Copy


class CopyKernel(Kernel[Copy | BitCast]):
    """One block copy."""

    op = Copy | BitCast
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Copy | BitCast], request: Request) -> KernelCall:
        y = node.output.type
        return KernelCall(
            template="c/copy.j2",
            stem="copy",
            parameters={"type": y, "bytes": y.bytes},
            operands=(Input(0, "input"), Output(0, "output")),
            summary="block copy",
        )


KERNELS = (CopyKernel(),)

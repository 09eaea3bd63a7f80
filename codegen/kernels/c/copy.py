"""Copy and BitCast."""

from __future__ import annotations

from smelt.codegen.kernels.base import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.ir import Node
from smelt.ops.bit_cast import BitCast
from smelt.ops.copy import Copy


class CopyKernel(Kernel):
    """One block copy."""

    op = Copy
    floats = STORED_FLOATS

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        y = node.output.type
        return KernelCall(
            template="c/copy.j2",
            stem="copy",
            parameters={"type": y, "bytes": y.bytes},
            operands=(Input(0, "input"), Output(0, "output")),
            summary="block copy",
        )


class BitCastKernel(CopyKernel):
    """One block copy."""

    op = BitCast


KERNELS = (CopyKernel(), BitCastKernel())

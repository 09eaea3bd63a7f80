"""Copies (Copy), also with another element type (BitCast)."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from smelt.codegen.lower.kernel import (
    STORED_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Request,
)
from smelt.ir import Node
from smelt.ops.core.bit_cast import BitCast
from smelt.ops.tensor.copy import Copy


@dataclass(frozen=True)
class CopyParameters(Parameters):
    """Variables of `copy.j2`: type and size of the output in bytes."""

    type: str
    bytes: int


class CopyKernel(Kernel[Copy | BitCast]):
    """One block copy."""

    op = Copy | BitCast
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Copy | BitCast], request: Request) -> KernelCall:
        y = node.output.type
        return KernelCall(
            template="backends/c/copy.j2",
            stem="copy",
            parameters=CopyParameters(str(y), y.bytes),
            operands=(Input(0, "input"), Output(0, "output")),
            uses={"string.h"},
            summary="block copy",
        )


KERNELS = (CopyKernel(),)

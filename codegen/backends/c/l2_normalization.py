"""L2Normalization: the squares of a row, then its elements by the inverse of their root."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.helpers import when
from smelt.codegen.text.literals import c_float
from smelt.ir import DType, Node
from smelt.ops.core.l2_normalization import L2Normalization


@dataclass(frozen=True)
class L2NormalizationParameters(Parameters):
    """The variables of `backends/c/l2_normalization.j2`.

    `least` is the least norm that floats are divided by; `element` the C expression of element `i`
    of quantized data. The other one of them is empty.
    """

    x: str
    size: int
    rows: int
    least: str
    element: str


class L2NormalizationKernel(Kernel[L2Normalization]):
    """Two passes over each row."""

    op = L2Normalization

    @override
    def offer(self, node: Node[L2Normalization], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        if not x.is_quantized and x.dtype is not DType.FLOAT32:
            return Refusal(f"{op.name} is served for f32 and quantized i8 data, not {x}.")
        size = x.shape[-1]
        stored = when(x.is_quantized, "inverse_sqrt", "clamp", "requantize")
        return KernelCall(
            template="backends/c/l2_normalization.j2",
            stem="l2_normalization",
            parameters=L2NormalizationParameters(
                x=str(x),
                size=size,
                rows=x.size // max(size, 1),
                least="" if x.is_quantized else c_float(op.least),
                element=offset("input[i]", -x.zero_point) if x.is_quantized else "",
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),),
            uses=stored or {"math.h"},
            summary="two passes a row",
        )


KERNELS = (L2NormalizationKernel(),)

"""Rows divided by their Euclidean norms (L2Normalization)."""

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
    """Variables of `l2_normalization.j2`.

    Attributes:
        x: type of the input.
        size: elements of a row.
        rows: number of rows.
        least: smallest divisor of float elements, in C; empty for quantized data.
        element: C expression of a quantized element `i` minus its zero point; empty for floats.
    """

    x: str
    size: int
    rows: int
    least: str
    element: str


class L2NormalizationKernel(Kernel[L2Normalization]):
    """Two passes over each row: the sum of squares, then the quotients."""

    op = L2Normalization

    @override
    def offer(self, node: Node[L2Normalization], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        if not x.is_quantized and x.dtype is not DType.FLOAT32:
            return Refusal(f"{op.name} supports f32 and quantized i8 data, not {x}.")
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
                element=offset(f"input[{'i' if size > 1 else 0}]", -x.zero_point)
                if x.is_quantized
                else "",
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),),
            uses=stored or {"math.h"},
            summary="two passes over each row",
        )


KERNELS = (L2NormalizationKernel(),)

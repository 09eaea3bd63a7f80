"""Triangle."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

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
from smelt.codegen.text.expressions import offset, times
from smelt.ir import Node
from smelt.ops.tensor.triangle import Triangle


@dataclass(frozen=True)
class TriangleParameters(Parameters):
    """Variables of `triangle.j2`.

    Attributes:
        title: the elements that are kept, for the function's comment.
        upper: whether the elements from the edge on are kept; else those before it.
        rows: rows of all matrices.
        columns: elements of a row.
        edge: C expression of the column that separates the two parts of row `i`.
        before: C expression of the bytes before the edge.
        behind: C expression of the bytes from the edge on.
    """

    title: str
    upper: bool
    rows: int
    columns: int
    edge: str
    before: str
    behind: str


class TriangleKernel(Kernel[Triangle]):
    """Writes each row by a block copy and a fill with zeros."""

    op = Triangle
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Triangle], request: Request) -> KernelCall:
        op, x = node.op, node.input(0).type
        *batch, rows, columns = x.shape
        row = "i" if prod(batch) == 1 or rows == 0 else f"i % {rows}"
        # All diagonals beyond a corner give the same result; limiting them makes 32 bits suffice.
        k = min(max(op.k, -rows - 1), columns + 1)
        return KernelCall(
            template="backends/c/triangle.j2",
            stem="triu" if op.upper else "tril",
            parameters=TriangleParameters(
                title=f"on and {'above' if op.upper else 'below'} diagonal {op.k} of {x}",
                upper=op.upper,
                rows=prod(batch) * rows,
                columns=columns,
                edge=offset(row, k if op.upper else k + 1),
                before=times("(size_t)edge", x.dtype.size),
                behind=times(f"(size_t)({columns} - edge)", x.dtype.size),
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            uses={"clamp", "string.h"},
            summary="a copy and a fill per row",
        )


KERNELS = (TriangleKernel(),)

"""SegmentReduce."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from typing_extensions import override

from smelt.codegen.lower.kernel import (
    WIDE_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Request,
)
from smelt.codegen.lower.nested_loops import in_loops, index, nest, total
from smelt.codegen.text.expressions import times
from smelt.codegen.text.literals import c_elements
from smelt.ir import DType, Node
from smelt.ops.core.segment_reduce import SegmentReduce


@dataclass(frozen=True)
class SegmentReduceParameters(Parameters):
    """Variables of `segment_reduce.j2`; texts are C.

    Attributes:
        title: text of the function's comment.
        index: type of an index.
        size: size of the data along the axis.
        segments: number of segments.
        count: elements of the output.
        first: initial value of the output's elements.
        lines: statements that accumulate position `i` of the data into segment `segment`.
    """

    title: str
    index: str
    size: int
    segments: int
    count: int
    first: str
    lines: tuple[str, ...]


class SegmentReduceKernel(Kernel[SegmentReduce]):
    """Accumulates in the output; reads the data once, in the order of the axis."""

    op = SegmentReduce
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[SegmentReduce], request: Request) -> KernelCall:
        op, x, indices, y = node.op, node.input(0).type, node.input(1).type, node.output.type
        outer, size, inner = (
            prod(x.shape[: op.axis]),
            x.shape[op.axis],
            prod(x.shape[op.axis + 1 :]),
        )
        loops = nest((outer, inner), (size * inner, 1), (op.segments * inner, 1), names="jk")
        read = total((index(loops, 0), times("i", inner)))
        written = total((index(loops, 1), times("(int32_t)segment", inner)))
        kind = x.dtype.c_name
        return KernelCall(
            template="backends/c/segment_reduce.j2",
            stem=f"segment_{op.kind}",
            parameters=SegmentReduceParameters(
                title=f"{op.kind.capitalize()} of each segment along axis {op.axis}: {x} -> {y}",
                index=indices.dtype.c_name,
                size=size,
                segments=op.segments,
                count=y.size,
                first=c_elements(op.of_nothing(y.dtype))[0],
                lines=in_loops(
                    loops,
                    (
                        f"const {kind} x = input[{read}];",
                        f"{kind} *const y = output + {written};",
                        f"*y = {_combined(op.kind, x.dtype)};",
                    ),
                ),
            ),
            operands=(Input(0, "input"), Input(1, "indices"), Output(0, "output")),
            summary=f"{size} positions of {outer * inner} elements each",
        )


def _combined(kind: str, dtype: DType) -> str:
    """Return the C expression that combines `*y` and `x`; integers are unsigned, so they wrap."""
    if kind in ("max", "min"):
        return f"x {'>' if kind == 'max' else '<'} *y ? x : *y"
    sign = {"sum": "+", "prod": "*"}[kind]
    if dtype.is_float:
        return f"*y {sign} x"
    wide = "uint64_t" if dtype.size == 8 else "uint32_t"
    return f"({dtype.c_name})(({wide})*y {sign} ({wide})x)"


KERNELS = (SegmentReduceKernel(),)

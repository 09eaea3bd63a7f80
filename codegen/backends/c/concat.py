"""Concatenation of tensors (Concat)."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from typing_extensions import override

from smelt.codegen.lower.kernel import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.lower.nested_loops import LoopsParameters, loops_call, nested
from smelt.codegen.text.expressions import offset, times
from smelt.ir import DType, Node
from smelt.ops.tensor.concat import Concat


class ConcatKernel(Kernel[Concat]):
    """Block copies: one for each input and each index of the axes before the concatenated one."""

    op = Concat
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Concat], request: Request) -> KernelCall:
        op, y = node.op, node.output.type
        chunks = [prod(v.type.shape[op.axis :]) for v in node.inputs if v is not None]
        starts = [sum(chunks[:i]) for i in range(len(chunks))]
        rows = prod(y.shape[: op.axis])
        head = f"for (int32_t i = 0; i < {rows}; ++i, output += {sum(chunks)}) {{"
        copies = [
            _copied(start, f"input{n}", "0" if rows == 1 else times("i", size), size, y.dtype)
            for n, (size, start) in enumerate(zip(chunks, starts, strict=True))
        ]
        call = loops_call(
            stem="concat",
            form="c_concat",
            parameters=LoopsParameters(
                f"Concatenation of {len(chunks)} tensors along axis {op.axis} into {y}.",
                tuple(copies) if rows == 1 else nested((head,), ((), copies)),
            ),
            operands=(*(Input(i, f"input{i}") for i in range(len(chunks))), Output(0, "output")),
            summary=f"{len(chunks)} block copies per row",
        )
        return replace(call, details={"inputs": f"of_{len(chunks)}", "axis": f"axis{op.axis}"})


def _copied(start: int, source: str, at: str, size: int, dtype: DType) -> str:
    """Return the C statement that copies elements of an input to the output from `start` on."""
    if size == 1:
        return f"output[{start}] = {source}[{at}];"
    return f"memcpy({offset('output', start)}, {offset(source, at)}, {size * dtype.size});"


KERNELS = (ConcatKernel(),)

"""Concatenation of tensors (Concat)."""

from __future__ import annotations

from math import prod

from typing_extensions import override

from smelt.codegen.lower.kernel import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.lower.nested_loops import LoopsParameters, loops_call, nested
from smelt.ir import Node
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
            f"memcpy(output + {start}, input{n}{'' if rows == 1 else f' + i * {size}'}, "
            f"{size * y.dtype.size});"
            for n, (size, start) in enumerate(zip(chunks, starts, strict=True))
        ]
        return loops_call(
            stem="concat",
            form="c_concat",
            parameters=LoopsParameters(
                f"Concatenation of {len(chunks)} tensors along axis {op.axis} into {y}.",
                tuple(copies) if rows == 1 else nested((head,), ((), copies)),
            ),
            operands=(*(Input(i, f"input{i}") for i in range(len(chunks))), Output(0, "output")),
            summary=f"{len(chunks)} block copies per row",
        )


KERNELS = (ConcatKernel(),)

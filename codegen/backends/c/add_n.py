"""Sums of any number of tensors (AddN)."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.kernel import (
    WIDE_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Request,
)
from smelt.codegen.lower.nested_loops import unbroadcast
from smelt.ir import Node
from smelt.ops.core.add_n import AddN


@dataclass(frozen=True)
class AddNParameters(Parameters):
    """Variables of `add_n.j2`.

    Attributes:
        type: type of each tensor.
        terms: number of tensors.
        count: elements of a tensor.
        sum: C expression of the sum of all elements `i`.
    """

    type: str
    terms: int
    count: int
    sum: str


class AddNKernel(Kernel[AddN]):
    """Sums in one loop over all elements."""

    op = AddN
    floats = WIDE_FLOATS

    def offer(self, node: Node[AddN], request: Request) -> KernelCall:
        """Return the call; it adds unsigned integers, so that signed ones wrap as well."""
        y, count = node.output.type, len(node.inputs)
        names = [f"input{index}" for index in range(count)]
        if y.dtype.is_float:
            total = " + ".join(f"{name}[i]" for name in names)
        else:
            unsigned = "uint64_t" if y.dtype.size > 4 else "uint32_t"
            added = " + ".join(f"({unsigned}){name}[i]" for name in names)
            total = f"({y.dtype.c_name})({added})"
        return KernelCall(
            template="backends/c/add_n.j2",
            stem="add_n",
            parameters=AddNParameters(str(y), count, y.size, total),
            operands=(*(Input(i, name) for i, name in enumerate(names)), Output(0, "output")),
            in_place=unbroadcast([node.input(i).type for i in range(count)], y),
            summary="one loop",
        )


KERNELS = (AddNKernel(),)

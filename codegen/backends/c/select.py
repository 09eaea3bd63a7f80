"""Select."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.lower.kernel import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.lower.nested_loops import (
    LoopsParameters,
    broadcast_strides,
    dense_strides,
    depth,
    index,
    loops_call,
    nest,
    nested,
    unbroadcast,
)
from smelt.ir import Node
from smelt.ops.tensor.select import Select


class SelectKernel(Kernel[Select]):
    """Computes each element in nested loops, as few as broadcasting allows."""

    op = Select
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Select], request: Request) -> KernelCall:
        condition, a, b = operands = [node.input(i).type for i in range(3)]
        y = node.output.type
        loops = nest(
            y.shape,
            *(broadcast_strides(x.shape, y.shape) for x in operands),
            dense_strides(y.shape),
        )
        statements: list[list[str]] = [[] for _ in range(len(loops) + 1)]
        for array, name in enumerate(("condition", "a", "b")):
            element = f"{name}[{index(loops, array)}]"
            kind = operands[array].dtype.c_name
            variable = ("chosen", "left", "right")[array]
            statements[depth(loops, array)].append(f"const {kind} {variable} = {element};")
        statements[-1].append(f"output[{index(loops, 3)}] = chosen != 0 ? left : right;")
        return loops_call(
            stem="select",
            form="c_select",
            parameters=LoopsParameters(
                f"Select by {condition}: {a} where it is true, {b} elsewhere -> {y}.",
                nested([loop.head for loop in loops], statements),
            ),
            operands=(
                Input(0, "condition"),
                Input(1, "a"),
                Input(2, "b"),
                Output(0, "output"),
            ),
            in_place=unbroadcast(operands, y),
            summary=f"{len(loops)} nested loops",
        )


KERNELS = (SelectKernel(),)

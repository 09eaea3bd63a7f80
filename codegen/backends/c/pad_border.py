"""Pad with the tensor's own elements: edge, reflect, symmetric, wrap."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.c.gather import compact
from smelt.codegen.lower.kernel import (
    STORED_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Refusal,
    Request,
)
from smelt.codegen.lower.lookup_tables import padded_sizes
from smelt.codegen.lower.nested_loops import (
    ALL_NAMES,
    LoopsParameters,
    copy,
    dense_strides,
    in_loops,
    index,
    loops_call,
    nest,
    total,
)
from smelt.codegen.text.expressions import times
from smelt.ir import Node
from smelt.ops.tensor.pad import Pad


class BorderKernel(Kernel[Pad]):
    """Writes the output in order; a table has the input index for each index of a padded axis."""

    op = Pad
    floats = STORED_FLOATS

    @override
    def entries(self, node: Node) -> int:
        return padded_sizes(node)

    @override
    def offer(self, node: Node[Pad], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        if op.mode == "constant":
            return Refusal("another kernel serves mode 'constant'.")
        strides = dense_strides(x.shape)
        padded = [axis for axis, pair in enumerate(op.padding) if any(pair)]
        plain = [0 if axis in padded else stride for axis, stride in enumerate(strides)]
        # One array of strides per padded axis, so that `nest` merges its loop with no other.
        marks = [[int(axis == own) for axis in range(len(y.shape))] for own in padded]
        loops = nest(y.shape, plain, dense_strides(y.shape), *marks, names=ALL_NAMES)
        block = 1
        if loops and loops[-1].strides[:2] == (1, 1):
            block, loops = loops[-1].size, loops[:-1]
        tables = [op.sources(axis, x.shape[axis]) for axis in padded]
        terms = [index(loops, 0)]
        start = 0
        for number, (axis, table) in enumerate(zip(padded, tables, strict=True)):
            (loop,) = (loop for loop in loops if loop.strides[2 + number])
            found = f"sources[{total((str(start), loop.name))}]"
            terms.append(times(found, strides[axis]))
            start += table.size
        statement = copy(index(loops, 1), total(terms), block, y.dtype.size)
        sources = compact(np.concatenate(tables)) if tables else None
        tables_ = () if sources is None else (Packed("sources", sources),)
        operands: tuple[Operand, ...] = (Input(0, "input"), *tables_, Output(0, "output"))
        return loops_call(
            stem=f"pad_{op.mode}",
            form="c_border",
            parameters=LoopsParameters(
                (
                    f"Pad in mode {op.mode}: {x} -> {y}.",
                    f"{', '.join(map(str, op.padding))} elements before and after each axis.",
                ),
                in_loops(loops, (statement,)),
            ),
            operands=operands,
            summary=f"{len(loops)} nested loops, {block} elements at a time",
        )


KERNELS = (BorderKernel(),)

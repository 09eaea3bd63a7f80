"""Tile."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.lower.kernel import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.lower.nested_loops import (
    LoopsParameters,
    block_copies,
    dense_strides,
    loops_call,
)
from smelt.ir import Node
from smelt.ops.tensor.tile import Tile


class TileKernel(Kernel[Tile]):
    """Writes the output in order; elements that stay neighbors are copied as a block."""

    op = Tile
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Tile], request: Request) -> KernelCall:
        op, x, y = node.op, node.input(0).type, node.output.type
        # Each axis is split into two: the repetition, and the index within it.
        shape: list[int] = []
        source: list[int] = []
        target: list[int] = []
        for times, size, read, written in zip(
            op.multiples, x.shape, dense_strides(x.shape), dense_strides(y.shape), strict=True
        ):
            shape += times, size
            source += 0, read
            target += size * written, written
        copies = block_copies(shape, source, target, y.dtype.size)
        return loops_call(
            stem="tile",
            form="c_tile",
            parameters=LoopsParameters(
                f"{x} repeated {' x '.join(map(str, op.multiples))} times as {y}.", copies.lines
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            summary=copies.summary,
        )


KERNELS = (TileKernel(),)

"""PixelSums: adds the pixels of a few rows to sums, and computes the average at the end."""

from __future__ import annotations

from functools import partial

from typing_extensions import override

from smelt.codegen.backends.c.pool import PoolParameters, average_of, divisors, integer_division
from smelt.codegen.backends.c.pool_windows import PoolSpan, WindowWalk
from smelt.codegen.lower.c_expressions import stored
from smelt.codegen.lower.image_loops import Frame
from smelt.codegen.lower.kernel import Input, Kernel, KernelCall, Output, Refusal, Request
from smelt.codegen.lower.nested_loops import lane_blocks
from smelt.ir import Node
from smelt.ops.core.pixel_sums import PixelSums
from smelt.ops.core.pool import Pool2D


class PixelSumsKernel(Kernel[PixelSums]):
    """Accumulates four channels together."""

    op = PixelSums

    @override
    def offer(self, node: Node[PixelSums], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        _, *sizes, _ = x.shape
        whole = Pool2D("average", (sizes[0], sizes[1]))
        rows, columns = (PoolSpan.of(whole, axis, size, 1) for axis, size in enumerate(sizes))
        division = integer_division(op.count, x.dtype) if op.count else "none"
        following = len(node.inputs) > 1
        walk = WindowWalk(
            kind="sum",
            type="int32_t",
            source=Frame.of(node).source,
            columns=columns,
            taps=0,
            center=0,
            first=(lambda channel: f"sums[{channel}]") if following else (lambda _: "0"),
            result=partial(average_of, division, stored(op.activation, y)),
        )
        blocks = tuple(map(walk.in_registers, lane_blocks(x.shape[3])))
        added = (
            f"Adds the pixels of {x} to earlier sums" if following else f"Adds up the pixels of {x}"
        )
        made = f"the average of {op.count} pixels" if op.count else "the sums"
        return KernelCall(
            template="backends/c/pool.j2",
            stem="average_of_pixels" if op.count else "sums_of_pixels",
            details={"start": "from_sums" if following else "from_0"},
            parameters=PoolParameters(
                comment=(f"{added}, and stores {made}.",),
                constants=divisors(op.count, division) if op.count else (),
                frame=Frame.of(node),
                rows=rows.lines(ends=True),
                columns=columns.lines(ends=True),
                next_row=rows.advance,
                count=(),
                type=x.dtype.c_name,
                result_type=y.dtype.c_name,
                output="output",
                blocks=blocks,
            ),
            operands=(
                Input(0, "input"),
                *((Input(1, "sums"),) if following else ()),
                Output(0, "output"),
            ),
            in_place=() if op.count or not following else ((0, 1),),
            uses=frozenset[str]().union(*(block.uses for block in blocks)),
            summary="sums of pixels, 4 channels at a time",
            form="c_average_pool",
            work={"taps": x.size, "outputs": y.size, "calls": 1},
        )


KERNELS = (PixelSumsKernel(),)

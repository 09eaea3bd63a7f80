"""RoiAlign."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Request
from smelt.codegen.render import c_float
from smelt.ir import Node
from smelt.ops.roi_align import MOST_SAMPLES, RoiAlign


class RoiAlignKernel(Kernel[RoiAlign]):
    """Sample by sample, all channels of a pixel at a time."""

    op = RoiAlign

    @override
    def offer(self, node: Node[RoiAlign], request: Request) -> KernelCall:
        op, x, y = node.op, node.input(0).type, node.output.type
        n, height, width, channels = x.shape
        offset = " - 0.5f" if op.half_pixel else ""
        scale = "" if op.scale == 1 else f" * {c_float(op.scale)}"
        adaptive = f"(int32_t)within(ceilf(%s_step), 0.0f, {c_float(MOST_SAMPLES)})"
        axes = [
            {
                "name": name,
                "begin": f"boxes[{column}]{scale}{offset}",
                "end": f"boxes[{column + 2}]{scale}{offset}",
                "bins": op.size[1 - column],
                "count": str(op.samples) if op.samples else adaptive % name,
                "size": size,
            }
            for name, column, size in (("y", 1, height), ("x", 0, width))
        ]
        return KernelCall(
            template="c/roi_align.j2",
            stem=f"roi_align_{op.kind}",
            parameters={
                "op": op,
                "x": x,
                "y": y,
                "axes": axes,
                "boxes": y.shape[0],
                "batch": n,
                "image": height * width * channels,
                "row": width * channels,
                "channels": channels,
                "bytes": channels * 4,
            },
            operands=(
                Input(0, "input"),
                Input(1, "boxes"),
                Input(2, "numbers"),
                Output(0, "output"),
            ),
            helpers=frozenset({"within", "bounded"}),
            summary="sample by sample, all channels of a pixel at a time",
        )


KERNELS = (RoiAlignKernel(),)

"""RoiAlign."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from smelt.codegen.lower.kernel import Input, Kernel, KernelCall, Output, Parameters, Request
from smelt.codegen.text.helpers import uses_in
from smelt.codegen.text.literals import c_float
from smelt.ir import Node
from smelt.ops.tensor.roi_align import MOST_SAMPLES, RoiAlign


@dataclass(frozen=True)
class RegionAxis:
    """The rows or columns of an image, and of the regions' bins; texts are C.

    Attributes:
        name: prefix of the C variables.
        begin, end: borders of a region.
        bins: number of a region's bins along the axis, as a float.
        samples: the number of samples along the axis as a float, if the region decides it.
        count: number of a bin's samples along the axis.
        sample: index of a sample along the axis.
        size: pixels of the image along the axis.
        last: index of the last pixel.
        limit: this index as a float.
    """

    name: str
    begin: str
    end: str
    bins: str
    samples: str
    count: str
    sample: str
    size: int
    last: int
    limit: str


@dataclass(frozen=True)
class RoiAlignParameters(Parameters):
    """Variables of `roi_align.j2`.

    Attributes:
        title: text of the function's comment.
        average: whether samples are averaged; else the result is the maximum of their weighted
            neighbors.
        divides: whether the sum of a bin's samples is divided by their number.
        half_pixel: whether regions may be smaller than a pixel.
        boxes: number of regions.
        last: index of the last image.
        axes: rows and columns.
        bins: bins of a region.
        columns: bins of a row of bins.
        inside: C condition that a sample is inside the image.
        image, row, channels: elements of an image, a row, a pixel.
        bytes: size of a pixel in bytes.
    """

    title: str
    average: bool
    divides: bool
    half_pixel: bool
    boxes: int
    last: int
    axes: tuple[RegionAxis, ...]
    bins: int
    columns: int
    inside: str
    image: int
    row: int
    channels: int
    bytes: int


class RoiAlignKernel(Kernel[RoiAlign]):
    """Computes sample by sample, all channels of a pixel at a time."""

    op = RoiAlign

    @override
    def offer(self, node: Node[RoiAlign], request: Request) -> KernelCall:
        op, x, y = node.op, node.input(0).type, node.output.type
        n, height, width, channels = x.shape
        computed = "the maximum of weighted neighbors of a bin's samples"
        if op.kind == "average":
            computed = "the average of a bin's interpolated samples"
        offset = " - 0.5f" if op.half_pixel else ""
        scale = "" if op.scale == 1 else f" * {c_float(op.scale)}"
        samples = f"within(ceilf(%s_step), 0.0f, {c_float(MOST_SAMPLES)})"
        bins = op.size
        axes = tuple(
            RegionAxis(
                name=name,
                begin=f"boxes[{column}]{scale}{offset}",
                end=f"boxes[{column + 2}]{scale}{offset}",
                bins=c_float(bins[1 - column]),
                samples="" if op.samples else samples % name,
                count=str(op.samples or f"(int32_t){name}_samples"),
                sample=f"sample {operator} x_count",
                size=size,
                last=size - 1,
                limit=c_float(size - 1),
            )
            for name, column, size, operator in (("y", 1, height, "/"), ("x", 0, width, "%"))
        )
        return KernelCall(
            template="backends/c/roi_align.j2",
            stem=f"roi_align_{op.kind}",
            parameters=RoiAlignParameters(
                title=f"Regions of {x} resized to {y}: {computed}",
                average=op.kind == "average",
                divides=op.kind == "average" and op.samples != 1,
                half_pixel=op.half_pixel,
                boxes=y.shape[0],
                last=n - 1,
                axes=axes,
                bins=bins[0] * bins[1],
                columns=bins[1],
                inside=f"y >= -1.0f && y <= {c_float(height)} && "
                f"x >= -1.0f && x <= {c_float(width)}",
                image=height * width * channels,
                row=width * channels,
                channels=channels,
                bytes=channels * x.dtype.size,
            ),
            operands=(
                Input(0, "input"),
                Input(1, "boxes"),
                Input(2, "numbers"),
                Output(0, "output"),
            ),
            uses={"within", "bounded", "string.h"} | uses_in(axis.samples for axis in axes),
            summary="sample by sample, all channels of a pixel at a time",
        )


KERNELS = (RoiAlignKernel(),)

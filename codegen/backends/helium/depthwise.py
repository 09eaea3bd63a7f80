"""int8 depthwise convolutions on Helium, as dot products.

A strip holds 16 channels of four neighboring columns, interleaved (VST4) so that a word holds four
inputs of one channel. A gather load reads four such words, a patch of 4 x 4 inputs, into a
register. The patch contains the windows of several outputs: four for a 3 x 3 window with stride 1.
Each of these outputs is a dot product of the patch with the window's weights, shifted to the
position of the output's window. If the image is one row, a word holds four neighbors of that row,
and a patch holds 16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.helium.convolution import refuse, scaling_of
from smelt.codegen.backends.helium.convolution_plan import Geometry
from smelt.codegen.backends.helium.depthwise_functions import interleave_function, strip_function
from smelt.codegen.backends.helium.depthwise_plan import LANES, PATCH, ROW, Patches, patches_of
from smelt.codegen.backends.helium.memory import FILL
from smelt.codegen.backends.helium.scaling import HeliumScaling, groups
from smelt.codegen.lower.kernel import (
    InnerFunction,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.text.expressions import offset
from smelt.ir import Array, DType, Node
from smelt.ops.core.convolution import DepthwiseConv2D, Pair


@dataclass(frozen=True)
class StripLanes:
    """The functions for strips of one number of channels, by their places in `inner`.

    Attributes:
        lanes: number of channels.
        interleave: the function that fills rows of a strip.
        strips: the functions that compute the outputs of a strip; the second one only the first
            output column.
    """

    lanes: int
    interleave: int
    strips: tuple[int, ...]


@dataclass(frozen=True)
class HeliumDepthwiseParameters(Parameters):
    """Variables of `backends/helium/depthwise.j2`.

    Attributes:
        title, summary: texts of the function's comment.
        line: whether the image is one row.
        parts: the functions for 16 channels, and those for the remaining channels.
        fields: words of constants for one channel.
        images: number of images.
        size: height and width of an input image.
        channels: channels of a pixel.
        input_size: elements of an input image.
        output_size: elements of an output image.
        output_row: elements of a row of outputs.
        pitch: elements from one row of a strip's outputs to the next; for a line, between outputs.
        row_pitch: input elements from one row to the next.
        word_pitch: input elements of four pixels, from one row of a line's strip to the next.
        record: words of a channel's weights.
        strip_rows: rows of a strip.
        starts: the first output row (for a line: the first output) of each strip.
        strip_outputs: output rows of a strip; for a line, its outputs.
        columns: output columns of a strip.
        step: output elements from a strip to its right neighbor.
        output_columns: width of the output.
        top, side: C texts: the first row and column under the window of output (y, x).
        zero: value of the padding (the input's zero point).
    """

    title: str
    summary: str
    line: bool
    parts: tuple[StripLanes, ...]
    fields: int
    images: int
    size: Pair
    channels: int
    input_size: int
    output_size: int
    output_row: int
    pitch: int
    row_pitch: int
    word_pitch: int
    record: int
    strip_rows: int
    starts: tuple[int, ...]
    strip_outputs: int
    columns: int
    step: int
    output_columns: int
    top: str
    side: str
    zero: int


def _functions(
    g: Geometry, p: Patches, scaling: HeliumScaling
) -> tuple[tuple[StripLanes, ...], tuple[InnerFunction, ...]]:
    """Return the functions for strips of each number of channels: their places, and they."""
    sizes = sorted({min(LANES, g.channels - c) for c in range(0, g.channels, LANES)})[::-1]
    widths = (p, p.last) if g.output[1] % p.across else (p,)
    places, found = list[StripLanes](), list[InnerFunction]()
    for lanes in sizes:
        first = len(found)
        places.append(StripLanes(lanes, first, tuple(range(first + 1, first + 1 + len(widths)))))
        found.append(interleave_function(lanes))
        found += [strip_function(q, scaling, lanes, first=q is not p) for q in widths]
    return tuple(places), tuple(found)


def _parameters(
    node: Node[DepthwiseConv2D],
    g: Geometry,
    p: Patches,
    scaling: HeliumScaling,
    parts: tuple[StripLanes, ...],
) -> HeliumDepthwiseParameters:
    output_row = g.output[1] * g.channels
    return HeliumDepthwiseParameters(
        title=f"{node.op.name}: {node.input(0).type} -> {node.output.type}",
        summary=_summary(p),
        line=p.line,
        parts=parts,
        fields=scaling.fields,
        images=g.images,
        size=g.size,
        channels=g.channels,
        input_size=g.size[0] * g.size[1] * g.depth,
        output_size=g.output[0] * output_row,
        output_row=output_row,
        pitch=g.channels if p.line else output_row,
        row_pitch=g.size[1] * g.channels,
        word_pitch=4 * g.channels,
        record=p.record,
        strip_rows=p.rows,
        starts=p.starts,
        strip_outputs=p.strip_outputs,
        columns=p.across,
        step=p.across * g.channels,
        output_columns=g.output[1],
        top=_origin("y", g.stride[0], g.padding[0][0]),
        side=_origin("x", g.stride[1], g.padding[1][0]),
        zero=node.input(0).type.zero_point,
    )


def _summary(p: Patches) -> str:
    shape = "16 neighbors" if p.line else "4x4 inputs"
    return f"patches of {shape} with {p.outputs} output{'s' if p.outputs > 1 else ''} each"


class DepthwiseKernel(Kernel[DepthwiseConv2D]):
    """Dot products of patches, each of one channel."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        refusal = refuse(node, request.target, channel_axis=3)
        if refusal is not None:
            return refusal
        op, name = node.op, node.op.name
        if node.input(0).type.shape[3] != node.output.type.shape[3]:
            return Refusal(f"{name} has a Helium kernel only for a depth multiplier of 1.")
        if op.dilation != (1, 1):
            return Refusal(f"{name} has no Helium kernel for dilation.")
        scaling = scaling_of(node, 3)
        if isinstance(scaling, Refusal):
            return scaling
        g = Geometry.of(node)
        p = patches_of(g)
        if p is None:
            height, width = node.input(1).type.shape[1:3]
            return Refusal(
                f"{name} has no Helium kernel for a {height}x{width} window with this stride."
            )
        return _call(node, g, p, scaling)


def _call(
    node: Node[DepthwiseConv2D], g: Geometry, p: Patches, scaling: HeliumScaling
) -> KernelCall:
    x = node.input(0).type
    weights = np.moveaxis(node.input(1).array[0], 2, 0).reshape(g.channels, *g.kernel)
    places, functions = _functions(g, p, scaling)
    fill = () if p.line else (FILL,)
    strips = -(-g.output[1] // p.across) if not p.line else 1
    outputs = g.images * len(p.starts) * strips * g.channels * p.sums
    return KernelCall(
        template="backends/helium/depthwise.j2",
        stem="depthwise_{}x{}".format(*node.input(1).type.shape[1:3]),
        details=scaling.details,
        parameters=_parameters(node, g, p, scaling, places),
        operands=(
            Input(0, "input"),
            Packed("padding", np.full(LANES, x.zero_point, np.int8)),
            Packed("weights", _packed(p, weights)),
            Packed("channels", scaling.constants(groups(g.channels))),
            Scratch("strip", DType.INT8, p.rows * ROW),
            Scratch("sums", DType.INT32, LANES * p.sums),
            Output(0, "output"),
        ),
        summary=_summary(p),
        form="helium_patches",
        uses={"SMELT_ARRAY"},
        inner=(*functions, *fill),
        work={
            "patches": outputs // p.outputs,
            "outputs": outputs,
            "calls": g.images * len(p.starts) * strips * -(-g.channels // LANES),
            "rows": g.images * len(p.starts) * strips * -(-g.channels // LANES) * p.rows,
        },
    )


def _origin(output: str, stride: int, before: int) -> str:
    """Return a C expression: the first row or column under the window of an output."""
    return offset(output if stride == 1 else f"{output} * {stride}", -before)


def _packed(p: Patches, weights: Array) -> Array:
    """Return int32 `[o, record]`: each channel's patch of weights, with zeros before and after."""
    channels, height, width = weights.shape
    rows = np.zeros((channels, 4 * p.record), np.int8)
    patch = np.zeros((channels, PATCH), np.int8)
    if p.line:
        patch[:, :width] = weights[:, 0]
    else:
        patch.reshape(channels, 4, 4)[:, :height, :width] = weights
    rows[:, p.lead : p.lead + PATCH] = patch
    return rows.view(np.int32)


KERNELS = (DepthwiseKernel(),)

"""int8 depthwise convolutions on Helium, as dot products.

Sixteen channels of four neighbouring columns are interleaved (VST4) into a strip: a word of it
holds four inputs of one channel. A gather load brings four such words, a patch of 4 x 4 inputs,
into a register; its dot products with the window's weights, shifted once for each output, are all
the outputs whose windows lie within the patch: four for a window of 3 x 3 and stride 1. For an
image of one row a word holds four neighbours of that row, and a patch sixteen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.helium.assembly import AssemblyLines
from smelt.codegen.backends.helium.convolution import refuse, scaling_of
from smelt.codegen.backends.helium.convolution_plan import Geometry
from smelt.codegen.backends.helium.depthwise_assembly import interleave_assembly, strip_assembly
from smelt.codegen.backends.helium.depthwise_plan import LANES, PATCH, ROW, Patches, patches_of
from smelt.codegen.backends.helium.scaling import (
    GroupRun,
    HeliumScaling,
    ScaledDefinition,
    groups,
    runs,
)
from smelt.codegen.lower.kernel import (
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
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node
from smelt.ops.core.convolution import DepthwiseConv2D, Pair


@dataclass(frozen=True)
class StripFunction:
    """All outputs of a strip of channels.

    Attributes:
        suffix: of its name.
        first: whether it makes the first of two columns only.
        body: its assembly.
        targets: names of its outputs, and where the sums of each are.
        starts: bytes before the weights for each output of a patch.
        record: words of a channel's weights.
        patches: of a strip.
        outputs: of a patch.
        advance: rows from one patch to the next.
        sums: of a channel.
    """

    suffix: str
    first: bool
    body: AssemblyLines
    targets: tuple[tuple[int, str], ...]
    starts: tuple[int, ...]
    record: int
    patches: int
    outputs: int
    advance: int
    sums: int

    @staticmethod
    def of(
        g: Geometry, p: Patches, scaling: HeliumScaling, lanes: int, *, first: bool
    ) -> StripFunction:
        """The function for so many channels."""
        return StripFunction(
            suffix=f"{lanes}_last" if first else str(lanes),
            first=first,
            body=strip_assembly(g, p, scaling, groups(lanes)).body,
            targets=tuple((i, f"out{i}") for i in range(p.across)),
            starts=tuple(p.lead - shift for shift in p.shifts),
            record=p.record,
            patches=p.patches,
            outputs=p.outputs,
            advance=p.advance,
            sums=p.sums,
        )


@dataclass(frozen=True)
class StripLanes:
    """Channels that are computed at a time.

    Attributes:
        lanes: how many.
        interleave: assembly that fills a strip.
        runs: how outputs are stored.
        strips: the functions for their outputs.
    """

    lanes: int
    interleave: AssemblyLines
    runs: tuple[GroupRun, ...]
    strips: tuple[StripFunction, ...]


@dataclass(frozen=True)
class HeliumDepthwiseParameters(Parameters):
    """Of `backends/helium/depthwise.j2`.

    Attributes:
        title, summary: of the comment.
        line: whether the image is one row.
        parts: sixteen channels at a time, and those that are left.
        scaled: how sums become outputs.
        constants, fields: words of constants of four channels, and of one.
        images: how many there are.
        size: height and width of one.
        channels: of a pixel.
        input_size, output_size: elements of an image.
        output_row: of a row of outputs; `pitch` is from one stored output to the next.
        row_pitch, word_pitch: inputs from one row, and from four pixels, to the next.
        record: words of a channel's weights.
        strip_rows: of a strip.
        starts, strip_outputs: the first output of each strip, and outputs down a strip.
        columns: across it.
        step: outputs from a strip to that beside it.
        output_columns: of the image.
        top, side: C of the first row and column under a window.
        zero: what images are padded with.
    """

    title: str
    summary: str
    line: bool
    parts: tuple[StripLanes, ...]
    scaled: ScaledDefinition
    constants: int
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


def _parameters(
    node: Node[DepthwiseConv2D], g: Geometry, p: Patches, scaling: HeliumScaling
) -> HeliumDepthwiseParameters:
    sizes = sorted({min(LANES, g.channels - c) for c in range(0, g.channels, LANES)})[::-1]
    widths = (p, p.last) if g.output[1] % p.across else (p,)
    output_row = g.output[1] * g.channels
    return HeliumDepthwiseParameters(
        title=f"{node.op.name}: {node.input(0).type} -> {node.output.type}",
        summary=_summary(p),
        line=p.line,
        parts=tuple(
            StripLanes(
                lanes,
                interleave_assembly(lanes).body,
                runs(groups(lanes)),
                tuple(StripFunction.of(g, q, scaling, lanes, first=q is not p) for q in widths),
            )
            for lanes in sizes
        ),
        scaled=scaling.definition,
        constants=4 * scaling.fields,
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
    shape = "16 neighbours" if p.line else "4x4 inputs"
    return f"patches of {shape}, {p.outputs} outputs each"


class DepthwiseKernel(Kernel[DepthwiseConv2D]):
    """Dot products of patches of one channel each."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        refusal = refuse(node, request.target, channel_axis=3)
        if refusal is not None:
            return refusal
        op, name = node.op, node.op.name
        if node.input(0).type.shape[3] != node.output.type.shape[3]:
            return Refusal(f"{name} has a Helium kernel for one output of each channel only.")
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
                f"{name} has no Helium kernel for a window of {height}x{width} at this stride."
            )
        return _call(node, g, p, scaling)


def _call(
    node: Node[DepthwiseConv2D], g: Geometry, p: Patches, scaling: HeliumScaling
) -> KernelCall:
    x = node.input(0).type
    weights = np.moveaxis(node.input(1).array[0], 2, 0).reshape(g.channels, *g.kernel)
    parts = groups(g.channels)
    strips = -(-g.output[1] // p.across) if not p.line else 1
    outputs = g.images * len(p.starts) * strips * g.channels * p.sums
    return KernelCall(
        template="backends/helium/depthwise.j2",
        stem="depthwise_{}x{}".format(*node.input(1).type.shape[1:3]),
        parameters=_parameters(node, g, p, scaling),
        operands=(
            Input(0, "input"),
            Packed("padding", np.full(LANES, x.zero_point, np.int8)),
            Packed("weights", _packed(p, weights)),
            Packed("channels", scaling.constants(parts)),
            Scratch("strip", DType.INT8, p.rows * ROW),
            Scratch("sums", DType.INT32, LANES * p.sums),
            Output(0, "output"),
        ),
        summary=_summary(p),
        form="helium_patches",
        uses=scaling.uses | {"SMELT_ARRAY", "SMELT_NAKED"} | when(not p.line, "string.h"),
        work={
            "patches": outputs // p.outputs,
            "outputs": outputs,
            "calls": g.images * len(p.starts) * strips * -(-g.channels // LANES),
            "rows": g.images * len(p.starts) * strips * -(-g.channels // LANES) * p.rows,
        },
    )


def _origin(output: str, stride: int, before: int) -> str:
    """The C expression of the first row or column under the window of an output."""
    return offset(output if stride == 1 else f"{output} * {stride}", -before)


def _packed(p: Patches, weights: Array) -> Array:
    """int32 `[o, record]`: of each channel its patch of weights behind zeros."""
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

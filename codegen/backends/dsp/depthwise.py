"""int8 depthwise convolutions on cores with the DSP extension.

Four channels at a time are widened into working memory, two rows of inputs a word; then one
assembly function makes all outputs of a channel (see `depthwise_assembly`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.dsp.convolution import DspProducts, products
from smelt.codegen.backends.dsp.depthwise_assembly import SCRATCH_WORDS, ChannelFunctionParameters
from smelt.codegen.backends.dsp.depthwise_plan import DepthwisePlan, plans
from smelt.codegen.lower.image_loops import Frame
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
from smelt.ir import DType, Node
from smelt.ops.core.convolution import DepthwiseConv2D


@dataclass(frozen=True)
class DspDepthwiseParameters(Parameters):
    """Of `backends/dsp/depthwise.j2`.

    Attributes:
        title, note: of the comment.
        frame: images.
        height: of an image.
        channels: of a pixel; the last four begin at `last_channels`.
        row, pair: bytes of a row of inputs, and of two.
        inside: columns of inputs that lie in the image, `written` words apart from first to last.
        plane, stored: words of a channel's inputs, and of a column of them.
        first: where the image begins in a channel's inputs.
        outside: stretches of a channel's inputs that lie beside the image.
        padding: what they hold.
        bottom: the last row of inputs and where it begins, where pairs of rows lie partly outside.
        strips, band: of outputs, and how many of them are made at a time.
        top: C of the first row of inputs of a strip.
        width: columns of outputs, where a channel is made column by column.
        full: strips that have all their rows, where it is made strip by strip.
        strip: outputs of a strip, all channels.
        guarded: whether the last band may have but a row without a partner.
        advance: words of a column from one strip to the next.
        channel_words: of weights and constants.
        widen: instructions that widen pairs of rows.
        channel: the function for a channel's outputs.
        last: that for a last row without a partner.
    """

    title: str
    note: str
    frame: Frame
    height: int
    channels: int
    last_channels: int
    row: int
    pair: int
    inside: int
    written: int
    plane: int
    stored: int
    first: int
    outside: tuple[tuple[int, int], ...]
    padding: int
    bottom: tuple[int, int] | None
    strips: int
    band: int
    top: str
    width: int | None
    full: int | None
    strip: int
    guarded: bool
    advance: int
    channel_words: int
    widen: tuple[str, ...]
    channel: ChannelFunctionParameters
    last: ChannelFunctionParameters | None


def _parameters(
    node: Node[DepthwiseConv2D], found: DspProducts, plan: DepthwisePlan
) -> DspDepthwiseParameters:
    w, walk, x = found.window, plan.walk, node.input(0).type
    height, top = w.size[0], w.padding[0][0]
    return DspDepthwiseParameters(
        title=f"{node.op.name}: {x} -> {node.output.type}, {w.text}",
        note=found.scaling.note,
        frame=Frame.of(node),
        height=height,
        channels=w.outputs,
        last_channels=w.outputs - 4,
        row=plan.row,
        pair=2 * plan.row,
        inside=plan.inside,
        written=plan.inside * walk.stored,
        plane=plan.plane,
        stored=walk.stored,
        first=plan.first,
        outside=plan.outside,
        padding=plan.padding,
        bottom=(height - 1, (height - 1) * plan.row) if plan.edges else None,
        strips=walk.strips,
        band=plan.band,
        top=f"strip * {plan.rows}" + (f" - {top}" if top else ""),
        width=plan.width if walk.down else None,
        full=None if walk.down else plan.full,
        strip=plan.strip_bytes,
        guarded=plan.guarded,
        advance=walk.advance,
        channel_words=walk.channel_words,
        widen=tuple(plan.widen),
        channel=walk.function,
        last=None if plan.last is None else plan.last.function,
    )


class DspDepthwise(Kernel[DepthwiseConv2D]):
    """Depthwise convolutions of at least four channels, each with one output."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        name = node.op.name
        found = products(node)
        if isinstance(found, Refusal):
            return found
        w, inputs = found.window, node.input(0).type.shape[3]
        if inputs != w.outputs:
            return Refusal(f"{name} is served for one output a channel.")
        if inputs < 4:
            return Refusal(f"{name} is served for four channels or more.")
        if w.dilation != (1, 1):
            return Refusal(f"{name} is not served for windows with gaps.")
        height = node.output.type.shape[1]
        if w.stride[0] % 2 and w.stride[0] > 1 and height > 1:
            return Refusal(f"{name} is served for vertical strides of 1 and of even numbers.")
        possible = plans(found, node, request.optimize)
        chosen = min(possible, key=lambda plan: plan.cost, default=None)
        if chosen is None:
            return Refusal(
                f"{name} has rows too long for {4 * SCRATCH_WORDS} bytes of working memory."
            )
        walk = chosen.walk
        place = Frame.of(node)
        order = "columns" if walk.down else "rows"
        return KernelCall(
            template="backends/dsp/depthwise.j2",
            stem=f"depthwise_{w.kernel[0]}x{w.kernel[1]}",
            parameters=_parameters(node, found, chosen),
            operands=(
                Input(0, "input"),
                Packed("weights", walk.packed(found.weights)),
                Scratch("pairs", DType.INT32, 4 * chosen.plane),
                Output(0, "output"),
            ),
            summary=f"pairs of rows, {walk.most} outputs of {order} at a time",
            form="dsp_depthwise" + ("_signed" if found.scaling.signed else ""),
            work={
                "estimate": int(np.int64(chosen.cost) * w.outputs * place.batch),
                "calls": 1,
            },
            uses=frozenset({"SMELT_NAKED"}),
        )


KERNELS = (DspDepthwise(),)

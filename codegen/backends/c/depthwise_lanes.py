"""int8 depthwise convolutions in blocks of four channels of one pixel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.lower.image_loops import Frame, ImageLoop
from smelt.codegen.lower.input_pixel import input_pixel
from smelt.codegen.lower.kernel import (
    BodyCost,
    Input,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Request,
)
from smelt.codegen.lower.layer_sizes import LayerSizes
from smelt.codegen.lower.loop_heads import loop_head
from smelt.codegen.lower.nested_loops import total
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.window import Window
from smelt.ir import Array, Node

_LANES = 4
"""Channels of a block."""

_UNROLLED = 16
"""Up to this many taps are unrolled without a loop."""


@dataclass(frozen=True, kw_only=True)
class LaneChannels:
    """Channels of a pixel that are computed together.

    Attributes:
        loop: C line that opens the loop over blocks; empty for a single block.
        first: first channel.
        count: channels of a block.
        begin: C lines that declare the sums.
        taps: for each tap, C lines that add its products; with a loop over taps, one such entry.
        weights: weights of a block, if taps are unrolled; else 0.
        stores: C lines that store the outputs.
    """

    loop: str
    first: int
    count: int
    begin: tuple[str, ...]
    taps: tuple[tuple[str, ...], ...]
    weights: int
    stores: tuple[str, ...]

    @staticmethod
    def of(
        count: int, window: Window, finish: OutputStage, loop: str, first: int = 0
    ) -> LaneChannels:
        """Return blocks of `count` channels, or a last block of them from channel `first`."""
        looped = window.taps > _UNROLLED
        channels = ["c", *(f"c + {j}" for j in range(1, count))]
        return LaneChannels(
            loop=loop,
            first=first,
            count=count,
            begin=tuple(f"int32_t sum{j} = 0;" for j in range(count)),
            taps=tuple(
                tuple(f"sum{j} += in[{j}] * weights[{t * count + j}];" for j in range(count))
                for t in range(1 if looped else window.taps)
            ),
            weights=0 if looped else window.taps * count,
            stores=finish.stores_in_order(
                [(at, [(f"out[{at}]", f"sum{j}")]) for j, at in enumerate(channels)]
            ),
        )


@dataclass(frozen=True)
class DepthwiseLanesParameters(Parameters):
    """Variables of `depthwise_lanes.j2`; texts are C.

    Attributes:
        title, notes: text of the function's comment.
        images: the loop over images.
        each_row, each_column: open the loops over output pixels; empty for a single row or column.
        padded: whether an input pixel can lie outside of the image.
        c_type: type of an element.
        taps: taps of a window.
        down, across: open the loops over a window's rows and columns; empty for a single one.
        looped: whether there is a loop over taps.
        lanes: channels of a block.
        channels: the channels of whole blocks, then those of an incomplete last block.
        constants: whether channels have constants in the array `channels`.
        tap: row and column of a tap.
        output_pixel: address of output pixel (y, x).
    """

    title: str
    notes: tuple[str, ...]
    images: ImageLoop
    each_row: str
    each_column: str
    padded: bool
    c_type: str
    taps: int
    down: str
    across: str
    looped: bool
    lanes: int
    channels: tuple[LaneChannels, ...]
    constants: bool
    tap: str
    output_pixel: str


def depthwise_lanes(
    node: Node,
    window: Window,
    frame: Frame,
    finish: OutputStage,
    weights: Array,
    request: Request,
    *,
    stem: str,
) -> KernelCall:
    """Return the call that computes a depthwise convolution with as many outputs as inputs.

    Args:
        node: the convolution.
        window: its geometry.
        frame: the output pixels to compute.
        finish: output stage; its bias includes the input's zero point.
        weights: `[o, kh, kw]`, as stored.
        request: `--optimize` preference.
        stem: stem of the function's name.
    """
    x, channels = node.input(0).type, window.outputs
    lanes, singly = min(_LANES, channels), request.optimize == "size"
    flat, whole = weights.reshape(channels, -1), channels // lanes * lanes
    first = flat[:whole].reshape(-1, lanes, window.taps).transpose(0, 2, 1)
    last = flat[whole:] if singly else flat[whole:].T
    padding = np.full(channels, x.zero_point, x.dtype.numpy)
    call = KernelCall(
        template="backends/c/depthwise_lanes.j2",
        stem=stem,
        details=finish.details,
        parameters=_parameters(node, window, frame, finish, lanes, singly=singly),
        operands=(
            Input(0, "input"),
            *((Packed("padding", padding),) if window.padded else ()),
            Packed("weights", np.concatenate([first.ravel(), last.ravel()])),
            *finish.operands,
            Output(0, "output"),
        ),
        uses=finish.uses | {"SMELT_ARRAY"},
        inner=(input_pixel(window.size, frame.source, padded=window.padded, dtype=x.dtype),),
        summary=f"1 pixel x {lanes} channels",
    )
    if request.optimize != "size":
        return call
    sizes = LayerSizes.of(window, frame, finish)
    parameters = replace(
        _parameters(node, sizes.window, sizes.frame, sizes.finish, lanes, singly=True),
        title=sizes.title(node),
    )
    sums = sum(block.count * len(block.taps) for block in parameters.channels)
    cost = BodyCost(5 * node.macs, 200 + 22 * sums)
    family = replace(parameters, channels=parameters.channels[:1])
    inner = (sizes.input_pixel(x.dtype, padded=window.padded),)
    return replace(call, shared=sizes.shared(call, parameters, cost, family, inner))


def _parameters(
    node: Node, window: Window, frame: Frame, finish: OutputStage, lanes: int, *, singly: bool
) -> DepthwiseLanesParameters:
    """Return the template's variables.

    Args:
        node: the convolution.
        window: its geometry.
        frame: the output pixels to compute.
        finish: output stage.
        lanes: channels of a block.
        singly: whether channels after the whole blocks are computed one by one.
    """
    image, channels = node.input(0).type, window.outputs
    whole = channels // lanes * lanes
    blocks = (LaneChannels.of(lanes, window, finish, loop_head("c", whole, step=lanes)),)
    if whole < channels:
        count = 1 if singly else channels - whole
        rest = loop_head("c", channels, whole, count)
        blocks = (*blocks, LaneChannels.of(count, window, finish, rest, whole))
    each_row, each_column = loop_head("y", frame.height), loop_head("x", frame.width)
    y, x = "y" if each_row else "0", "x" if each_column else "0"
    return DepthwiseLanesParameters(
        title=f"{node.op.name}: {image} -> {node.output.type}, {window.text}",
        notes=finish.notes,
        images=frame.images,
        each_row=each_row,
        each_column=each_column,
        padded=window.padded,
        c_type=image.dtype.c_name,
        taps=window.taps,
        down=loop_head("ky", window.kernel[0]),
        across=loop_head("kx", window.kernel[1]),
        looped=window.taps > _UNROLLED,
        lanes=lanes,
        channels=blocks,
        constants=finish.fields > 0,
        tap=f"{window.tap(0, y, 'ky')}, {window.tap(1, x, 'kx')}",
        output_pixel=total(("output", frame.target.offset(y, x))),
    )

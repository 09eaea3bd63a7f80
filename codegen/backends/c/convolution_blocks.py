"""int8 convolutions in blocks of pixels times output channels, whose sums stay in registers.

Weights are packed in the order in which the innermost loop reads them. Where the processor
multiplies 32 by 32 bits into 64, int8 convolutions get two multiply-accumulates out of one
instruction: the input of one pixel plus 2^23 times that of another, times a weight, is the product
for the one plus 2^23 times the product for the other; and so are sums of such products, as long as
the lower one stays below 2^22.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.backends.c.block_sums import BlockTiling, ChannelSums, InputForm
from smelt.codegen.lower.image_loops import Frame, ImageLoop
from smelt.codegen.lower.kernel import (
    Input,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
    Request,
    Scratch,
    missed_for_ram,
)
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.requantization import sum_range
from smelt.codegen.lower.window import Window
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node

PATCH_BYTES = 512
"""What the packed inputs of a block may take."""

HALVES = ("low_sum", "high_sum")

LIMIT = 2**22
"""What the sum of the lower pixel of a pair must stay below."""


@dataclass(frozen=True)
class BlocksParameters(Parameters):
    """Variables of `convolution_blocks.j2`; texts are C.

    Attributes:
        title, notes: for the function's comment.
        images: the loop over images.
        width: of the output.
        outside: condition that an input pixel lies outside of the image; empty where none can.
        c_type: of an element.
        pixels: in a block.
        all_pixels: of the output.
        gathers: whether the inputs of a block are brought together first, two in a word.
        taps: of a window that is not gathered; else 0.
        pointers: to the taps of all pixels of a block that is not gathered; else 0.
        run_end: how far the loop over inputs goes; 0 where there is none.
        down, across: open the loops over a window's rows and columns; empty where there is one.
        here, beside: position of a tap of pixel `i`, and in a gathered window of the next pixel.
        gathered: lines that bring inputs of two pixels together.
        depth: inputs of a pixel, and `step` of them that `gathered` takes; 0 where it takes all.
        channels: the output channels in whole blocks, and those of the last one.
        top, side: the first row and column under a window.
        input_pixel, output_pixel: where pixel (y, x) starts.
    """

    title: str
    notes: tuple[str, ...]
    images: ImageLoop
    width: int
    outside: str
    c_type: str
    pixels: int
    all_pixels: int
    gathers: bool
    taps: int
    pointers: int
    run_end: int
    down: str
    across: str
    here: str
    beside: str
    gathered: tuple[str, ...]
    depth: int
    step: int
    channels: tuple[ChannelSums, ...]
    top: str
    side: str
    input_pixel: str
    output_pixel: str


def choose(
    window: Window, dtype: DType, weights: Array, pixels: int, request: Request
) -> BlockTiling:
    """How to cut a convolution of one group into blocks.

    Args:
        window: its geometry.
        dtype: of input and output.
        weights: `[o, k]`.
        pixels: how many output pixels there are.
        request: target and preference.
    """
    products = window.taps * window.depth
    form: InputForm = "single"
    if dtype is DType.INT8 and "long_multiply" in request.target.features and fits_pairs(weights):
        form = "packed" if products * 4 <= PATCH_BYTES else "paired"
        if request.optimize == "ram":
            form = "paired"
    count, outputs, unrolled = 2, 4, 8
    if form == "packed" and products * 8 <= PATCH_BYTES and pixels > 2:
        count, outputs = 4, 2
    if form == "single":
        count, outputs, unrolled = 1, 4, 2
    length = products if form == "packed" else window.depth
    return BlockTiling(
        form=form,
        pixels=count,
        outputs=min(outputs, window.outputs),
        channels=window.outputs,
        length=length,
        unrolled=1 if request.optimize == "size" else max(min(length // 2, unrolled), 1),
        step=window.depth if window.depth <= 4 else 4 if window.depth % 4 == 0 else 1,
    )


def fits_pairs(weights: Array) -> bool:
    """Whether no sum of centred weights `[o, ...]` times int8 inputs leaves its 23 bits."""
    low, high = sum_range(np.zeros(len(weights), np.int64), weights)
    return bool((low > -LIMIT).all() and (high < LIMIT).all())


def blocks(
    node: Node,
    window: Window,
    frame: Frame,
    finish: OutputStage,
    weights: Array,
    request: Request,
    *,
    stem: str,
) -> KernelCall:
    """The call that computes a convolution of one group.

    Args:
        node: what is computed.
        window: its geometry.
        frame: the output pixels to compute.
        finish: what follows each sum; its bias holds the input's zero point.
        weights: `[o, kh, kw, i]` or `[o, i]`, as stored.
        request: target and preference.
        stem: of the function's name.
    """
    x, y = node.input(0).type, node.output.type
    weights = weights.reshape(window.outputs, -1)
    pixels = y.size // window.outputs // frame.batch
    cut, best = choose(window, x.dtype, weights, pixels, request), None
    if request.optimize == "ram":
        best = choose(window, x.dtype, weights, pixels, replace(request, optimize="speed")).form
    operands: list[Operand] = [Input(0, "input")]
    if window.padded:
        zero = 0 if x.quant is None else x.zero_point
        operands.append(Packed("padding", np.full(window.depth, zero, x.dtype.numpy)))
    operands += [Packed("weights", _ordered(weights, cut.outputs)), *finish.operands]
    if cut.form == "packed":
        operands.append(Scratch("patch", DType.INT32, cut.length * cut.columns))
    return KernelCall(
        template="backends/c/convolution_blocks.j2",
        stem=stem,
        parameters=_parameters(node, window, frame, finish, cut),
        operands=(*operands, Output(0, "output")),
        uses=finish.uses | {"SMELT_ARRAY"} | when(cut.wide, *HALVES),
        summary=f"{cut.form} inputs, {cut.pixels} pixels x {cut.outputs} channels",
        missed="" if best in (None, cut.form) else missed_for_ram("Packing the inputs of windows"),
    )


def _parameters(
    node: Node, window: Window, frame: Frame, finish: OutputStage, cut: BlockTiling
) -> BlocksParameters:
    """The template's variables."""
    x, y = node.input(0).type, node.output.type
    gathers = cut.form == "packed"
    step = cut.step if gathers and cut.step < window.depth else 0
    return BlocksParameters(
        title=f"{node.op.name}: {x} -> {y}, {window.text}",
        notes=(*finish.notes, *cut.text),
        images=frame.images,
        width=frame.width,
        outside=window.outside if window.padded else "",
        c_type=x.dtype.c_name,
        pixels=cut.pixels,
        all_pixels=y.size // window.outputs // frame.batch,
        gathers=gathers,
        taps=0 if gathers else window.taps,
        pointers=0 if gathers else window.taps * cut.pixels,
        run_end=cut.looped * (cut.columns if gathers else 1),
        down=window.loop(0, "dy") if window.kernel[0] > 1 else "",
        across=window.loop(1, "dx") if window.kernel[1] > 1 else "",
        here=_position(window, "i"),
        beside=_position(window, "i + 1") if gathers else "",
        gathered=_gathered(cut) if gathers else (),
        depth=window.depth if step else 0,
        step=step,
        channels=tuple(_channels(window, finish, cut)),
        top=window.origin(0, "y"),
        side=window.origin(1, "x"),
        input_pixel=frame.source.offset("y", "x"),
        output_pixel=frame.target.offset("y", "x"),
    )


def _channels(window: Window, finish: OutputStage, cut: BlockTiling) -> Iterator[ChannelSums]:
    """The output channels in whole blocks, and those of the last one."""
    products, rest = window.taps * window.depth, window.outputs - cut.whole
    yield ChannelSums.of(cut, cut.outputs, finish, products, whole=True)
    if rest:
        yield ChannelSums.of(cut, rest, finish, products, whole=False)


def _position(window: Window, pixel: str) -> str:
    """The C expressions of the row and column of a tap of a block's pixel."""
    row = f"top[{pixel}]" + " + dy" * (window.kernel[0] > 1)
    return f"{row}, side[{pixel}]" + " + dx" * (window.kernel[1] > 1)


def _gathered(cut: BlockTiling) -> tuple[str, ...]:
    """C lines that bring `cut.step` inputs of two pixels together."""
    columns = cut.columns
    return (
        *(f"word[{k * columns}] = in0[{k}] + in1[{k}] * 8388608;" for k in range(cut.step)),
        f"word += {cut.step * columns};",
    )


def _ordered(weights: Array, outputs: int) -> Array:
    """`[o, k]` weights in the order in which blocks of `outputs` channels read them."""
    whole = len(weights) - len(weights) % outputs
    first = weights[:whole].reshape(-1, outputs, weights.shape[1]).transpose(0, 2, 1)
    return np.concatenate([first.ravel(), weights[whole:].T.ravel()])

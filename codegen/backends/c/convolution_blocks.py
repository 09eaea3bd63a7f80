"""int8 convolutions in blocks of pixels times output channels, with the sums in registers.

Weights are packed in the order in which the innermost loop reads them. If the processor multiplies
32 by 32 bits into 64, one instruction computes two multiply-accumulates:

    (input0 + 2^23 * input1) * weight = input0 * weight + 2^23 * (input1 * weight)

The sum of such products is sum0 + 2^23 * sum1. Both sums can be separated again as long as sum0
stays between -2^22 and 2^22.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.backends.c.block_sums import BlockTiling, ChannelSums, InputForm
from smelt.codegen.lower.image_loops import Frame, ImageLoop
from smelt.codegen.lower.input_pixel import input_pixel
from smelt.codegen.lower.kernel import (
    BodyCost,
    InnerFunction,
    Input,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
    Request,
    Scratch,
    SharedBody,
    missed_for_ram,
)
from smelt.codegen.lower.layer_sizes import LayerSizes
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.requantization import sum_range
from smelt.codegen.lower.window import Window
from smelt.codegen.text.expressions import advance, offset
from smelt.codegen.text.helpers import when
from smelt.codegen.text.layer_number import LayerNumber
from smelt.ir import Array, DType, Node

PATCH_BYTES = 512
"""Upper limit of the scratch for the packed inputs of a block, in bytes."""

HALVES = ("low_sum_23", "high_sum_23")
"""The C helpers that return the two sums of a 64-bit accumulator."""

LIMIT = 2**22
"""Exclusive bound of the magnitude of sum0, the lower sum of an accumulator."""


@dataclass(frozen=True)
class BlockSumsParameters(Parameters):
    """Variables of `block_sums.j2`; texts are C.

    Attributes:
        c_type: type of an input and a weight.
        pixels: pixels of a block.
        count: channels of a block.
        products: products of a sum.
        takes_length: whether the number of inputs is an argument, `length`.
        gathers: whether the inputs are packed, two in a word.
        taps: taps of a window; 0 if it is gathered.
        depth: products of a tap; 0 if the window is gathered.
        run_end: elements or words by which the loop over inputs advances; 0 without a loop.
        accumulators: lines that define the accumulators.
        iteration: lines of an iteration of the loop over inputs.
        last: lines for the inputs after that loop.
        results: lines that store the sums.
    """

    c_type: str
    pixels: int
    count: int
    products: int
    takes_length: bool
    gathers: bool
    taps: int
    depth: int
    run_end: int
    accumulators: tuple[str, ...]
    iteration: tuple[str, ...]
    last: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class BlocksParameters(Parameters):
    """Variables of `convolution_blocks.j2`; texts are C.

    Attributes:
        title, notes: text of the function's comment.
        images: the loop over images.
        width: width of the output.
        padded: whether an input pixel can lie outside of the image.
        c_type: type of an input and a weight.
        pixels: pixels of a block.
        all_pixels: pixels of the output.
        gathers: whether the inputs of a block are packed into `patch` first, two in a word.
        several: whether a loop packs the inputs, or finds the taps, of a block's pixels.
        pointers: pointers to the taps of all pixels of a block; 0 if it is gathered.
        down, across: open the loops over a window's rows and columns; empty for a single one.
        tap_position: row and column of a tap of pixel `i`, or 0 without a loop.
        next_position: row and column of the same tap of the next pixel; empty unless gathered.
        gathered: lines that pack inputs of two pixels into words.
        depth: inputs of a pixel, if a loop packs them; else 0.
        step: inputs that `gathered` packs in such a loop; 0 without a loop.
        length: number of inputs, if it is an argument of the functions for sums; else empty.
        channels: the output channels of whole blocks, then those of an incomplete last block.
        top, side: the first row and column under a window.
        output_pixel: offset of output pixel (y, x).
    """

    title: str
    notes: tuple[str, ...]
    images: ImageLoop
    width: int
    padded: bool
    c_type: str
    pixels: int
    all_pixels: int
    gathers: bool
    several: bool
    pointers: int
    down: str
    across: str
    tap_position: str
    next_position: str
    gathered: tuple[str, ...]
    depth: int
    step: int
    length: str
    channels: tuple[ChannelSums, ...]
    top: str
    side: str
    output_pixel: str


def choose(
    window: Window, dtype: DType, weights: Array, pixels: int, request: Request
) -> BlockTiling:
    """Return how to cut a convolution without groups into blocks.

    Args:
        window: geometry of the convolution.
        dtype: element type of the input.
        weights: `[o, k]`.
        pixels: number of output pixels.
        request: target and `--optimize` preference.
    """
    products, small = window.taps * window.depth, request.optimize == "size"
    form: InputForm = "single"
    if dtype is DType.INT8 and "long_multiply" in request.target.features and fits_pairs(weights):
        packs = products * 4 <= PATCH_BYTES and request.allows(products * 4)
        form = "packed" if packs else "paired"
    count, outputs, unrolled = 2, 4, 8
    four = products * 8 <= PATCH_BYTES and request.allows(products * 8)
    if form == "packed" and four and pixels > 2:
        count, outputs = 4, 2
    if form == "single":
        count, outputs, unrolled = 1, 4, 2
    length = products if form == "packed" else window.depth
    return BlockTiling(
        form=form,
        pixels=count,
        outputs=min(outputs, window.outputs),
        channels=window.outputs,
        length=LayerNumber(length, "length") if small and length > 1 else length,
        unrolled=1 if small else max(min(length // 2, unrolled), 1),
        step=window.depth if window.depth <= 4 else 4 if window.depth % 4 == 0 and not small else 1,
        singly=small,
    )


def fits_pairs(weights: Array) -> bool:
    """Return whether all sums of weights `[o, ...]` times int8 inputs stay within ±`LIMIT`."""
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
    """Return the call that computes a convolution without groups.

    Args:
        node: the convolution.
        window: its geometry.
        frame: the output pixels to compute.
        finish: output stage; its bias includes the input's zero point.
        weights: `[o, kh, kw, i]` or `[o, i]`, as stored.
        request: target and `--optimize` preference.
        stem: stem of the function's name.
    """
    x, y = node.input(0).type, node.output.type
    weights = weights.reshape(window.outputs, -1)
    pixels = y.size // window.outputs // frame.batch
    tiling, fastest = choose(window, x.dtype, weights, pixels, request), None
    if request.limited:
        fastest = choose(window, x.dtype, weights, pixels, replace(request, limited=False)).form
    differs = fastest not in (None, tiling.form)
    operands: list[Operand] = [Input(0, "input")]
    if window.padded:
        zero = 0 if x.quant is None else x.zero_point
        operands.append(Packed("padding", np.full(window.depth, zero, x.dtype.numpy)))
    operands += [Packed("weights", _ordered(weights, tiling)), *finish.operands]
    if tiling.form == "packed":
        operands.append(Scratch("patch", DType.INT32, int(tiling.length) * tiling.columns))
    parameters = _parameters(node, window, frame, finish, tiling)
    call = KernelCall(
        template="backends/c/convolution_blocks.j2",
        stem=stem,
        details=finish.details,
        parameters=parameters,
        operands=(*operands, Output(0, "output")),
        uses=finish.uses | {"SMELT_ARRAY"},
        inner=(
            *_sums(node, parameters, window, tiling),
            input_pixel(window.size, frame.source, padded=window.padded, dtype=x.dtype),
        ),
        summary=f"{tiling.form} inputs, {tiling.pixels} pixels x {tiling.outputs} channels",
        missed=missed_for_ram("Packing the inputs of windows") if differs else "",
    )
    if request.optimize != "size":
        return call
    return replace(call, shared=_shared(call, node, tiling, LayerSizes.of(window, frame, finish)))


def _shared(own: KernelCall, node: Node, tiling: BlockTiling, sizes: LayerSizes) -> SharedBody:
    """Return the body that reads the layer's sizes; its bytes are those on Cortex-M0 and M3."""
    tiling = replace(tiling, channels=sizes.window.outputs)
    parameters = replace(
        _parameters(node, sizes.window, sizes.frame, sizes.finish, tiling), title=sizes.title(node)
    )
    outputs = sum(len(sums.results) for sums in parameters.channels)
    cost = BodyCost(3 * node.macs, 250 + 25 * outputs)
    own = replace(own, details={**own.details, "form": f"{tiling.pixels}x{tiling.outputs}"})
    family = replace(parameters, channels=parameters.channels[:1])
    pixel = sizes.input_pixel(node.input(0).type.dtype, padded=parameters.padded)
    return sizes.shared(own, parameters, cost, family, (*own.inner[:-1], pixel))


def _parameters(
    node: Node, window: Window, frame: Frame, finish: OutputStage, tiling: BlockTiling
) -> BlocksParameters:
    """Return the template's variables."""
    x, y = node.input(0).type, node.output.type
    gathers = tiling.form == "packed"
    length = window.depth * (window.taps if gathers else 1)
    step = tiling.step if gathers and tiling.step < window.depth else 0
    several = (tiling.columns if gathers else tiling.pixels) > 1
    first = "i" if several else "0"
    return BlocksParameters(
        title=f"{node.op.name}: {x} -> {y}, {window.text}",
        notes=(*finish.notes, *tiling.text),
        images=frame.images,
        width=frame.width,
        padded=window.padded,
        c_type=x.dtype.c_name,
        pixels=tiling.pixels,
        all_pixels=frame.pixels,
        gathers=gathers,
        several=several,
        pointers=0 if gathers else window.taps * tiling.pixels,
        down=window.loop(0, "dy") if window.kernel[0] > 1 else "",
        across=window.loop(1, "dx") if window.kernel[1] > 1 else "",
        tap_position=_position(window, first),
        next_position=_position(window, offset(first, 1)) if gathers else "",
        gathered=_gathered(tiling) if gathers else (),
        depth=window.depth if step else 0,
        step=step,
        length=str(length) if tiling.singly and tiling.looped else "",
        channels=tuple(_channels(window, finish, tiling)),
        top=window.origin(0, "y"),
        side=window.origin(1, "x"),
        output_pixel=frame.target.offset("y", "x"),
    )


def _sums(
    node: Node, blocks: BlocksParameters, window: Window, tiling: BlockTiling
) -> tuple[InnerFunction, ...]:
    """Return the functions that compute the sums of blocks."""
    dtype, taps = node.input(0).type.dtype, 1 if blocks.gathers else window.taps
    products = tiling.length * taps
    return tuple(
        InnerFunction(
            template="backends/c/block_sums.j2",
            stem=f"sums_{sums.count}x{blocks.pixels}" + f"_of_{products}" * (not blocks.length),
            details={"taps": f"taps{window.taps}", "form": tiling.form, "type": dtype.value},
            parameters=BlockSumsParameters(
                c_type=blocks.c_type,
                pixels=blocks.pixels,
                count=sums.count,
                products=products,
                takes_length=bool(blocks.length),
                gathers=blocks.gathers,
                taps=0 if blocks.gathers else taps,
                depth=0 if blocks.gathers else tiling.length,
                run_end=tiling.looped * (tiling.columns if blocks.gathers else 1),
                accumulators=sums.accumulators,
                iteration=sums.iteration,
                last=sums.last,
                results=sums.results,
            ),
            uses={"SMELT_NOINLINE"} | when(tiling.wide, *HALVES),
        )
        for sums in blocks.channels
    )


def _channels(window: Window, finish: OutputStage, tiling: BlockTiling) -> Iterator[ChannelSums]:
    """Yield the output channels of whole blocks, then those of an incomplete last block."""
    products = window.taps * window.depth
    yield ChannelSums.of(tiling, finish, products, whole=True)
    if tiling.whole < window.outputs:
        yield ChannelSums.of(tiling, finish, products, whole=False)


def _position(window: Window, pixel: str) -> str:
    """Return the C expressions of the row and column of a tap, for a pixel of the block."""
    row = f"top[{pixel}]" + " + dy" * (window.kernel[0] > 1)
    return f"{row}, side[{pixel}]" + " + dx" * (window.kernel[1] > 1)


def _gathered(tiling: BlockTiling) -> tuple[str, ...]:
    """Return C lines that pack `tiling.step` inputs of two pixels into words."""
    columns = tiling.columns
    return (
        *(f"word[{k * columns}] = in0[{k}] + in1[{k}] * 8388608;" for k in range(tiling.step)),
        f"{advance('word', tiling.step * columns)};",
    )


def _ordered(weights: Array, tiling: BlockTiling) -> Array:
    """Return `[o, k]` weights, flat, in the order of their use."""
    whole = tiling.whole
    first = weights[:whole].reshape(-1, tiling.outputs, weights.shape[1]).transpose(0, 2, 1)
    last = weights[whole:] if tiling.singly else weights[whole:].T
    return np.concatenate([first.ravel(), last.ravel()])

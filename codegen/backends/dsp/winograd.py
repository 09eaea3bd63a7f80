"""int8 3x3 convolutions of stride 1 by minimal filtering, on cores with the DSP extension.

Winograd's F(2x2, 3x3) computes 2x2 outputs from 4x4 inputs with 16 products per channel instead of
36. Transformed inputs need 11 bits. The transform of the weights has factors of 1/2, which are left
out: transformed weights are integers of 12 bits, and sums are four times as large, so all is exact.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.dsp.convolution import DspProducts, products
from smelt.codegen.backends.dsp.scaling import ScalingStruct
from smelt.codegen.backends.dsp.tile import PATCH_BYTES
from smelt.codegen.backends.dsp.winograd_assembly import TileOutputs
from smelt.codegen.backends.dsp.winograd_grid import Grid
from smelt.codegen.backends.dsp.winograd_inputs import ROW_ORDER, InputTransform, TransformStep
from smelt.codegen.lower.image_loops import Frame
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.window import Window
from smelt.codegen.text.helpers import when
from smelt.ir import DType, Node
from smelt.ops.core.convolution import Conv2D, Pair


@dataclass(frozen=True)
class DspWinogradParameters(Parameters):
    """Variables of `backends/dsp/winograd.j2`.

    A position is one of the 16 elements of a transformed tile.

    Attributes:
        title, note: texts of the function's comment.
        frame: the loop over images.
        tiles: tiles that are computed together, 1 or 2.
        size: height and width of the image.
        depth, outputs: input and output channels.
        padded: whether tiles may be partly outside of the image.
        inner: the last row and column at which the inputs of tiles in the image may start; None if
            no tile fits into the image.
        output_size: height and width of the output.
        last: the first row and column of the last tiles in the output.
        columns: output columns of the tiles that are computed together.
        origin: C expressions of a tile's first row and column of inputs.
        rows: C expressions of the addresses of the four rows of a tile's inputs.
        transform_start, transforms, transform_end: instructions that transform inputs.
        row_order: order of the positions of a column.
        words: words of a position for four input channels of all tiles.
        tile_step: inputs from one tile to the next.
        stride: words from a position of transformed inputs to the next.
        sums: sums of a position.
        registers: text of a comment: registers of the sums.
        start, inner_rows, outer_rows, channels, end: see `TileOutputs`.
        scaling: the requantization in plain C.
        pairs: pairs of input channels.
        pair_words: words of weights and constants of two output channels.
        pair_sums: words of weights of two output channels.
        constants: words of constants of an output channel.
        across, below: outputs from a tile to the next, and from a row to the next.
        factor: factor of four times a sum before its bias is added.
        input, weight: C expressions of the index of word `k` of a position.
        border: sizes for copying inputs of tiles that are partly outside of the image.
    """

    title: str
    note: str
    frame: Frame
    tiles: int
    size: Pair
    depth: int
    outputs: int
    padded: bool
    inner: Pair | None
    output_size: Pair
    last: Pair
    columns: int
    origin: tuple[str, str]
    rows: tuple[str, ...]
    transform_start: tuple[str, ...]
    transforms: tuple[TransformStep, ...]
    transform_end: tuple[str, ...]
    row_order: tuple[int, ...]
    words: int
    tile_step: int
    stride: int
    sums: int
    registers: str
    start: tuple[str, ...]
    inner_rows: tuple[str, ...]
    outer_rows: tuple[str, ...]
    channels: tuple[tuple[str, ...], ...]
    end: tuple[str, ...]
    scaling: ScalingStruct
    pairs: int
    pair_words: int
    pair_sums: int
    constants: int
    across: int
    below: int
    factor: int
    input: str
    weight: str
    border: TileBorder | None


@dataclass(frozen=True)
class TileBorder:
    """Sizes for copying inputs of tiles partly outside of the image, four channels at a time.

    Attributes:
        pixels: input pixels of the tiles that are computed together.
        columns: columns of these pixels.
        row: bytes from a row of the copy to the next.
        bytes: bytes of the copy.
        rows: C expressions of the addresses of the copy's rows.
        half: whether a position has one word for each two channels, not one for each.
    """

    pixels: int
    columns: int
    row: int
    bytes: int
    rows: tuple[str, ...]
    half: bool


def _parameters(node: Node[Conv2D], found: DspProducts, grid: Grid) -> DspWinogradParameters:
    w, inputs, tiles = grid.window, grid.inputs, grid.tiles
    assembly = TileOutputs(inputs, grid.scaling, w.outputs, grid.pair_words, grid.row_bytes)
    row = w.size[1] * w.depth
    border = TileBorder(
        pixels=4 * inputs.columns,
        columns=inputs.columns,
        row=grid.border_row,
        bytes=grid.border_bytes,
        rows=_rows("four", grid.border_row),
        half=tiles == 1,
    )
    return DspWinogradParameters(
        title=f"{node.op.name}: {node.input(0).type} -> {node.output.type}, {w.text}",
        note=found.scaling.note,
        frame=Frame.of(node),
        tiles=tiles,
        size=w.size,
        depth=w.depth,
        outputs=w.outputs,
        padded=w.padded,
        inner=(w.size[0] - 4, w.size[1] - inputs.columns) if grid.inner else None,
        output_size=grid.size,
        last=(grid.size[0] - 2, grid.size[1] - 2 * tiles),
        columns=2 * tiles,
        origin=(w.origin(0, "y"), w.origin(1, "x")),
        rows=_rows("in", row),
        transform_start=inputs.start,
        transforms=tuple(inputs.steps),
        transform_end=inputs.end,
        row_order=ROW_ORDER,
        words=2 * tiles,
        tile_step=2 * w.depth,
        stride=inputs.stride,
        sums=2 * tiles,
        registers=f"r0-r{2 * tiles - 1}",
        start=assembly.start,
        inner_rows=assembly.inner,
        outer_rows=assembly.outer,
        channels=(assembly.channel(0), assembly.channel(1)),
        end=assembly.end,
        scaling=found.scaling.struct,
        pairs=w.depth // 2,
        pair_words=grid.pair_words,
        pair_sums=16 * w.depth,
        constants=grid.row,
        across=2 * w.outputs,
        below=grid.row_bytes,
        factor=1 << (found.scaling.left - 2),
        input=grid.input("k", "tile"),
        weight=grid.weight("k", "channel"),
        border=border if w.padded else None,
    )


def _rows(name: str, step: int) -> tuple[str, ...]:
    """Return C expressions of the addresses of four rows."""
    return (name, *(f"{name} + {i * step}" for i in range(1, 4)))


class DspWinograd(Kernel[Conv2D]):
    """3x3 convolutions of stride 1, in tiles of 2x2 outputs."""

    op = Conv2D

    @override
    def offer(self, node: Node[Conv2D], request: Request) -> KernelCall | Refusal:
        name, y = node.op.name, node.output.type
        if node.op.groups > 1:
            return Refusal(f"{name} in assembly supports only one group.")
        w, size = Window.of(node), (y.shape[1], y.shape[2])
        if (w.kernel, w.stride, w.dilation) != ((3, 3), (1, 1), (1, 1)):
            return Refusal(
                f"{name} by minimal filtering supports only 3x3 taps, stride 1 and no dilation."
            )
        if w.depth % 4 or w.outputs % 2:
            return Refusal(
                f"{name} by minimal filtering supports only multiples of four input channels and "
                f"of two output channels, not {w.depth} and {w.outputs}."
            )
        tiles = _tiles(w, size)
        if tiles == 0 or 4 * w.outputs > 4096:
            return Refusal(
                f"{name} by minimal filtering has too few pixels, or too many channels for "
                f"{PATCH_BYTES} bytes of scratch."
            )
        found = products(node)
        if isinstance(found, Refusal):
            return found
        if found.scaling.left < 2:
            return Refusal(
                f"{name} by minimal filtering has sums so large that four times a sum could "
                f"exceed 32 bits."
            )
        return _call(node, found, Grid(w, found.scaling, size, InputTransform(tiles, w.depth)))


def _call(node: Node[Conv2D], found: DspProducts, grid: Grid) -> KernelCall:
    w, size, inputs = grid.window, grid.size, grid.inputs
    x = node.input(0).type
    weights = found.weights.reshape(w.outputs, 3, 3, w.depth)
    place = Frame.of(node)
    operands: list[Operand] = [Input(0, "input")]
    if w.padded:
        operands.append(Packed("padding", np.full(w.depth, x.zero_point, np.int8)))
    operands += [
        Packed("weights", grid.packed(weights)),
        Scratch("v", DType.INT32, 16 * inputs.stride),
    ]
    tiles = -(-size[0] // 2) * -(-size[1] // (2 * grid.tiles)) * grid.tiles * place.batch
    return KernelCall(
        template="backends/dsp/winograd.j2",
        stem="conv_3x3",
        details=found.scaling.details,
        parameters=_parameters(node, found, grid),
        operands=(*operands, Output(0, "output")),
        uses={"SMELT_ARRAY", "SMELT_DSP"} | when(w.padded, "string.h"),
        summary=f"minimal filtering, {grid.tiles} tiles of 2x2 pixels x 2 channels",
        form=f"dsp_winograd_{grid.tiles}" + ("_signed" if found.scaling.signed else ""),
        work={
            "products": tiles * 16 * w.depth * w.outputs,
            "outputs": tiles * 4 * w.outputs,
            "inputs": tiles * 4 * (inputs.columns // inputs.tiles) * w.depth,
            "groups": tiles // grid.tiles,
            "calls": 1,
        },
    )


def _tiles(window: Window, size: tuple[int, ...]) -> int:
    """Return how many tiles, up to two, fit side by side into scratch and the output."""
    for tiles in (2, 1):
        fits = size[0] >= 2 and size[1] >= 2 * tiles and 32 * window.depth * tiles <= PATCH_BYTES
        if fits and window.depth % (8 // tiles) == 0:
            return tiles
    return 0


KERNELS = (DspWinograd(),)

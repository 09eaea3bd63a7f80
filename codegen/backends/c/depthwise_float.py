"""Float depthwise convolutions in blocks of neighboring pixels of a row times a few channels.

The windows of neighboring pixels overlap: each input is loaded once for all pixels of the block
that use it, and each weight once for all pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from smelt.codegen.backends.c.convolution_float import float_sums, packed_channels
from smelt.codegen.backends.c.float_sums import CALL, REPEATED, STORE, Channels, FloatSums
from smelt.codegen.backends.c.vector_loops import lane_loops, vector_width
from smelt.codegen.lower.function_names import steps
from smelt.codegen.lower.image_loops import Frame, ImageLoop
from smelt.codegen.lower.input_pixel import input_pixel
from smelt.codegen.lower.kernel import (
    BodyCost,
    InnerFunction,
    Input,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Request,
)
from smelt.codegen.lower.loop_heads import loop_head
from smelt.codegen.lower.nested_loops import total
from smelt.codegen.lower.shared_functions import SharedFunctions
from smelt.codegen.lower.window import Window
from smelt.codegen.text.expressions import in_parentheses, offset
from smelt.codegen.text.helpers import uses_in
from smelt.codegen.text.layer_number import LayerNumber
from smelt.ir import DType, Node
from smelt.ops.core.convolution import DepthwiseConv2D

WIDEST = 16
"""Upper limit of a window's columns, which are all unrolled."""

_UNROLLED = 16
"""Windows of up to this many taps are fully unrolled; larger ones have a loop over rows."""

_PIXELS = 6
"""Most pixels of a block without vectors, since the code of each pixel is written out."""

_REGISTERS = 31
"""Registers for a block's sums, a row of its weights and an input.

A Cortex-M4 has 32 for floats; the last one holds the product that is added to a sum.
"""

_ARGUMENT = 20
"""Additional instructions of a call whose number of channels is an argument, on Cortex-M4."""


@dataclass(frozen=True)
class Column:
    """A column of inputs under a block's windows, `offset` pixels from the first one.

    `products` lists the output pixels that use it: `(pixel, column of its window)`.
    """

    offset: int
    products: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class DepthwiseBlock:
    """Channels that are computed `count` at a time.

    Attributes:
        loop: C line that opens the loop over blocks of channels; empty for a single block.
        position: C of the block's first channel.
        count: channels of a block.
        begin: C lines that declare the sums.
        products: C lines that add the products of the windows, or of a row if rows are looped over.
        row_weights: weights of a row if rows are looped over; else 0.
        weights: weights of a window if it is fully unrolled; else 0.
        stores: `(pixel, C lines that store its results)` for each pixel of the block.
    """

    loop: str
    position: str
    count: int
    begin: tuple[str, ...]
    products: tuple[str, ...]
    row_weights: int
    weights: int
    stores: tuple[tuple[int, tuple[str, ...]], ...]

    @property
    def uses(self) -> frozenset[str]:
        """The helpers and headers that the C lines use."""
        return uses_in(chain(self.begin, self.products, *(lines for _, lines in self.stores)))

    @staticmethod
    def of(
        channels: Channels, sums: FloatSums, window: Window, columns: tuple[Column, ...]
    ) -> DepthwiseBlock:
        """Return the block code for `channels`; a block's windows cover `columns`."""
        looped, count = _looped(window), channels.count
        rows, across = window.kernel
        head = loop_head("c", channels.end, channels.begin, count)
        return DepthwiseBlock(
            loop=head if channels.repeats else "",
            position="c" if channels.repeats else str(channels.begin),
            count=count,
            begin=sums.begin(channels) if sums.vectors else _scalars(count, sums.pixels),
            products=tuple(
                line
                for r in range(1 if looped else rows)
                for line in _products(
                    channels,
                    sums,
                    columns,
                    "row" if looped else "taps",
                    r * len(columns),
                    r * across * count,
                )
            ),
            row_weights=across * count if looped else 0,
            weights=0 if looped else window.taps * count,
            stores=tuple((p, sums.stores(channels, p)) for p in reversed(range(sums.pixels))),
        )


def _scalars(count: int, pixels: int) -> tuple[str, ...]:
    """Return C lines that declare one variable per sum, set to the biases at `weights`."""
    first = [f"float sum0_{j} = weights[{j}];" for j in range(count)]
    others = [f"float sum{p}_{j} = sum{p - 1}_{j};" for p in range(1, pixels) for j in range(count)]
    return (*first, *others)


def _products(
    channels: Channels,
    sums: FloatSums,
    columns: tuple[Column, ...],
    pointers: str,
    first: int,
    weight: int,
) -> tuple[str, ...]:
    """Return C lines that add the products of a row of the windows.

    Args:
        channels: the channels.
        sums: the block's sums.
        columns: the columns that the windows of a block cover.
        pointers: C array of the inputs' addresses.
        first: index in the array of the row's first input.
        weight: index of the row's first weight.
    """
    count, begin = channels.count, "c" if channels.repeats else str(channels.begin)
    lines: list[str] = []
    if not sums.vectors:
        read = 1 + max(k for column in columns for _, k in column.products)
        lines += [f"const float w{w} = weights[{w}];" for w in range(weight, weight + read * count)]
    for i, column in enumerate(columns, first):
        lines.append(f"const float *const in{i} = {offset(f'{pointers}[{i}]', begin)};")
        if sums.vectors:
            for p, k in column.products:
                at = weight + k * count
                lines += lane_loops(
                    channels.lanes,
                    lambda n, j, lane, i=i, p=p, at=at: (
                        f"sum{p}_{n}[{j}] += in{i}[{lane}] * weights[{offset(str(at), lane)}];"
                    ),
                )
        else:
            lines += [f"const float x{i}_{j} = in{i}[{j}];" for j in range(count)]
            lines += [
                sums.added(f"sum{p}_{j}", f"x{i}_{j}", f"w{weight + k * count + j}")
                for j in range(count)
                for p, k in column.products
            ]
    return tuple(lines)


@dataclass(frozen=True)
class DepthwisePixelsParameters(Parameters):
    """Variables of `depthwise_pixels.j2`; texts are C.

    Attributes:
        pixels_text: pixels of a block, in words.
        vectors: whether neighboring channels share vector registers.
        channels: the channels in whole blocks, then the remainder.
        shared: whether an argument, `whole`, tells the channels in whole blocks.
        rows: rows of a window if they are looped over; else 0.
        columns: columns that a block's windows cover, if rows are looped over; else 0.
    """

    pixels_text: str
    vectors: bool
    channels: tuple[DepthwiseBlock, ...]
    shared: bool
    rows: int
    columns: int


@dataclass(frozen=True)
class DepthwiseFloatParameters(Parameters):
    """Variables of `depthwise_float.j2`; texts are C.

    Attributes:
        title, block_text: texts of the function's comment.
        images: the loop over images.
        each_row, each_column: lines that open the loops over blocks of pixels; empty for none.
        padded: whether an input pixel can lie outside of the image.
        pixels: pixels of a block.
        pointers: number of input pointers under the windows of a block, row by row.
        down: opens the loop over rows of the windows.
        across: opens the loop over columns; empty if they are not evenly spaced.
        places: positions of the columns, if there is no such loop.
        top, side: the first row and column under a window.
        output_pixel: address of the first output pixel of a block.
        others: addresses of the outputs of a block's pixels after the first.
        whole: channels in whole blocks if the function for pixels is shared; else None.
    """

    title: str
    block_text: str
    images: ImageLoop
    each_row: str
    each_column: str
    padded: bool
    pixels: int
    pointers: int
    down: str
    across: str
    places: tuple[str, ...]
    top: str
    side: str
    output_pixel: str
    others: tuple[str, ...]
    whole: int | None = None


def depthwise_float(
    node: Node[DepthwiseConv2D], window: Window, frame: Frame, request: Request, *, stem: str
) -> KernelCall:
    """Return the call that computes a float depthwise convolution without channel multiplier.

    Args:
        node: the convolution.
        window: its geometry; at most `WIDEST` columns.
        frame: the output pixels to compute.
        request: target and `--optimize` preference.
        stem: stem of the function's name.
    """
    channels = window.outputs
    pixels, lanes = min(4, frame.width), vector_width(channels)
    if "simd_float" not in request.target.features:
        pixels, lanes = _scalar_block(window, frame.width, channels)
    whole = channels - channels % lanes
    parts = (Channels(0, whole, lanes), Channels(whole, channels, channels - whole))
    blocks = tuple(part for part in parts if part.end > part.begin)
    sums = float_sums(node, pixels, request)
    columns = _columns(window, pixels)
    parameters = _parameters(node, window, frame, sums, columns, lanes)
    padding = Packed("padding", np.zeros(channels, np.float32))
    pixel = input_pixel(window.size, frame.source, padded=parameters.padded, dtype=DType.FLOAT32)
    function = _block_of_pixels(node, window, sums, columns, blocks, stem)
    call = KernelCall(
        template="backends/c/depthwise_float.j2",
        stem=stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            *((padding,) if parameters.padded else ()),
            Packed("weights", packed_channels(node, 1, blocks)),
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY"},
        inner=(pixel, function),
        summary=f"{pixels} pixels x {lanes} channels",
    )
    if sums.vectors or not blocks[0].repeats:
        return call
    end = LayerNumber(whole, "whole")
    ends = (replace(blocks[0], end=end), *(replace(block, begin=end) for block in blocks[1:]))
    shared = replace(
        call,
        parameters=replace(parameters, whole=whole),
        inner=(pixel, _block_of_pixels(node, window, sums, columns, ends, stem)),
    )
    calls = -(-frame.width // pixels) * frame.height * frame.batch
    own = _cost(window, sums, columns, blocks, calls)
    arguments = calls * (_ARGUMENT + REPEATED * (whole // lanes))
    cost = replace(own, instructions=own.instructions + arguments)
    return replace(call, shared=SharedFunctions.of(call, shared, cost, own))


def _cost(
    window: Window,
    sums: FloatSums,
    columns: tuple[Column, ...],
    channels: tuple[Channels, ...],
    calls: int,
) -> BodyCost:
    """Return the cost: instructions of `calls` calls of the function for pixels, and its bytes."""
    instructions, code = CALL, 0
    for part in channels:
        block = DepthwiseBlock.of(part, sums, window, columns)
        others = len(block.begin) + STORE * part.count * sums.pixels
        rows = window.kernel[0] if _looped(window) else 1
        instructions += part.computed // part.count * (others + rows * len(block.products))
        code += others + len(block.products)
    return BodyCost(calls * instructions, 4 * code)


def _block_of_pixels(
    node: Node[DepthwiseConv2D],
    window: Window,
    sums: FloatSums,
    columns: tuple[Column, ...],
    channels: tuple[Channels, ...],
    stem: str,
) -> InnerFunction:
    """Return the function that computes a block of pixels."""
    pixels, looped = sums.pixels, _looped(window)
    several, shared = "s" * (pixels > 1), isinstance(channels[0].end, LayerNumber)
    own = "" if shared else f"_c{window.outputs}"
    blocks = tuple(DepthwiseBlock.of(block, sums, window, columns) for block in channels)
    return InnerFunction(
        template="backends/c/depthwise_pixels.j2",
        stem=f"{stem}{steps(node)}{own}_{pixels}pixel{several}",
        details={
            "clamp": node.op.activation.name.lower(),
            "lanes": f"lanes{blocks[0].count}",
            "rest": f"rest{channels[1].count}" if len(channels) > 1 else "",
        },
        parameters=DepthwisePixelsParameters(
            pixels_text=f"{pixels} pixel{several}",
            vectors=sums.vectors,
            channels=blocks,
            shared=shared,
            rows=window.kernel[0] if looped else 0,
            columns=len(columns) if looped else 0,
        ),
        uses=frozenset({"SMELT_VECTORS" if sums.vectors else "SMELT_NOINLINE"}).union(
            *(block.uses for block in blocks)
        ),
    )


def _parameters(
    node: Node,
    window: Window,
    frame: Frame,
    sums: FloatSums,
    columns: tuple[Column, ...],
    lanes: int,
) -> DepthwiseFloatParameters:
    pixels, rest = sums.pixels, frame.width % sums.pixels
    steps = _evenly_spaced(columns)
    several = "s" * (pixels > 1)
    each_row = loop_head("y", frame.height)
    each_column = loop_head("x", frame.width, step=pixels)
    y, x = "y" if each_row else "0", "x" if each_column else "0"
    across = loop_head("dx", steps[0], step=steps[1]) if steps else ""
    places = [f"side + {column.offset}" if column.offset else "side" for column in columns]
    return DepthwiseFloatParameters(
        title=window.title(node),
        block_text=f"{pixels} pixel{'s of a row' if several else ''} times {lanes} channel"
        + "s" * (lanes > 1),
        images=frame.images,
        each_row=each_row,
        each_column=each_column,
        padded=window.padded or rest > 0,
        pixels=pixels,
        pointers=window.kernel[0] * len(columns),
        down=window.loop(0, "dy"),
        across=across,
        places=() if steps else tuple(places),
        top=window.origin(0, y),
        side=window.origin(1, x),
        output_pixel=total(("output", frame.target.offset(y, x))),
        others=tuple(_other_output(frame, y, x, i, whole=not rest) for i in range(1, pixels)),
    )


def _looped(window: Window) -> bool:
    """Return whether the rows of a window are looped over rather than unrolled."""
    return window.taps > _UNROLLED and window.kernel[0] > 1


def _other_output(frame: Frame, y: str, x: str, number: int, *, whole: bool) -> str:
    """Return the C address of output pixel `number` of the block at (`y`, `x`).

    For a pixel beyond the end of the row, return the address of the block's first pixel, whose
    result is stored last and overwrites it.
    """
    found = total(("output", frame.target.offset(y, in_parentheses(offset(x, number)))))
    return found if whole else f"{offset(x, number)} < {frame.width} ? {found} : first"


def _columns(window: Window, pixels: int) -> tuple[Column, ...]:
    """Return the columns of inputs that a block of pixels uses, from left to right."""
    seen: dict[int, list[tuple[int, int]]] = {}
    for pixel in range(pixels):
        for tap in range(window.kernel[1]):
            offset = pixel * window.stride[1] + tap * window.dilation[1]
            seen.setdefault(offset, []).append((pixel, tap))
    return tuple(Column(offset, tuple(seen[offset])) for offset in sorted(seen))


def _evenly_spaced(columns: tuple[Column, ...]) -> tuple[int, int] | None:
    """Return `(end, step)` of a loop over the offsets of several columns; None if uneven."""
    offsets = [column.offset for column in columns]
    if len(offsets) == 1:
        return None
    step = offsets[1] - offsets[0]
    regular = offsets == list(range(0, offsets[-1] + 1, step))
    return (offsets[-1] + 1, step) if regular else None


def _scalar_block(window: Window, width: int, channels: int) -> tuple[int, int]:
    """Return the pixels and channels of the block with roughly the fewest instructions."""
    rows, taps = window.kernel[0], window.taps

    def cost(block: tuple[int, int]) -> int:
        pixels, lanes = block
        loads = rows * len(_columns(window, pixels))
        iterations = -(-channels // lanes)
        sums = channels * (loads + taps + pixels * (taps + 4))
        return -(-width // pixels) * (iterations * 2 * loads + sums)

    candidates = [
        (pixels, lanes)
        for pixels in range(1, min(width, _PIXELS) + 1)
        for lanes in range(1, min(channels, 8) + 1)
        if lanes * (pixels + window.kernel[1]) + 1 <= _REGISTERS
    ]
    return min(candidates, key=cost, default=(1, 1))

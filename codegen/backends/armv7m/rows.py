"""int8 convolutions three columns wide for Armv7-M without the DSP extension, without patches.

Products are those of `products`: one multiplication adds the products of two channels of a
pixel to a sum. But inputs are not packed for each pixel that sees them: the rows of the image under
a band of outputs are widened once, line by line, each line the words of two channels:

    [row][two channels][column]

Four neighbouring outputs of one channel see six columns of a line, or nine, of which every other
one comes first in a line for a stride of two. A function in assembly computes all outputs of a
row's channel, four at a time, with two loads more than the one of the first four columns.

Weights of a channel are words: in flash where the image is large beside them, else bytes in flash,
from which they are made in scratch once for all outputs of the band. The larger the band, the less
that is; so a band takes what scratch the plan has room for.
"""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.armv7m.assembly import Turns
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.products import LIFT, WORD_WEIGHTS, pairs_of, split_pairs
from smelt.codegen.backends.armv7m.products_parameters import LastInputs
from smelt.codegen.backends.armv7m.rows_assembly import LineSums, outputs_of_row
from smelt.codegen.backends.armv7m.rows_parameters import Bands, RowsOfPairsParameters, Widening
from smelt.codegen.lower.images import Frame
from smelt.codegen.lower.offer import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.short_products import SCRATCH_BYTES, scaling_of
from smelt.codegen.lower.store import offset
from smelt.codegen.lower.window import Window
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node
from smelt.ops.core.convolution import Conv2D

PIXELS = 4
"""Neighbouring outputs whose sums, inputs and weights fit into registers."""

COLUMNS = 3
"""Of the windows served."""

_WORTH_MAKING = 16
"""Blocks of outputs from which on words are made of a channel's weights in scratch."""

_REACH = 4096
"""What an immediate offset or an immediate of ADDW addresses."""

_UNROLLED = {"speed": 24, "ram": 8, "size": 1}
"""Steps in a turn of the loop, at most."""


class _Lines:
    """Where the words of a band of the image stand in scratch.

    A step of the assembly is a row and two channels under the window.

    Attributes:
        pairs: the channels of each word of a pixel.
        pitch: words of a line.
        row: words of a row of the image.
        steps: for one output.
        order: the columns of the window in the order in which a step takes them.
        places: where those columns of the first output's window stand in a line.
    """

    def __init__(self, window: Window, width: int) -> None:
        even = width + COLUMNS // 2
        stride = window.stride[1]
        self.pairs = pairs_of(window.depth)
        self.pitch = width * stride + COLUMNS - stride
        self.row = len(self.pairs) * self.pitch
        self.steps = window.kernel[0] * len(self.pairs)
        self.order = (0, 1, 2) if stride == 1 else (0, 2, 1)
        self.places = (0, 1, 2) if stride == 1 else (0, 1, even)
        self.stride = stride
        self.even = even

    @property
    def weights(self) -> int:
        """Words of a channel's weights, after the one that its sums start from."""
        return COLUMNS * self.steps

    def rows(self, window: Window, band: int) -> int:
        """Rows of the image under a band of rows of outputs."""
        return (band - 1) * window.stride[0] + window.kernel[0]

    def scratch_words(self, window: Window, band: int) -> int:
        """Words of scratch that a band takes."""
        return self.rows(window, band) * self.row

    def offset(self, step: int, place: int) -> int:
        """Bytes from a line's first output to what it sees in a step."""
        return 4 * (step * self.pitch + self.places[place])

    def column(self, x: str) -> str:
        """The C expression of where column x of the image stands in a line."""
        return x if self.stride == 1 else f"({x} & 1) * {self.even} + {x} / 2"


class SlidingRowsConv2D(Kernel[Conv2D]):
    """Convolutions of one group, three columns wide, of at least four outputs a row."""

    op = Conv2D
    uses_room = True

    @override
    def offer(self, node: Node[Conv2D], request: Request) -> KernelCall | Refusal:
        name, window, place = node.op.name, Window.of(node), Frame.of(node)
        if node.op.groups > 1:
            return Refusal(f"{name} is served by rows of words for one group only.")
        scaling = scaling_of(node)
        if isinstance(scaling, Refusal):
            return scaling
        x, y = node.input(0).type, node.output.type
        height, width, outputs = y.shape[1:]
        if window.kernel[1] != COLUMNS or window.stride[1] > 2 or window.dilation != (1, 1):
            return Refusal(
                f"{name} is served by rows of words for windows three columns wide, a stride of 1 "
                "or 2 and no dilation only."
            )
        if width < PIXELS or PIXELS * window.outputs >= _REACH:
            return Refusal(
                f"{name} is served by rows of words for {PIXELS} or more outputs a row only."
            )
        lines = _Lines(window, width)
        if 4 * lines.scratch_words(window, 1) > SCRATCH_BYTES:
            return Refusal(f"{name} has rows too long to be widened into {SCRATCH_BYTES} bytes.")
        scaling = scaling.signed
        room = 0 if request.optimize == "ram" else request.room
        band = _band(lines, window, height, room - 4 * (1 + lines.weights))
        blocks = -(-width // PIXELS)
        made = 4 * (lines.scratch_words(window, band) + 1 + lines.weights) <= max(
            room, SCRATCH_BYTES
        )
        few = node.input(1).array.size <= WORD_WEIGHTS and request.optimize != "size"
        made = made and not (few and band * blocks < _WORTH_MAKING)
        if not made:
            band = _band(lines, window, height, room)
        kept, repairs = _split(node.input(1).array, lines)
        starts = _starts(kept, repairs)
        constants = _constants(lines, repairs, scaling.rows)
        summed = LineSums(
            stride=lines.stride,
            pitch=lines.pitch,
            even=lines.even,
            weights=1 + lines.weights,
            turns=Turns.of(lines.steps - 1, _UNROLLED[request.optimize]),
            repaired=any(repairs),
            outputs=outputs,
            blocks=width // PIXELS,
            scaling=scaling,
        )
        parameters = RowsOfPairsParameters(
            title=f"{node.op.name}: {x} -> {y}, {window.text}",
            images=place.images,
            condition=CONDITION,
            assembly=outputs_of_row(summed).statements,
            scaling=scaling.steps,
            fields=scaling.rows.shape[1],
            outputs=(outputs, 4 * outputs),
            steps=lines.steps,
            places=tuple(f" + {at}" if at else "" for at in lines.places),
            repaired=any(repairs),
            widening=_widening(lines, window, place),
            bands=_bands(lines, window, height, width, band),
            pairs=lines.weights // 2 if made else None,
            odd=made and lines.weights % 2 == 1,
            weights=0 if made else 1 + lines.weights,
        )
        outside = np.full(window.depth, x.zero_point, np.int8)
        calls = place.batch * height * outputs
        bands = -(-height // band)
        return KernelCall(
            template="backends/armv7m/rows.j2",
            stem=f"conv_{window.kernel[0]}x{window.kernel[1]}_rows",
            parameters=parameters,
            operands=(
                Input(0, "input"),
                *((Packed("padding", outside),) if window.padded else ()),
                Packed("weights", _bytes(kept, starts) if made else _words(kept, starts)),
                Packed("constants", constants),
                Scratch("image", DType.INT32, lines.scratch_words(window, band)),
                *((Scratch("words", DType.INT32, 1 + lines.weights),) if made else ()),
                Output(0, "output"),
            ),
            uses={"SMELT_ARRAY"}
            | when(parameters.widening.fours or parameters.bands.kept, "string.h"),
            summary=f"two taps in one multiplication, {band} rows of outputs widened at a time",
            form="armv7m_rows_3",
            work={
                "products": calls * blocks * lines.weights,
                "repairs": place.batch * height * blocks * sum(map(len, repairs)),
                "outputs": calls * blocks,
                "rows": calls,
                "made": place.batch * bands * outputs * lines.weights if made else 0,
                "widened": place.batch * lines.scratch_words(window, height),
                "calls": 1,
            },
        )


def _band(lines: _Lines, window: Window, height: int, room: int) -> int:
    """Rows of outputs that so many bytes have room for; at least one."""
    fixed, each = lines.scratch_words(window, 0), window.stride[0] * lines.row
    return max(1, min(height, (room // 4 - fixed) // each))


def _widening(lines: _Lines, window: Window, place: Frame) -> Widening:
    depth, side = window.depth, window.padding[1][0]
    rest = depth % 4
    return Widening(
        size=window.size if window.padded else None,
        x=offset("i", -side),
        pixel=place.source.offset("y", "x" if window.padded else "i"),
        place=lines.column("i"),
        pitch=(lines.pitch, 2 * lines.pitch),
        fours=depth // 4,
        tail=tuple(
            LastInputs(
                first // 2 * lines.pitch,
                0,
                f"[{first}] + {LIFT}" + (f" + in[{first + 1}] * 65536" if first + 1 < rest else ""),
            )
            for first in range(0, rest, 2)
        ),
    )


def _bands(lines: _Lines, window: Window, height: int, width: int, band: int) -> Bands:
    uneven, stride = height % band > 0, window.stride[0]
    kept = max(window.kernel[0] - stride, 0) if band < height else 0
    rows = lines.rows(window, band)
    return Bands(
        height=height,
        rows=band,
        count="rows" if uneven else str(band),
        uneven=uneven,
        needed=f"(rows - 1) * {stride} + {window.kernel[0]}" if uneven else str(rows),
        kept=kept,
        moved=((rows - kept) * lines.row, kept * lines.row) if kept else (0, 0),
        stride=stride,
        row=lines.row,
        line_step=stride * lines.row,
        first=offset("have", -window.padding[0][0]),
        output_step=width * window.outputs,
        blocks=width // PIXELS,
        last=(width - PIXELS, (width - PIXELS) * window.outputs) if width % PIXELS else None,
    )


def _split(weights: Array, lines: _Lines) -> tuple[Array, list[list[tuple[int, int]]]]:
    """Weights w_a and w_b, int64 `[o, steps * 3, 2]`, in the order of the assembly, and repairs."""
    outputs, height, _, depth = weights.shape
    filled = np.zeros((outputs, height, COLUMNS, depth + 1), np.int64)
    filled[..., :depth] = weights
    index = [(a, depth if b is None else b) for a, b in lines.pairs]
    paired = filled[..., index].transpose(0, 1, 3, 2, 4)[:, :, :, lines.order]
    return split_pairs(paired.reshape(outputs, lines.weights, 2))


def _starts(kept: Array, repairs: list[list[tuple[int, int]]]) -> Array:
    """int64 `[o]`: what sums start from; see `products`."""
    lifted = LIFT * (kept[..., 0].sum(axis=1) + [sum(lack for _, lack in r) for r in repairs])
    return (kept[..., 1] < 0).sum(axis=1) - lifted


def _words(kept: Array, starts: Array) -> Array:
    """int32: each channel's start and its weights, two in a word."""
    words = kept[..., 1] + (kept[..., 0] << 16)
    return _int32(np.concatenate([starts[:, None], words], axis=1))


def _bytes(kept: Array, starts: Array) -> Array:
    """int32: the same with the weights of two words in one."""
    outputs, count, _ = kept.shape
    even = np.zeros((outputs, count + count % 2, 2), np.int64)
    even[:, :count] = kept
    low, high = even[..., 1] + 128, even[..., 0] + 128
    packed = low[:, ::2] | low[:, 1::2] << 8 | high[:, ::2] << 16 | high[:, 1::2] << 24
    return _int32(np.concatenate([starts[:, None], packed], axis=1))


def _constants(lines: _Lines, repairs: list[list[tuple[int, int]]], rows: Array) -> Array:
    """int32: each channel's repairs, behind their number, and its row of requantization."""
    parts: list[Array] = []
    for repair, row in zip(repairs, rows, strict=True):
        if any(repairs):
            found = [(lines.offset(*divmod(at, COLUMNS)), lack << 16) for at, lack in repair]
            parts += [np.asarray([len(found)]), np.asarray(found, np.int64).reshape(-1)]
        parts.append(row)
    return _int32(np.concatenate(parts))


def _int32(values: Array) -> Array:
    return (values.ravel().astype(np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


KERNELS = (SlidingRowsConv2D(),)

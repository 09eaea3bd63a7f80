"""int8 convolutions for cores with a multiplication of 32 by 32 into 32 bits and eight registers.

Two products in one multiplication: the input of one pixel plus 2^16 times that of another, times a
weight, is either pixel's product in a half of a word. Sums of such products hold as long as the
lower half does: over a *group* of taps whose weights' magnitudes add up to 255 at most. Then the
word goes to the total of words, and its rounded upper half to the total of upper halves; the lower
pixel's sum is what the second total, 2^16 times, leaves of the first.

The inputs of a block of pixels are packed into scratch, four pixels to a tap. One function in
assembly runs over all output channels of the block. Weights of eight channels are interleaved, so
that they lie as far apart as the taps of the packed inputs do: one register addresses both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.lower.assembly_builder import Assembler
from smelt.codegen.lower.halfword_parameters import (
    BlockFunction,
    Gathering,
    HalfwordParameters,
    PackedSlice,
    Slide,
    SlideTap,
    StretchText,
)
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
from smelt.codegen.lower.tap_groups import STATE_BYTES, BlockSums, Taps, grouped
from smelt.codegen.lower.window import Window
from smelt.ir import Array, DType, Node
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.targets import Optimize

_WIDEST_SLIDE = 5
"""Columns of a window up to which neighbouring pixels' inputs are loaded together."""


@dataclass(frozen=True)
class HalfwordCore:
    """What differs between the cores that are served.

    Attributes:
        condition: the preprocessor's, for the assembly.
        assembly: makes the assembly of a block of pixels.
        form: name in prices.
        interleaves: whether weights lie as far apart as the inputs of their taps.
        saturates: whether it saturates numbers of either sign to eight bits.
    """

    condition: str
    assembly: Callable[[BlockSums], Assembler]
    form: str
    interleaves: bool
    saturates: bool

    def apart(self, words: int) -> int:
        """Bytes from one weight of a channel to the next."""
        return 4 * words if self.interleaves else 1


def rows_of(window: Window) -> tuple[int, int] | None:
    """Words of packed inputs a tap, and rows of the window a slice; None if scratch is too short.

    A window that is too large for the inputs of four pixels is cut into slices of rows, between
    which scratch keeps four totals a channel.
    """
    row = window.kernel[1] * window.depth
    if window.kernel[0] * row * 8 <= SCRATCH_BYTES:
        return 2, window.kernel[0]
    rows = (SCRATCH_BYTES - STATE_BYTES * window.outputs) // (row * 8)
    if rows > 0:
        return 2, rows
    return (1, window.kernel[0]) if window.kernel[0] * row * 4 <= SCRATCH_BYTES else None


class HalfwordConvolution(Kernel[Conv2D]):
    """Convolutions of one group on a core."""

    op = Conv2D

    def __init__(self, core: HalfwordCore) -> None:
        self._core = core

    @override
    def offer(self, node: Node[Conv2D], request: Request) -> KernelCall | Refusal:
        if node.op.groups > 1:
            return Refusal(f"{node.op.name} is served by halves of words for one group only.")
        window = Window.of(node)
        stem = f"conv_{window.kernel[0]}x{window.kernel[1]}"
        return halfword_convolution(
            node, window, Frame.of(node), request, stem=stem, core=self._core
        )


def halfword_convolution(
    node: Node[Conv2D | FullyConnected],
    window: Window,
    place: Frame,
    request: Request,
    *,
    stem: str,
    core: HalfwordCore,
) -> KernelCall | Refusal:
    """The call that computes a convolution of one group, or why none does.

    Args:
        node: what is computed.
        window: its geometry.
        place: the output pixels to compute.
        request: target and preference.
        stem: of the function's name.
        core: that the assembly is for.
    """
    x, y = node.input(0).type, node.output.type
    scaling, cut = scaling_of(node), rows_of(window)
    if isinstance(scaling, Refusal):
        return scaling
    if cut is None:
        return Refusal(
            f"{node.op.name} has windows too large to be packed into {SCRATCH_BYTES} bytes."
        )
    weights = node.input(1).array.reshape(window.outputs, -1)
    if core.saturates:
        scaling = scaling.signed
    words, rows = cut
    taps = _slices(window, weights, rows, request.optimize)
    apart, at_once, several = core.apart(words), 2 * words, len(taps) > 1
    state = STATE_BYTES // 4 * window.outputs if several else 0
    first = taps[0].length
    packed = [interleaved(weights[:, i * first :][:, s.order], apart) for i, s in enumerate(taps)]
    places = [s.places * words for s in taps]
    ordered = all(s.ordered for s in taps)
    starts = np.cumsum([0, *(p.size for p in packed)]).tolist()
    pixels = y.size // window.outputs // place.batch
    one = window.taps == 1 and not window.padded and window.stride == (1, 1)
    dense = one and not several and pixels >= at_once
    functions = [
        BlockSums(s, scaling, words, window.outputs, several, s is taps[-1])
        for s in ((taps[0], taps[-1]) if several else taps)
    ]
    slide = None if dense else _slide(window, place, words, ordered=ordered)
    parameters = HalfwordParameters(
        title=f"{node.op.name}: {x} -> {y}, {window.text}",
        images=place.images,
        condition=core.condition,
        functions=tuple(_function(f, core) for f in functions),
        scaling=scaling.steps,
        fields=scaling.rows.shape[1],
        words=words,
        apart=apart,
        outputs=window.outputs,
        depth=window.depth,
        pixels=pixels,
        at_once=at_once,
        lanes=tuple(range(at_once)),
        pairs=tuple((i, 2 * i, 2 * i + 1) for i in range(words)),
        ordered=ordered,
        state=state,
        slices=tuple(
            PackedSlice(
                i * rows * window.dilation[0],
                min((i + 1) * rows, window.kernel[0]) * window.dilation[0],
                "block" if i == len(taps) - 1 else "part",
                f"weights + {start}" if start else "weights",
            )
            for i, start in enumerate(starts[:-1])
        ),
        last=pixels - at_once if dense else 0,
        gathering=None if dense else _gathering(window, place, slide),
    )
    columns = window.kernel[1] + (at_once - 1 if slide else 0)
    outside = np.full(columns * window.depth, x.zero_point, np.int8)
    blocks = -(-pixels // at_once) * place.batch
    return KernelCall(
        template="lower/halfword_convolution.j2",
        stem=stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            *((Packed("padding", outside),) if window.padded else ()),
            Packed("weights", np.concatenate(packed)),
            Packed("channels", scaling.rows),
            *(() if ordered else (Packed("places", np.concatenate(places).astype(np.int16)),)),
            Scratch("scratch", DType.INT32, state + first * words),
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY"},
        summary=f"{at_once} pixels at a time, two products in one multiplication",
        form=f"{core.form}_{at_once}",
        work={
            "products": blocks * window.outputs * weights.shape[1],
            "groups": blocks * window.outputs * sum(s.groups for s in taps),
            "outputs": blocks * window.outputs,
            "sums": blocks * window.outputs * (len(taps) - 1),
            "inputs": blocks * weights.shape[1],
            "blocks": blocks,
            "calls": 1,
        },
    )


def _slices(window: Window, weights: Array, rows: int, optimize: Optimize) -> tuple[Taps, ...]:
    """The window in slices of so many rows; all but the last one share their groups."""
    row = window.kernel[1] * window.depth
    count = -(-window.kernel[0] // rows)
    begin = (count - 1) * rows * row
    last = grouped(weights[:, begin:], optimize)
    if count == 1:
        return (last,)
    shared = grouped(weights[:, :begin].reshape(-1, rows * row), optimize)
    return (*(shared,) * (count - 1), last)


def _function(sums: BlockSums, core: HalfwordCore) -> BlockFunction:
    taps, apart = sums.taps, core.apart(sums.words)
    return BlockFunction(
        "block" if sums.ends else "part",
        sums.ends,
        tuple(
            StretchText(s.turns, len(s.groups), s.groups[0], s.groups[0] * apart)
            for s in taps.stretches
        ),
        taps.length,
        taps.length * apart if apart > 1 else 0,
        core.assembly(sums).statements,
    )


def _runs(window: Window, place: Frame) -> bool:
    """Whether columns of a window are neighbours, so that each row of it may lie in one piece."""
    runs = window.dilation[1] == 1 and window.kernel[1] > 1
    return runs and place.source.pixel == window.depth and window.kernel[1] <= window.size[1]


def _slide(window: Window, place: Frame, words: int, *, ordered: bool) -> Slide | None:
    """How rows of neighbouring pixels are packed; None if each is by itself."""
    columns, depth = window.kernel[1], window.depth
    if not _runs(window, place) or window.stride[1] > 1 or columns > _WIDEST_SLIDE:
        return None

    def behind(i: int) -> str:
        return f"c + {i * depth}" if i else "c"

    def tap(dx: int) -> SlideTap:
        targets = (
            f"{dx * depth * words + i} + c * {words}" if ordered else f"{i}" for i in range(words)
        )
        inputs = (dx + 2 * i for i in range(words))
        return SlideTap(
            "" if ordered else behind(dx),
            tuple((target, i, i + 1) for target, i in zip(targets, inputs, strict=True)),
        )

    return Slide(
        tuple(behind(i) for i in range(columns + 2 * words - 1)),
        tuple(tap(dx) for dx in range(columns)),
        columns * depth * (words if ordered else 1),
        2 * words - 1,
    )


def _gathering(window: Window, place: Frame, slide: Slide | None) -> Gathering:
    runs, tall = _runs(window, place), window.kernel[0] > 1
    whole = window.kernel[1] == 1 or (runs and not window.padded and slide is None)
    return Gathering(
        pixel=place.source.offset("y", "x"),
        output_pixel=place.target.offset("y", "x"),
        size=window.size if window.padded else None,
        top=window.origin(0, "y"),
        side=window.origin(1, "x"),
        width=place.width,
        tall=tall,
        whole=whole,
        asks=runs and not whole,
        inside=window.size[1] - window.kernel[1] if runs and window.padded else None,
        run=window.kernel[1] * window.depth if whole or (runs and slide is None) else 0,
        end=0 if whole else window.end[1],
        step=0 if whole else window.dilation[1],
        row_step=window.dilation[0] if tall else 0,
        slide=slide,
    )


def interleaved(weights: Array, step: int) -> Array:
    """int8 `[o, k]` weights, `step` channels interleaved; zeros fill up the last channels."""
    channels, length = weights.shape
    rows = -(-channels // step) * step
    filled = np.zeros((rows, length), np.int8)
    filled[:channels] = weights
    return filled.reshape(-1, step, length).transpose(0, 2, 1).ravel()

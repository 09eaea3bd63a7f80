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
from smelt.codegen.lower.image_product import Footprint, ImageProduct
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.products_32bit import SCRATCH_BYTES, scaling_of
from smelt.codegen.lower.requantization_32bit import ShortScaling
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
        return halfword_convolution(node, request, self._core)


def halfword_convolution(
    node: Node[Conv2D | FullyConnected], request: Request, core: HalfwordCore
) -> KernelCall | Refusal:
    """The call for a convolution of one group, or a dense layer, on a core, or why none does."""
    product = ImageProduct.of(node)
    window, scaling, cut = product.window, scaling_of(node), rows_of(product.window)
    if isinstance(scaling, Refusal):
        return scaling
    if cut is None:
        return Refusal(
            f"{node.op.name} has windows too large to be packed into {SCRATCH_BYTES} bytes."
        )
    words, rows = cut
    weights = SlicedWeights.of(product, rows, core.apart(words), request.optimize)
    scaling = scaling.signed if core.saturates else scaling
    parameters = _parameters(product, weights, scaling, words, core)
    at_once, gathering = parameters.at_once, parameters.gathering
    neighbours = at_once if gathering is not None and gathering.slide is not None else 1
    blocks = -(-parameters.pixels // at_once) * product.place.batch
    sums, inputs = blocks * window.outputs, window.kernel[0] * product.run
    return KernelCall(
        template="lower/halfword_convolution.j2",
        stem=product.stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            *product.padding(window.kernel[1] + neighbours - 1),
            Packed("weights", np.concatenate(weights.packed)),
            Packed("channels", scaling.rows),
            *weights.places(words),
            Scratch("scratch", DType.INT32, parameters.state + weights.taps[0].length * words),
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY", "SMELT_NAKED"},
        summary=f"{at_once} pixels at a time, two products in one multiplication",
        form=f"{core.form}_{at_once}",
        work={
            "products": sums * inputs,
            "groups": sums * sum(taps.groups for taps in weights.taps),
            "outputs": sums,
            "sums": sums * (len(weights.taps) - 1),
            "inputs": blocks * inputs,
            "blocks": blocks,
            "calls": 1,
        },
    )


@dataclass(frozen=True)
class SlicedWeights:
    """The weights of a window, in slices of rows that are summed one after the other.

    Attributes:
        rows: of a slice, but for the last one.
        taps: of each; all but the last one share their groups.
        packed: int8 each, as functions read them.
    """

    rows: int
    taps: tuple[Taps, ...]
    packed: tuple[Array, ...]

    @staticmethod
    def of(product: ImageProduct, rows: int, apart: int, optimize: Optimize) -> SlicedWeights:
        """Those of a convolution; the weights of a channel lie so many bytes apart."""
        weights = product.node.input(1).array.reshape(product.window.outputs, -1)
        count, size = -(-product.window.kernel[0] // rows), rows * product.run
        begin = (count - 1) * size
        taps = (grouped(weights[:, begin:], optimize),)
        if count > 1:
            taps = (grouped(weights[:, :begin].reshape(-1, size), optimize),) * (count - 1) + taps
        ordered = (weights[:, i * size :][:, t.order] for i, t in enumerate(taps))
        return SlicedWeights(rows, taps, tuple(interleaved(w, apart) for w in ordered))

    @property
    def ordered(self) -> bool:
        """Whether taps are summed in their own order."""
        return all(taps.ordered for taps in self.taps)

    def places(self, words: int) -> tuple[Packed, ...]:
        """The operand that says where inputs are packed, if they do not keep their order."""
        if self.ordered:
            return ()
        places = np.concatenate([taps.places * words for taps in self.taps])
        return (Packed("places", places.astype(np.int16)),)

    def slices(self, window: Window) -> tuple[PackedSlice, ...]:
        """What is packed and summed one after the other."""
        starts, last = np.cumsum([0, *(p.size for p in self.packed)]).tolist(), len(self.taps) - 1
        ends = [min((i + 1) * self.rows, window.kernel[0]) for i in range(last + 1)]
        return tuple(
            PackedSlice(
                i * self.rows * window.dilation[0],
                end * window.dilation[0],
                "block" if i == last else "part",
                f"weights + {starts[i]}" if starts[i] else "weights",
            )
            for i, end in enumerate(ends)
        )


def _parameters(
    product: ImageProduct,
    weights: SlicedWeights,
    scaling: ShortScaling,
    words: int,
    core: HalfwordCore,
) -> HalfwordParameters:
    """What the template prints; so many words hold the inputs of a tap."""
    window, pixels, at_once = product.window, product.place.pixels, 2 * words
    several = len(weights.taps) > 1
    dense = window.pointwise and not several and pixels >= at_once
    slices = (weights.taps[0], weights.taps[-1]) if several else weights.taps
    functions = [
        BlockSums(taps, scaling, words, window.outputs, several, taps is weights.taps[-1])
        for taps in slices
    ]
    return HalfwordParameters(
        title=window.title(product.node),
        images=product.place.images,
        condition=core.condition,
        functions=tuple(_function(sums, core) for sums in functions),
        scaling=scaling.steps,
        fields=scaling.rows.shape[1],
        words=words,
        apart=core.apart(words),
        outputs=window.outputs,
        depth=window.depth,
        pixels=pixels,
        at_once=at_once,
        lanes=tuple(range(at_once)),
        pairs=tuple((i, 2 * i, 2 * i + 1) for i in range(words)),
        ordered=weights.ordered,
        state=STATE_BYTES // 4 * window.outputs if several else 0,
        slices=weights.slices(window),
        last=pixels - at_once if dense else 0,
        gathering=None if dense else _gathering(product, words, ordered=weights.ordered),
    )


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


def _slide(product: ImageProduct, words: int, *, ordered: bool) -> Slide | None:
    """How rows of neighbouring pixels are packed; None if each is by itself."""
    columns, depth = product.window.kernel[1], product.window.depth
    if not product.has_runs or product.window.stride[1] > 1 or columns > _WIDEST_SLIDE:
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


def _gathering(product: ImageProduct, words: int, *, ordered: bool) -> Gathering:
    window, runs = product.window, product.has_runs
    slide = _slide(product, words, ordered=ordered)
    whole = window.kernel[1] == 1 or (runs and not window.padded and slide is None)
    return Gathering(
        under=Footprint.of(product, whole=whole),
        output_pixel=product.place.target.offset("y", "x"),
        whole=whole,
        asks=runs and not whole,
        inside=window.size[1] - window.kernel[1] if runs and window.padded else None,
        run=product.run if whole or (runs and slide is None) else 0,
        slide=slide,
    )


def interleaved(weights: Array, step: int) -> Array:
    """int8 `[o, k]` weights, `step` channels interleaved; zeros fill up the last channels."""
    channels, length = weights.shape
    rows = -(-channels // step) * step
    filled = np.zeros((rows, length), np.int8)
    filled[:channels] = weights
    return filled.reshape(-1, step, length).transpose(0, 2, 1).ravel()

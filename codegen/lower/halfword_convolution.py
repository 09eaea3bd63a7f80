"""int8 convolutions for cores with a 32 × 32 → 32-bit multiplication and eight low registers.

Each multiplication computes two products. The input of one pixel plus 2^16 times that of another
pixel, times a weight, has one pixel's product in each half of the word. Sums of such words stay
correct while the sum in the lower half fits into 16 bits. This holds for a *group* of taps whose
weights' magnitudes add up to at most 255. After each group, the word is added to a total of words,
and its rounded upper half to a total of upper halves. At the end, the lower pixel's sum is the
first total minus 2^16 times the second.

The inputs of a block of up to four pixels are packed into scratch. One assembly function computes
all output channels of the block. The weights of several channels (eight for four pixels) are
interleaved so that the distance between consecutive weights of a channel equals the distance
between consecutive taps of the packed inputs. One register can therefore address both.
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
from smelt.codegen.lower.halfword_pointwise import PIXELS, PointwiseAssembly, PointwiseLayer
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
    SharedBody,
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
"""Largest number of window columns for which inputs of adjacent pixels are loaded together."""


@dataclass(frozen=True)
class HalfwordCore:
    """The differences between the supported cores.

    Attributes:
        condition: The preprocessor condition for the assembly.
        assembly: Returns the assembly for a block of pixels.
        form: The name in the price tables.
        interleaves: Whether weights are interleaved to have the same distance as the taps' inputs.
        saturates: Whether the core has an instruction that saturates signed numbers to 8 bits.
        pointwise: Returns the assembly of a body that 1x1 convolutions share, if there is one.
    """

    condition: str
    assembly: Callable[[BlockSums], Assembler]
    form: str
    interleaves: bool
    saturates: bool
    pointwise: PointwiseAssembly | None = None

    def apart(self, words: int) -> int:
        """Return the bytes from one weight of a channel to the next."""
        return 4 * words if self.interleaves else 1


def rows_of(window: Window) -> tuple[int, int] | None:
    """Return the words of packed inputs per tap, and the window rows per slice.

    A window that is too large for the inputs of four pixels is split into slices of rows. Between
    slices, scratch keeps four totals per channel. Returns None if scratch is too small.
    """
    row = window.kernel[1] * window.depth
    if window.kernel[0] * row * 8 <= SCRATCH_BYTES:
        return 2, window.kernel[0]
    rows = (SCRATCH_BYTES - STATE_BYTES * window.outputs) // (row * 8)
    if rows > 0:
        return 2, rows
    return (1, window.kernel[0]) if window.kernel[0] * row * 4 <= SCRATCH_BYTES else None


class HalfwordConvolution(Kernel[Conv2D]):
    """Convolutions with one group on a core."""

    op = Conv2D

    def __init__(self, core: HalfwordCore) -> None:
        self._core = core

    @override
    def offer(self, node: Node[Conv2D], request: Request) -> KernelCall | Refusal:
        if node.op.groups > 1:
            return Refusal(f"{node.op.name} in halfwords supports only one group.")
        return halfword_convolution(node, request, self._core)


def halfword_convolution(
    node: Node[Conv2D | FullyConnected], request: Request, core: HalfwordCore
) -> KernelCall | Refusal:
    """Return the call for a convolution with one group or a dense layer, or why there is none."""
    product = ImageProduct.of(node)
    window, scaling, cut = product.window, scaling_of(node), rows_of(product.window)
    if isinstance(scaling, Refusal):
        return scaling
    if cut is None:
        return Refusal(f"{node.op.name} has windows too large to pack into {SCRATCH_BYTES} bytes.")
    words, rows = cut
    weights = SlicedWeights.of(product, rows, core.apart(words), request.optimize)
    scaling = scaling.signed if core.saturates else scaling
    parameters = _parameters(product, weights, scaling, words, core)
    at_once, gathering = parameters.at_once, parameters.gathering
    neighbors = at_once if gathering is not None and gathering.slide is not None else 1
    blocks = -(-parameters.pixels // at_once) * product.place.batch
    sums, inputs = blocks * window.outputs, window.kernel[0] * product.run
    return KernelCall(
        template="lower/halfword_convolution.j2",
        stem=product.stem,
        details=scaling.details,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            *product.padding(window.kernel[1] + neighbors - 1),
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
        shared=_shared(product, weights.taps, scaling, words, request, core),
    )


def _shared(
    product: ImageProduct,
    taps: tuple[Taps, ...],
    scaling: ShortScaling,
    words: int,
    request: Request,
    core: HalfwordCore,
) -> SharedBody | None:
    """Return the body that the layer can share, if there is one.

    Plain C is fast only if the sizes of groups are constants.
    """
    dense = product.window.pointwise and product.place.pixels >= PIXELS
    slow = request.target.is_riscv and request.optimize != "size"
    if core.pointwise is None or not dense or words != 2 or len(taps) != 1 or slow:
        return None
    own = BlockSums(taps[0], scaling, words, product.window.outputs, state=False, ends=True)
    layer = PointwiseLayer(
        product, own, core.condition, core.pointwise, interleaved, core.apart(words)
    )
    return layer.shared(small=request.optimize == "size")


@dataclass(frozen=True)
class SlicedWeights:
    """The weights of a window in slices of rows, which are summed in sequence.

    Attributes:
        rows: Rows of a slice; the last slice may have fewer.
        taps: The taps of each slice; all but the last slice use the same groups.
        packed: int8 weights of each slice, in the order in which the assembly reads them.
    """

    rows: int
    taps: tuple[Taps, ...]
    packed: tuple[Array, ...]

    @staticmethod
    def of(product: ImageProduct, rows: int, apart: int, optimize: Optimize) -> SlicedWeights:
        """Return a convolution's weights; `apart` is the distance in bytes within a channel."""
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
        """Whether taps are summed in their original order."""
        return all(taps.ordered for taps in self.taps)

    def places(self, words: int) -> tuple[Packed, ...]:
        """Return the operand with the packed position of each tap, if taps are reordered."""
        if self.ordered:
            return ()
        places = np.concatenate([taps.places * words for taps in self.taps])
        return (Packed("places", places.astype(np.int16)),)

    def slices(self, window: Window) -> tuple[PackedSlice, ...]:
        """Return the slices in the order in which they are packed and summed."""
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
    """Return the template's parameters; `words` is the number of words for the inputs of a tap."""
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
        core.assembly(sums).text,
    )


def _slide(product: ImageProduct, words: int, *, ordered: bool) -> Slide | None:
    """Return how rows of adjacent pixels are packed together, or None to pack each separately."""
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
        checks_inside=runs and not whole,
        inside=window.size[1] - window.kernel[1] if runs and window.padded else None,
        run=product.run if whole or (runs and slide is None) else 0,
        slide=slide,
    )


def interleaved(weights: Array, step: int) -> Array:
    """Interleave int8 `[o, k]` weights of `step` channels; zeros fill up the last channels."""
    channels, length = weights.shape
    rows = -(-channels // step) * step
    filled = np.zeros((rows, length), np.int8)
    filled[:channels] = weights
    return filled.reshape(-1, step, length).transpose(0, 2, 1).ravel()

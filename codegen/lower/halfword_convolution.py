"""int8 convolutions for cores with a 32 × 32 → 32-bit multiplication and eight low registers.

Each multiplication computes two products: a word packs the inputs a and b of two pixels, and

    (a + 2^16 * b) * weight = a * weight + 2^16 * (b * weight)

Such words are added up. The two sums in a word can be separated as long as the lower one fits into
16 bits. It does for a *group* of taps whose weights' magnitudes add up to at most 255, because
255 * 128 < 2^15. After each group, the word is added to one total, and the word's upper half,
rounded, to a second total. At the end, the second total is the sum of b's pixel, and the first
total minus 2^16 times the second is the sum of a's pixel.

The inputs of a block of up to four pixels are packed into scratch. One assembly function computes
all output channels of the block. It addresses inputs and weights by one register. Therefore the
weights of several channels (eight for four pixels) are interleaved: consecutive weights of a
channel are then as many bytes apart as the packed inputs of consecutive taps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.codegen.lower.assembly_builder import Assembler
from smelt.codegen.lower.function_names import channels, steps
from smelt.codegen.lower.halfword_layers import (
    HalfwordBlockParameters,
    block_helpers,
    shared_windows,
)
from smelt.codegen.lower.halfword_parameters import (
    BlockFunction,
    BlockText,
    Gathering,
    GroupLoopText,
    HalfwordParameters,
    PackedSlice,
    Slide,
    SlideTap,
)
from smelt.codegen.lower.halfword_pointwise import PIXELS, PointwiseAssembly, PointwiseLayer
from smelt.codegen.lower.image_product import Footprint, ImageProduct
from smelt.codegen.lower.kernel import (
    InnerFunction,
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
from smelt.codegen.text.expressions import offset, times
from smelt.ir import Array, DType, Node
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.targets import Optimize

_WIDEST_SLIDE = 5
"""Largest number of window columns for which the inputs of adjacent pixels are loaded together."""


@dataclass(frozen=True)
class HalfwordCore:
    """What differs between the cores that these kernels support.

    Attributes:
        condition: The preprocessor condition for the assembly.
        assembly: Returns the assembly for a block of pixels.
        form: The name in the price tables.
        interleaves: Whether weights of several channels are interleaved, so that consecutive
            weights of a channel are as far apart as the packed inputs of consecutive taps.
        saturates: Whether the core has an instruction that saturates signed numbers to 8 bits.
        pointwise: Returns the assembly of the body that 1x1 convolutions share; None if the core
            has no such body.
        layered: Whether `assembly` can read numbers from a layer's struct.
    """

    condition: str
    assembly: Callable[[BlockSums], Assembler]
    form: str
    interleaves: bool
    saturates: bool
    pointwise: PointwiseAssembly | None = None
    layered: bool = False

    def weight_stride(self, words: int) -> int:
        """Return the bytes from one weight of a channel to its next weight."""
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
    """Convolutions with one group, for the cores that a `HalfwordCore` describes."""

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
    weights = SlicedWeights.of(product, rows, core.weight_stride(words), request.optimize)
    scaling = scaling.signed if core.saturates else scaling
    parameters = _parameters(product, weights, scaling, words, core)
    common, gathering = parameters.common, parameters.gathering
    at_once = common.at_once
    neighbors = at_once if gathering is not None and gathering.slide is not None else 1
    blocks = -(-parameters.pixels // at_once) * product.frame.batch
    sums, inputs = blocks * window.outputs, window.kernel[0] * product.run
    call = KernelCall(
        template="lower/halfword_convolution.j2",
        stem=product.stem,
        details={**scaling.details, **weights.details},
        parameters=parameters,
        in_place=product.in_place(at_once=at_once),
        operands=(
            Input(0, "input"),
            *product.padding(window.kernel[1] + neighbors - 1),
            Packed("weights", np.concatenate(weights.packed)),
            Packed("channels", scaling.rows),
            *weights.places(words),
            Scratch("scratch", DType.INT32, common.state + weights.taps[0].length * words),
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY"},
        inner=(
            *_blocks(product, weights, scaling, words, common, core),
            *((product.input_pixel,) if gathering is not None else ()),
        ),
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
    return replace(call, shared=_shared(call, product, weights, scaling, words, request, core))


def _blocks(
    product: ImageProduct,
    weights: SlicedWeights,
    scaling: ShortScaling,
    words: int,
    common: BlockText,
    core: HalfwordCore,
) -> Iterator[InnerFunction]:
    """Yield the functions that sum slices: one for the last slice, before it one for all others.

    They do not depend on the size of the image.
    """
    node = product.node
    for sums in weights.sums(scaling, words, product.window.outputs):
        function = block_function(sums, core)
        yield InnerFunction(
            template="lower/halfword_block.j2",
            stem=f"{product.stem}{steps(node)}{channels(node)}_{function.name}",
            details={**scaling.details, **weights.details},
            parameters=HalfwordBlockParameters(block=function, common=common),
            uses={"SMELT_ARRAY", "SMELT_NAKED"},
            inner=block_helpers(common, ends=function.ends),
        )


def _shared(
    own: KernelCall,
    product: ImageProduct,
    weights: SlicedWeights,
    scaling: ShortScaling,
    words: int,
    request: Request,
    core: HalfwordCore,
) -> SharedBody | None:
    """Return the body that the layer can share, if there is one.

    RISC-V runs the plain C form, which is fast only if the sizes of groups are constants.
    """
    taps = weights.taps
    if core.layered and request.optimize == "size" and not product.window.pointwise:
        sums = [
            replace(s, layered=s.shareable)
            for s in weights.sums(scaling, words, product.window.outputs)
        ]
        functions = [(s, block_function(s, core)) for s in sums]
        return shared_windows(own, product, (weights.rows, weights.packed[0].size), functions)
    dense = product.window.pointwise and product.frame.pixels >= PIXELS
    slow = request.target.is_riscv and request.optimize != "size"
    if core.pointwise is None or not dense or words != 2 or len(taps) != 1 or slow:
        return None
    (sums,) = weights.sums(scaling, words, product.window.outputs)
    layer = PointwiseLayer(
        product, sums, core.condition, core.pointwise, interleaved, core.weight_stride(words)
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
    def of(
        product: ImageProduct, rows: int, weight_stride: int, optimize: Optimize
    ) -> SlicedWeights:
        """Return a convolution's weights; `weight_stride` is in bytes."""
        weights = product.node.input(1).array.reshape(product.window.outputs, -1)
        count, size = -(-product.window.kernel[0] // rows), rows * product.run
        begin = (count - 1) * size
        taps = (grouped(weights[:, begin:], optimize),)
        if count > 1:
            taps = (grouped(weights[:, :begin].reshape(-1, size), optimize),) * (count - 1) + taps
        ordered = (weights[:, i * size :][:, t.order] for i, t in enumerate(taps))
        return SlicedWeights(rows, taps, tuple(interleaved(w, weight_stride) for w in ordered))

    @property
    def details(self) -> dict[str, str]:
        """What functions' names say about the groups of taps; see `KernelCall`."""
        first = self.taps[0].group_loops[0]
        return {
            "groups": f"groups{sum(taps.groups for taps in self.taps)}",
            "largest": f"groups{len(first.groups) * first.iterations}_of_{first.groups[0]}",
        }

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

    def sums(self, scaling: ShortScaling, words: int, outputs: int) -> list[BlockSums]:
        """Return the sums of the slices: one for the last slice, before it one for all others."""
        first, last = self.taps[0], self.taps[-1]
        several = len(self.taps) > 1
        return [
            BlockSums(taps, scaling, words, outputs, several, taps is last)
            for taps in ((first, last) if several else (last,))
        ]

    def slices(self, window: Window) -> tuple[PackedSlice, ...]:
        """Return the slices in the order in which they are packed and summed."""
        starts, last = np.cumsum([0, *(p.size for p in self.packed)]).tolist(), len(self.taps) - 1
        ends = [min((i + 1) * self.rows, window.kernel[0]) for i in range(last + 1)]
        return tuple(
            PackedSlice(
                i * self.rows * window.dilation[0],
                end * window.dilation[0],
                end - i * self.rows > 1,
                int(i == last > 0),
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
    window, pixels, at_once = product.window, product.frame.pixels, 2 * words
    several = len(weights.taps) > 1
    dense = window.pointwise and not several and pixels >= at_once
    common = BlockText(
        condition=core.condition,
        scaling=scaling.steps,
        fields=scaling.rows.shape[1],
        words=words,
        weight_stride=core.weight_stride(words),
        outputs=window.outputs,
        at_once=at_once,
        pairs=tuple((i, 2 * i, 2 * i + 1) for i in range(words)),
        state=STATE_BYTES // 4 * window.outputs if several else 0,
    )
    return HalfwordParameters(
        title=window.title(product.node),
        images=product.frame.images,
        common=common,
        depth=window.depth,
        pixels=pixels,
        lanes=tuple(range(at_once)),
        ordered=weights.ordered,
        slices=weights.slices(window),
        last=pixels - at_once if dense else 0,
        gathering=None if dense else _gathering(product, words, ordered=weights.ordered),
    )


def block_function(sums: BlockSums, core: HalfwordCore) -> BlockFunction:
    """Return a function that sums a slice of the window."""
    taps, weight_stride = sums.taps, core.weight_stride(sums.words)
    return BlockFunction(
        name="block" if sums.ends else "part",
        ends=sums.ends,
        group_loops=tuple(
            GroupLoopText(s.iterations, len(s.groups), s.groups[0], s.groups[0] * weight_stride)
            for s in taps.group_loops
        ),
        length=taps.length,
        together=taps.length * weight_stride if weight_stride > 1 else 0,
        assembly=core.assembly(sums).text,
        layered=sums.layered,
    )


def _slide(product: ImageProduct, words: int, *, ordered: bool) -> Slide | None:
    """Return how rows of adjacent pixels are packed together, or None to pack each separately."""
    columns, depth = product.window.kernel[1], product.window.depth
    if not product.has_runs or product.window.stride[1] > 1 or columns > _WIDEST_SLIDE:
        return None

    c = "c" if depth > 1 else "0"

    def behind(i: int) -> str:
        return offset(c, i * depth)

    def tap(dx: int) -> SlideTap:
        targets = (
            offset(times(c, words), dx * depth * words + i) if ordered else f"{i}"
            for i in range(words)
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
        output_pixel=product.frame.target.offset("y", "x"),
        whole=whole,
        checks_inside=runs and not whole,
        inside=window.size[1] - window.kernel[1] if runs and window.padded else None,
        run=product.run if whole or (runs and slide is None) else 0,
        slide=slide,
    )


def interleaved(weights: Array, block: int) -> Array:
    """Interleave int8 weights `[o, k]` of each `block` channels; zeros complete the last block."""
    channels, length = weights.shape
    rows = -(-channels // block) * block
    filled = np.zeros((rows, length), np.int8)
    filled[:channels] = weights
    return filled.reshape(-1, block, length).transpose(0, 2, 1).ravel()

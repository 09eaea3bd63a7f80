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

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    Input,
    KernelCall,
    Output,
    Packed,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.kernels.c.images import Frame
from smelt.codegen.kernels.c.products import (
    bias_with_zero_point,
    folds,
    refuse_products,
    sums,
)
from smelt.codegen.kernels.c.requantization import Requantization
from smelt.codegen.kernels.c.window import Window
from smelt.codegen.kernels.cortexm.cores import ThumbKernel
from smelt.codegen.kernels.cortexm.thumb_assembly import STATE_BYTES, assembly
from smelt.codegen.kernels.cortexm.thumb_groups import Taps, grouped
from smelt.codegen.kernels.cortexm.thumb_scaling import ShortScaling, short_scaling
from smelt.ir import Array, DType, Node
from smelt.ops.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.fixed_point import convolution_scales
from smelt.ops.fully_connected import FullyConnected, fully_connected_scales
from smelt.targets import Optimize

SCRATCH_BYTES = 4096
"""What packed inputs may take."""

_WIDEST_SLIDE = 5
"""Columns of a window up to which neighbouring pixels' inputs are loaded together."""


@dataclass(frozen=True)
class Slice:
    """Rows of a window that are packed and summed together.

    Attributes:
        begin: first row, times the dilation.
        end: row past the last one, times the dilation.
        weights: index of its first weight.
        taps: their groups.
    """

    begin: int
    end: int
    weights: int
    taps: Taps


@dataclass(frozen=True)
class Core:
    """What differs between the cores that are served.

    Attributes:
        template: of the assembly.
        form: name in prices.
        interleaves: whether weights lie as far apart as the inputs of their taps.
        saturates: whether it saturates numbers of either sign to eight bits.
    """

    template: str
    form: str
    interleaves: bool
    saturates: bool

    def apart(self, words: int) -> int:
        """Bytes from one weight of a channel to the next."""
        return 4 * words if self.interleaves else 1


THUMB = Core("cortexm/thumb_block.j2", "thumb_halves", interleaves=True, saturates=False)


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


class ThumbConv2D(ThumbKernel[Conv2D]):
    """Convolutions of one group."""

    op = Conv2D

    @override
    def offer(self, node: Node[Conv2D], request: Request) -> KernelCall | Refusal:
        return convolution_by_halves(node, request, THUMB)


def convolution_by_halves(node: Node[Conv2D], request: Request, core: Core) -> KernelCall | Refusal:
    """The call that computes a convolution, or why none does."""
    if node.op.groups > 1:
        return Refusal(f"{node.op.name} is served by halves of words for one group only.")
    window = Window.of(node)
    stem = f"conv_{window.kernel[0]}x{window.kernel[1]}"
    return halves(node, window, Frame.of(node), request, stem=stem, core=core)


def halves(
    node: Node[Conv2D | FullyConnected],
    window: Window,
    place: Frame,
    request: Request,
    *,
    stem: str,
    core: Core,
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
    slices = list(_slices(window, weights, rows, request.optimize))
    apart, block = core.apart(words), 2 * words
    state = STATE_BYTES // 4 * window.outputs if len(slices) > 1 else 0
    packed = [
        interleaved(weights[:, i * slices[0].taps.length :][:, s.taps.order], apart)
        for i, s in enumerate(slices)
    ]
    places = [s.taps.places * words for s in slices]
    ordered = all(s.taps.ordered for s in slices)
    starts = np.cumsum([0, *(p.size for p in packed)]).tolist()
    slices = [replace(s, weights=start) for s, start in zip(slices, starts, strict=False)]
    pixels = y.size // window.outputs // place.batch
    one = window.taps == 1 and not window.padded and window.stride == (1, 1)
    dense = one and len(slices) == 1 and pixels >= block
    runs = window.dilation[1] == 1 and window.kernel[1] > 1
    runs = runs and place.source.pixel == window.depth and window.kernel[1] <= window.size[1]
    slides = runs and window.stride[1] == 1 and window.kernel[1] <= _WIDEST_SLIDE
    parameters: dict[str, object] = {
        "frame": place,
        "title": f"{node.op.name}: {x} -> {y}, {window.text}",
        "w": window,
        "s": scaling,
        "core_template": core.template,
        "slices": slices,
        "part": slices[0].taps if state else None,
        "whole": slices[-1].taps,
        "numbers": {s.taps: assembly(s.taps, words, apart, window.outputs) for s in slices},
        "words": words,
        "ordered": ordered,
        "dense": dense,
        "last": pixels - block,
        "runs": runs,
        "seen": range(window.kernel[1] + block - 1 if slides else 0),
        "apart": apart,
        "block": block,
        "state": state,
        "fields": scaling.rows.shape[1],
        "pixels": pixels,
        "top": window.origin(0, "y"),
        "side": window.origin(1, "x"),
        "pixel": place.source.offset("y", "x"),
        "output_pixel": place.target.offset("y", "x"),
    }
    columns = window.kernel[1] + (block - 1 if slides else 0)
    outside = np.full(columns * window.depth, x.zero_point, np.int8)
    blocks = -(-pixels // block) * place.batch
    return KernelCall(
        template="cortexm/thumb_convolution.j2",
        stem=stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            *((Packed("padding", outside),) if window.padded else ()),
            Packed("weights", np.concatenate(packed)),
            Packed("channels", scaling.rows),
            *(() if ordered else (Packed("places", np.concatenate(places).astype(np.int16)),)),
            Scratch("scratch", DType.INT32, state + slices[0].taps.length * words),
            Output(0, "output"),
        ),
        summary=f"{block} pixels at a time, two products in one multiplication",
        form=f"{core.form}_{block}",
        work={
            "products": blocks * window.outputs * weights.shape[1],
            "groups": blocks * window.outputs * sum(s.taps.groups for s in slices),
            "outputs": blocks * window.outputs,
            "sums": blocks * window.outputs * (len(slices) - 1),
            "inputs": blocks * weights.shape[1],
            "blocks": blocks,
            "calls": 1,
        },
    )


def _slices(window: Window, weights: Array, rows: int, optimize: Optimize) -> tuple[Slice, ...]:
    """The window in slices of so many rows; all but the last one share their groups."""
    row = window.kernel[1] * window.depth
    dilation = window.dilation[0]
    count = -(-window.kernel[0] // rows)
    parts = weights[:, : (count - 1) * rows * row]
    found: list[Slice] = []
    for i in range(count):
        begin, end = i * rows, min((i + 1) * rows, window.kernel[0])
        mine = weights[:, begin * row : end * row]
        if i < count - 1:
            mine = parts.reshape(-1, rows * row)
        found.append(Slice(begin * dilation, end * dilation, 0, grouped(mine, optimize)))
    return tuple(found)


@lru_cache(maxsize=128)
def scaling_of(
    node: Node[Conv2D | DepthwiseConv2D | FullyConnected],
) -> ShortScaling | Refusal:
    """The short requantization of a node of constant, symmetric weights, or why there is none."""
    op = node.op
    axis = 3 if isinstance(op, DepthwiseConv2D) else 0
    refused = refuse_products(node, axis)
    if refused is not None:
        return Refusal(refused)
    if node.output.type.dtype is not DType.INT8 or not folds(node):
        return Refusal(
            f"{op.name} is served by halves of words for constant, symmetric int8 weights only."
        )
    x, weights, y = node.input(0).type, node.input(1).type, node.output.type
    scales_of = fully_connected_scales if isinstance(op, FullyConnected) else convolution_scales
    scales = scales_of(x, weights, y, node.rounding)
    range_ = sums(node, axis)
    bias = bias_with_zero_point(node, axis)
    if bias is None:
        bias = np.zeros(len(range_[0]), np.int64)
    found = short_scaling(Requantization.of(node, scales, op.activation, range_), bias)
    return found or Refusal(f"{op.name} has scales that no short multiplications are exact for.")


def interleaved(weights: Array, step: int) -> Array:
    """int8 `[o, k]` weights, `step` channels interleaved; zeros fill up the last channels."""
    channels, length = weights.shape
    rows = -(-channels // step) * step
    filled = np.zeros((rows, length), np.int8)
    filled[:channels] = weights
    return filled.reshape(-1, step, length).transpose(0, 2, 1).ravel()


KERNELS = (ThumbConv2D(),)

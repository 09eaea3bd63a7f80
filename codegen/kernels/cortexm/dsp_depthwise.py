"""int8 depthwise convolutions on cores with the DSP extension.

Four channels at a time are widened into working memory, two rows of inputs a word; then one
assembly function makes all outputs of a channel (see `dsp_taps`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
from smelt.codegen.kernels.c.window import Window
from smelt.codegen.kernels.cortexm.cores import DspKernel
from smelt.codegen.kernels.cortexm.dsp_dot import DspProducts, products
from smelt.codegen.kernels.cortexm.dsp_scaling import DspScaling
from smelt.codegen.kernels.cortexm.dsp_taps import SCRATCH_WORDS, ChannelWalk, add, input_words
from smelt.ir import DType, Node
from smelt.ops.convolution import DepthwiseConv2D
from smelt.targets import Optimize

_MOST = {1: 8, 2: 4}
"""Elements of a group by rows of outputs: there are eight registers for sums."""

_WIDENED = 14
"""Instructions that widen a column of two rows of four channels."""


@dataclass(frozen=True)
class Part:
    """Columns that are widened without a loop, or in each turn of one."""

    count: int
    looped: bool


@dataclass(frozen=True)
class DepthwisePlan:
    """How a depthwise convolution is computed; see the template.

    Attributes:
        walk: how the outputs of a channel are gone through.
        last: the same for a last row without a partner; None where that is not needed.
        band: strips of outputs whose inputs are in working memory at once.
        zero_point: of the input.
        optimize: what to weigh.
    """

    walk: ChannelWalk
    last: ChannelWalk | None
    band: int
    zero_point: int
    optimize: Optimize

    @property
    def window(self) -> Window:
        """Its geometry."""
        return self.walk.window

    @property
    def columns(self) -> int:
        """Columns of inputs in working memory, padding included."""
        return (self.width - 1) * self.window.stride[1] + self.window.kernel[1]

    @property
    def width(self) -> int:
        """Of the output."""
        return self.walk.size[1]

    @property
    def plane(self) -> int:
        """Words of a channel's inputs."""
        return self.columns * self.walk.stored

    @property
    def left(self) -> int:
        """Columns of padding before the image."""
        return self.window.padding[1][0]

    @property
    def inside(self) -> int:
        """Columns that lie in the image."""
        return min(self.columns - self.left, self.window.size[1])

    @property
    def first(self) -> int:
        """Where the image begins in a channel's inputs."""
        return self.left * self.walk.stored

    @property
    def outside(self) -> tuple[tuple[int, int], ...]:
        """Stretches of a channel's inputs that lie beside the image."""
        end = (self.left + self.inside) * self.walk.stored
        return tuple((a, b) for a, b in ((0, self.first), (end, self.plane)) if a < b)

    @property
    def padding(self) -> int:
        """A word of padding."""
        return (self.zero_point & 0xFFFF) + self.zero_point * 65536

    @property
    def row(self) -> int:
        """Bytes of a row of the input."""
        return self.window.size[1] * self.window.outputs

    @property
    def rows(self) -> int:
        """Input rows from one strip of outputs to the next."""
        return 2 * self.walk.advance

    @property
    def full(self) -> int:
        """Strips that have all their rows."""
        return self.walk.size[0] // self.walk.rows

    @property
    def strip_bytes(self) -> int:
        """Outputs of a strip, all channels."""
        return self.walk.rows * self.walk.row_bytes

    @property
    def bands(self) -> int:
        """How often working memory is filled for one channel."""
        return -(-self.walk.strips // self.band)

    @property
    def guarded(self) -> bool:
        """Whether the last band may have but a row without a partner."""
        return self.last is not None and self.full % self.band == 0

    @property
    def edges(self) -> bool:
        """Whether pairs of rows lie partly outside of the image."""
        top = self.window.padding[0][0]
        pairs = (self.bands - 1) * self.band * self.walk.advance + self.walk.stored
        return top > 0 or 2 * pairs - top > self.window.size[0]

    @property
    def widen_unrolled(self) -> int:
        """Columns in a turn of the widening loop."""
        return min(self.inside, 8 if self.optimize == "speed" else 1)

    @property
    def widen_turns(self) -> int:
        """Of the widening loop."""
        return self.inside // self.widen_unrolled

    @property
    def widen_parts(self) -> tuple[Part, ...]:
        """The loop, and what it leaves."""
        rest = self.inside % self.widen_unrolled
        parts = (Part(self.widen_unrolled, self.widen_turns > 1), Part(rest, False))
        return tuple(part for part in parts if part.count)

    @property
    def next_pixel(self) -> list[str]:
        """Instructions that load four channels and move on by a pixel."""
        if self.window.outputs < 256:
            return [f"ldr r4, [r0], #{self.window.outputs}"]
        return ["ldr r4, [r0]", *add("r0", self.window.outputs)]

    @property
    def next_column(self) -> list[str]:
        """Instructions that store the first channel and move on by a column."""
        if self.walk.stored < 64:
            return [f"str r8, [r1], #{4 * self.walk.stored}"]
        return ["str r8, [r1]", *add("r1", 4 * self.walk.stored)]

    @property
    def next_rows(self) -> list[str]:
        """Instructions that move on to the next pair of rows."""
        back = 4 - 4 * self.inside * self.walk.stored
        return [*add("r0", 2 * self.row - self.inside * self.window.outputs), *add("r1", back)]

    @property
    def cost(self) -> int:
        """Instructions of one channel, about."""
        widened = self.bands * self.walk.stored * (self.inside * _WIDENED + 20) // 4
        last = self.last.cost + 25 if self.last else 0
        return widened + self.bands * (self.walk.cost + 30) // self.bands + last


def _plans(found: DspProducts, node: Node, optimize: Optimize) -> Iterator[DepthwisePlan]:
    """All plans that fit."""
    window, scaling = found.window, found.scaling
    size = node.output.type.shape[1], node.output.type.shape[2]
    zero_point = node.input(0).type.zero_point
    draft = ChannelWalk(window, scaling, size, 1, False, 1)
    words = input_words(window.kernel[0], draft.rows)
    columns = (size[1] - 1) * window.stride[1] + window.kernel[1]
    whole = (draft.strips - 1) * draft.advance + words
    room = SCRATCH_WORDS // 4 // columns
    for most in range(1, _MOST[draft.rows] + 1):
        if whole <= room and most <= size[0] // draft.rows:
            walk = ChannelWalk(window, scaling, size, whole, True, most)
            if walk.fits:
                yield DepthwisePlan(walk, None, draft.strips, zero_point, optimize)
        if most <= size[1]:
            yield from _horizontal(window, scaling, size, most, room, zero_point, optimize)


def _horizontal(
    window: Window,
    scaling: DspScaling,
    size: tuple[int, int],
    most: int,
    room: int,
    zero_point: int,
    optimize: Optimize,
) -> Iterator[DepthwisePlan]:
    """The plan of horizontal groups that holds as much as there is room for, if one fits."""
    draft = ChannelWalk(window, scaling, size, 1, False, most)
    words = input_words(window.kernel[0], draft.rows)
    for band in range(draft.strips, 0, -1):
        stored = (band - 1) * draft.advance + words
        walk = ChannelWalk(window, scaling, size, stored, False, most)
        if stored <= room and walk.fits:
            odd = size[0] % walk.rows == 1
            last = (
                ChannelWalk(window, scaling, size, stored, False, most, single=True)
                if odd
                else None
            )
            yield DepthwisePlan(walk, last, band, zero_point, optimize)
            return


class DspDepthwise(DspKernel[DepthwiseConv2D]):
    """Depthwise convolutions of at least four channels, each with one output."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        name = node.op.name
        found = products(node)
        if isinstance(found, Refusal):
            return found
        w, inputs = found.window, node.input(0).type.shape[3]
        if inputs != w.outputs:
            return Refusal(f"{name} is served for one output a channel.")
        if inputs < 4:
            return Refusal(f"{name} is served for four channels or more.")
        if w.dilation != (1, 1):
            return Refusal(f"{name} is not served for windows with gaps.")
        height = node.output.type.shape[1]
        if w.stride[0] % 2 and w.stride[0] > 1 and height > 1:
            return Refusal(f"{name} is served for vertical strides of 1 and of even numbers.")
        plans = _plans(found, node, request.optimize)
        chosen = min(plans, key=lambda plan: plan.cost, default=None)
        if chosen is None:
            return Refusal(
                f"{name} has rows too long for {4 * SCRATCH_WORDS} bytes of working memory."
            )
        walk = chosen.walk
        x, y = node.input(0).type, node.output.type
        place = Frame.of(node)
        order = "columns" if walk.down else "rows"
        return KernelCall(
            template="cortexm/dsp_depthwise.j2",
            stem=f"depthwise_{w.kernel[0]}x{w.kernel[1]}",
            parameters={
                "frame": place,
                "title": f"{node.op.name}: {x} -> {y}, {w.text}",
                "notes": [found.scaling.note],
                "w": w,
                "p": chosen,
            },
            operands=(
                Input(0, "input"),
                Packed("weights", walk.packed(found.weights)),
                Scratch("pairs", DType.INT32, 4 * chosen.plane),
                Output(0, "output"),
            ),
            summary=f"pairs of rows, {walk.most} outputs of {order} at a time",
            form="dsp_depthwise" + ("_signed" if found.scaling.signed else ""),
            work={
                "estimate": int(np.int64(chosen.cost) * w.outputs * place.batch),
                "calls": 1,
            },
        )


KERNELS = (DspDepthwise(),)

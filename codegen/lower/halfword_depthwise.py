"""int8 depthwise convolutions on Armv6-M: two products in one multiplication.

As in `halfword_convolution`, a word holds the inputs of two pixels, here of outputs that are next
to each other along one axis. Channel by channel, the words of a band of the image are made in
scratch; then a function in assembly slides over them, with the weights and constants of the channel
in one row. A sum of products goes to the totals after each *chunk* of taps in a line of the window:
three where every chunk's magnitudes add up to 255 at most, else two. The choice is made by channel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.lower.assembly_builder import Assembler
from smelt.codegen.lower.depthwise_plane import Plane, input_channel, plane_of
from smelt.codegen.lower.image_loops import Frame, ImageLoop
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.products_32bit import SCRATCH_BYTES, scaling_of
from smelt.codegen.lower.requantization_32bit import ScalingSteps, ShortScaling
from smelt.codegen.lower.tap_groups import LARGEST_GROUP
from smelt.codegen.lower.window import Window
from smelt.ir import Array, DType, Node
from smelt.ops.core.convolution import DepthwiseConv2D

_LARGEST_WINDOW = 60
"""Taps whose weights, as words, an immediate of eight bits reaches across."""


def chunks_of(taps: int, largest: int) -> tuple[int, ...]:
    """Taps in chunks of one size, but for the last one."""
    whole, rest = divmod(taps, largest)
    return (largest,) * whole + ((rest,) if rest else ())


@dataclass(frozen=True)
class DepthwiseCore:
    """What differs between the cores that are served.

    Attributes:
        condition: the preprocessor's, for the assembly.
        pairs: makes the assembly of a channel of a plane, whose taps are summed in chunks.
        form: name in prices.
        by_line: whether a chunk ends with its line.
        saturates: whether the core saturates numbers of either sign to eight bits.
    """

    condition: str
    pairs: Callable[[Plane, ShortScaling, tuple[int, ...]], Assembler]
    form: str
    by_line: bool
    saturates: bool

    def chunks(self, plane: Plane, largest: int) -> tuple[int, ...]:
        """A window's taps in chunks of at most so many."""
        if self.by_line:
            return chunks_of(plane.run, largest) * plane.lines
        return chunks_of(plane.run * plane.lines, largest)


@dataclass(frozen=True)
class TapOfPlane:
    """A tap in C: its place in words behind the window's first, and how its product is added."""

    place: int
    adds: str
    flushes: bool


@dataclass(frozen=True)
class PairsFunction:
    """A function for a channel of a plane, whose sums are taken in chunks of so many taps.

    `assembly` has the lines of each of its statements.
    """

    name: str
    largest: int
    taps: tuple[TapOfPlane, ...]
    assembly: tuple[str, ...]


@dataclass(frozen=True)
class PlanePacking:
    """How inputs of a channel are brought into words along the axis of pairs, u, and along v.

    Attributes:
        name: of the axis of pairs.
        stride: along u.
        size: of the image along u.
        inside: the same less the stride.
        source: elements from one u of the input to those 0, 1, … later.
        pitch: words from one u to those 0, 1, … later.
        apart: elements between the two inputs of a word.
        source_v: elements from one v of the input to the next.
        pitch_v: words from one v to the next.
        filled: words along v that the image fills.
        begin: where the first of them stands.
        outside: the number that inputs outside of the image have.
        outside_upper: the same in the upper half of a word.
        outside_both: the same in both halves.
        twos: whether inputs of two words are loaded once.
        fours: whether those of four are, for a stride of two.
    """

    name: str
    stride: int
    size: int
    inside: int
    source: tuple[int, ...]
    pitch: tuple[int, ...]
    apart: int
    source_v: int
    pitch_v: int
    filled: int
    begin: int
    outside: int
    outside_upper: int
    outside_both: int
    twos: bool
    fours: bool

    @staticmethod
    def of(p: Plane, outside: int) -> PlanePacking:
        """That of a plane."""
        return PlanePacking(
            name="columns" if p.axis else "rows",
            stride=p.stride[0],
            size=p.size[0],
            inside=p.size[0] - p.stride[0],
            source=tuple(i * p.source[0] for i in range(5)),
            pitch=tuple(i * p.pitch[0] for i in range(5)),
            apart=p.stride[0] * p.source[0],
            source_v=p.source[1],
            pitch_v=p.pitch[1],
            filled=p.filled,
            begin=p.begin * p.pitch[1],
            outside=outside,
            outside_upper=outside * 65536,
            outside_both=outside * 65537,
            twos=p.stride[0] == 1,
            fours=p.stride[0] == 2 and p.taps[0] == 3,
        )


@dataclass(frozen=True)
class HalfwordDepthwiseParameters(Parameters):
    """Variables of `lower/halfword_depthwise.j2`; u is the axis of pairs.

    Attributes:
        title: what is computed.
        images: that it is computed for.
        condition: the preprocessor's, for assembly.
        functions: one, or two, of which a channel's last constant chooses the first.
        chooser: which one that is; None for one function.
        scaling: of sums.
        constants: where they begin in a row, behind the weights.
        fields: words of a row.
        packing: of inputs.
        scratch_words: that are taken.
        outputs: channels.
        channel: C of the input's channel.
        size: outputs along u and v.
        odd: whether the last output along u is alone.
        step: words from an output to the next along u and v.
        target: elements from an output to the next along u and v.
        band: outputs along u at a time.
        before: padding before the image along u.
        period: rows of scratch from one pair to the next.
        reach: rows of the window.
    """

    title: str
    images: ImageLoop
    condition: str
    functions: tuple[PairsFunction, ...]
    chooser: int | None
    scaling: ScalingSteps
    constants: int
    fields: int
    packing: PlanePacking
    scratch_words: int
    outputs: int
    channel: str
    size: tuple[int, int]
    odd: bool
    step: tuple[int, int]
    target: tuple[int, int]
    band: int
    before: int
    period: int
    reach: int


class HalfwordDepthwise(Kernel[DepthwiseConv2D]):
    """Depthwise convolutions, on a core, whose lines fit into scratch."""

    op = DepthwiseConv2D

    def __init__(self, core: DepthwiseCore) -> None:
        self._core = core

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        scaling, plane = scaling_of(node), plane_of(node)
        if isinstance(scaling, Refusal):
            return scaling
        if refusal := _refuse_window(node):
            return refusal
        if plane is None:
            name = node.op.name
            return Refusal(f"{name} has lines too long to be packed into {SCRATCH_BYTES} bytes.")
        if refusal := _refuse_weights(node):
            return refusal
        scaling = scaling.signed if self._core.saturates else scaling
        channels = ChannelRows.of(node, plane, scaling, self._core, request)
        (height, width), shape = Window.of(node).kernel, node.output.type.shape
        planes, bands = shape[0] * shape[3], -(-plane.outputs[0] // (2 * plane.pairs))
        count = -(-plane.outputs[0] // 2) * plane.outputs[1] * planes
        return KernelCall(
            template="lower/halfword_depthwise.j2",
            stem=f"depthwise_{height}x{width}",
            parameters=_parameters(node, plane, scaling, channels, self._core),
            operands=(
                Input(0, "input"),
                Packed("channels", channels.rows),
                Scratch("words", DType.INT32, plane.words),
                Output(0, "output"),
            ),
            summary="two pixels at a time, two products in one multiplication",
            form=self._core.form,
            work={
                "products": count * plane.run * plane.lines,
                "lines": count * plane.lines,
                "outputs": count,
                "inputs": planes * plane.filled * plane.rows * bands,
                "planes": planes * bands,
                "calls": 1,
            },
            uses=frozenset({"SMELT_NAKED"}),
        )


def _refuse_window(node: Node[DepthwiseConv2D]) -> Refusal | None:
    """Why a window is not served; None where it is."""
    name, window = node.op.name, Window.of(node)
    if window.dilation != (1, 1):
        return Refusal(f"{name} is served by halves of words without dilation only.")
    if window.taps > _LARGEST_WINDOW:
        return Refusal(f"{name} is served by halves of words for {_LARGEST_WINDOW} taps at most.")
    return None


def _refuse_weights(node: Node[DepthwiseConv2D]) -> Refusal | None:
    """Why weights are not served; None where they are."""
    if np.abs(node.input(1).array.astype(np.int64)).max() > LARGEST_GROUP // 2:
        return Refusal(f"{node.op.name} has weights of -128, of which two could leave 16 bits.")
    return None


@dataclass(frozen=True)
class ChannelRows:
    """The constants of each channel.

    Attributes:
        rows: int32 `[o, fields]`: weights, requantization and, where there are two functions,
            whether it is the first one's.
        chunks: taps of a chunk at most, of each function.
    """

    rows: Array
    chunks: tuple[int, ...]

    @staticmethod
    def of(
        node: Node[DepthwiseConv2D],
        plane: Plane,
        scaling: ShortScaling,
        core: DepthwiseCore,
        request: Request,
    ) -> ChannelRows:
        """Those of a node: in chunks of three taps the channels of which no sum leaves 16 bits."""
        weights = np.moveaxis(node.input(1).array[0], 2, 0)
        # Lines of taps lie one after the other, as they do in scratch.
        if plane.axis != 1 - plane.inner:
            weights = weights.transpose(0, 2, 1)
        weights = weights.reshape(len(weights), -1).astype(np.int32)
        wide = _fits(weights, core.chunks(plane, 3))
        if wide.all() or not wide.any() or request.optimize == "size":
            return ChannelRows(
                np.concatenate([weights, scaling.rows], axis=1), (3 if wide.all() else 2,)
            )
        return ChannelRows(np.column_stack([weights, scaling.rows, wide.astype(np.int32)]), (3, 2))


def _parameters(
    node: Node[DepthwiseConv2D],
    plane: Plane,
    scaling: ShortScaling,
    channels: ChannelRows,
    core: DepthwiseCore,
) -> HalfwordDepthwiseParameters:
    several, fields = len(channels.chunks) > 1, channels.rows.shape[1]
    return HalfwordDepthwiseParameters(
        title=Window.of(node).title(node),
        images=Frame.of(node).images,
        condition=core.condition,
        functions=tuple(
            PairsFunction(
                f"pairs{largest}" if several else "pairs",
                largest,
                _taps(plane, core.chunks(plane, largest)),
                core.pairs(plane, scaling, core.chunks(plane, largest)).statements,
            )
            for largest in channels.chunks
        ),
        chooser=fields - 1 if several else None,
        scaling=scaling.steps,
        constants=plane.run * plane.lines,
        fields=fields,
        packing=PlanePacking.of(plane, node.input(0).type.zero_point),
        scratch_words=plane.words,
        outputs=node.output.type.shape[3],
        channel=input_channel(node),
        size=plane.outputs,
        odd=plane.odd,
        step=(plane.stride[0] * plane.pitch[0], plane.stride[1] * plane.pitch[1]),
        target=plane.target,
        band=2 * plane.pairs,
        before=plane.before[0],
        period=plane.period,
        reach=plane.taps[0],
    )


def _taps(plane: Plane, chunks: tuple[int, ...]) -> tuple[TapOfPlane, ...]:
    """The taps of a window, line by line."""
    within = [i for size in chunks for i in range(size)]
    return tuple(
        TapOfPlane(
            tap // plane.run * plane.pitch[1 - plane.inner] + tap % plane.run,
            "+=" if i else "=",
            [*within, 0][tap + 1] == 0,
        )
        for tap, i in enumerate(within)
    )


def _fits(weights: Array, chunks: tuple[int, ...]) -> Array:
    """bool `[o]`: whether all chunks of a channel's taps, `[o, k]`, stay in 16 bits."""
    starts = np.cumsum((0, *chunks[:-1]))
    sums = np.add.reduceat(np.abs(weights.astype(np.int64)), starts, axis=1)
    return np.asarray((sums <= LARGEST_GROUP).all(axis=1))

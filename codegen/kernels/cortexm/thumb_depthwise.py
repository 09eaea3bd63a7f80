"""int8 depthwise convolutions on Armv6-M: two products in one multiplication.

As in `thumb_convolution`, a word holds the inputs of two pixels, here of outputs that are next to
each other along one axis. Channel by channel, the words of a band of the image are made in scratch;
then a function in assembly slides over them, with the weights and constants of the channel in one
row. A sum of products goes to the totals after each *chunk* of taps in a line of the window: three
where every chunk's magnitudes add up to 255 at most, else two. The choice is made by channel.
"""

from __future__ import annotations

from collections.abc import Callable
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
from smelt.codegen.kernels.c.window import Window
from smelt.codegen.kernels.cortexm.cores import ThumbKernel
from smelt.codegen.kernels.cortexm.thumb_assembly import constant
from smelt.codegen.kernels.cortexm.thumb_convolution import (
    SCRATCH_BYTES,
    scaling_of,
)
from smelt.codegen.kernels.cortexm.thumb_groups import LARGEST_GROUP
from smelt.codegen.kernels.cortexm.thumb_plane import Plane, plane_of
from smelt.ir import Array, DType, Node
from smelt.ops.convolution import DepthwiseConv2D

_LARGEST_WINDOW = 60
"""Taps whose weights, as words, an immediate of eight bits reaches across."""


def chunks_of(taps: int, largest: int) -> tuple[int, ...]:
    """Taps in chunks of one size, but for the last one."""
    whole, rest = divmod(taps, largest)
    return (largest,) * whole + ((rest,) if rest else ())


@dataclass(frozen=True)
class Walk:
    """The assembly of one choice of chunks: how it moves its pointers, in instructions.

    Attributes:
        chunks: of the window's taps, line by line.
        line: to r0: from the end of a line of taps to the next one.
        next: to r0: from the end of the window to that of the next pair along v.
        turn: to r0: from there to the first pair of the next row of pairs.
        back: to r1: to the row's first weight.
        step: to the output's register: from an output to the next along v.
        wrap: to it: from there to the first output of the next row of pairs.
        pair: elements from an output to the other one of its pair.
        rounding: what the roundings of all chunks, 2^15 each, make.
        numbers: of Armv6-M: into r4, `pair`; into r2, pairs in a row; into r2, 2^15.
    """

    chunks: tuple[int, ...]
    line: tuple[str, ...]
    next: tuple[str, ...]
    turn: tuple[str, ...]
    back: tuple[str, ...]
    step: tuple[str, ...]
    wrap: tuple[str, ...]
    pair: int
    rounding: int
    numbers: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]

    @property
    def starts(self) -> frozenset[int]:
        """Taps that begin a chunk."""
        return frozenset(int(end) - size for end, size in zip(self._ends, self.chunks, strict=True))

    @property
    def stops(self) -> frozenset[int]:
        """Taps that end one."""
        return frozenset(int(end) - 1 for end in self._ends)

    @property
    def uppers(self) -> int:
        """`rounding` in units of 2^16, rounded up."""
        return (len(self.chunks) + 1) // 2

    @property
    def _ends(self) -> list[int]:
        return np.cumsum(self.chunks).tolist()


def advance(register: str, distance: int, spare: str) -> tuple[str, ...]:
    """Armv6-M instructions that add a number to a low register; `spare` may be lost."""
    name, size = ("adds", distance) if distance >= 0 else ("subs", -distance)
    if size > 510:
        return (*constant(spare, size), f"{name} {register}, {register}, {spare}")
    steps = [size] if size <= 255 else [255, size - 255]
    return tuple(f"{name} {register}, #{step}" for step in steps if step)


@dataclass(frozen=True)
class DepthwiseCore:
    """What differs between the cores that are served.

    Attributes:
        template: of the assembly.
        form: name in prices.
        output: register of the output's address.
        spare: register that is free when outputs are stored.
        advance: makes instructions that add a number to a register.
        by_line: whether a chunk ends with its line.
        saturates: whether the core saturates numbers of either sign to eight bits.
    """

    template: str
    form: str
    output: str
    spare: str
    advance: Callable[[str, int, str], tuple[str, ...]]
    by_line: bool
    saturates: bool

    def chunks(self, plane: Plane, largest: int) -> tuple[int, ...]:
        """A window's taps in chunks of at most so many."""
        if self.by_line:
            return chunks_of(plane.run, largest) * plane.lines
        return chunks_of(plane.run * plane.lines, largest)

    def walk(self, plane: Plane, largest: int, fields: int) -> Walk:
        """How the assembly goes over a plane with chunks of at most `largest` taps.

        `fields` are the words of a row that it walks across behind the weights.
        """
        chunks = self.chunks(plane, largest)
        across = plane.pitch[1 - plane.inner]
        window = 4 * ((plane.lines - 1) * across + plane.run)
        step, row = 4 * plane.stride[1] * plane.pitch[1], 4 * plane.period * plane.pitch[0]
        along, wide = plane.target[1], plane.outputs[1]
        across_row = plane.taps[0] * plane.taps[1] + (0 if self.by_line else fields)
        return Walk(
            chunks,
            self.advance("r0", 4 * (across - plane.run), "r2"),
            self.advance("r0", step - window, "r2"),
            self.advance("r0", row - step * wide, "r2"),
            self.advance("r1", -4 * across_row, "r2"),
            self.advance(self.output, along, self.spare),
            self.advance(self.output, 2 * plane.target[0] - along * wide, self.spare),
            plane.target[0],
            len(chunks) << 15,
            (constant("r4", plane.target[0]), constant("r2", wide), constant("r2", 1 << 15)),
        )


THUMB = DepthwiseCore(
    "cortexm/thumb_pairs.j2",
    "thumb_halves_depthwise",
    output="r2",
    spare="r3",
    advance=advance,
    by_line=True,
    saturates=False,
)


class ThumbDepthwiseConv2D(ThumbKernel[DepthwiseConv2D]):
    """Depthwise convolutions whose lines fit into scratch."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        return depthwise(node, request, THUMB)


def depthwise(
    node: Node[DepthwiseConv2D], request: Request, core: DepthwiseCore
) -> KernelCall | Refusal:
    """The call that computes a depthwise convolution on a core, or why none does."""
    scaling, window, name = scaling_of(node), Window.of(node), node.op.name
    if isinstance(scaling, Refusal):
        return scaling
    if window.dilation != (1, 1):
        return Refusal(f"{name} is served by halves of words without dilation only.")
    if window.taps > _LARGEST_WINDOW:
        return Refusal(f"{name} is served by halves of words for {_LARGEST_WINDOW} taps at most.")
    plane = plane_of(node)
    if plane is None:
        return Refusal(f"{name} has lines too long to be packed into {SCRATCH_BYTES} bytes.")
    if np.abs(node.input(1).array.astype(np.int64)).max() > LARGEST_GROUP // 2:
        return Refusal(f"{name} has weights of -128, of which two could leave 16 bits.")
    if core.saturates:
        scaling = scaling.signed
    x, y = node.input(0).type, node.output.type
    weights = np.moveaxis(node.input(1).array[0], 2, 0)
    # Lines of taps lie one after the other, as they do in scratch.
    if plane.axis != 1 - plane.inner:
        weights = weights.transpose(0, 2, 1)
    weights = weights.reshape(window.outputs, -1).astype(np.int32)
    wide = _fits(weights, core.chunks(plane, 3))
    kinds = [k for k, used in ((3, wide.any()), (2, not wide.all())) if used]
    if request.optimize == "size" and len(kinds) > 1:
        kinds = [2]
    columns = [weights, scaling.rows]
    if len(kinds) > 1:
        columns.append(wide[:, None].astype(np.int32))
    rows = np.concatenate(columns, axis=1)
    parameters: dict[str, object] = {
        "title": f"{node.op.name}: {x} -> {y}, {window.text}",
        "w": window,
        "p": plane,
        "s": scaling,
        "core_template": core.template,
        "walks": {k: core.walk(plane, k, scaling.rows.shape[1]) for k in kinds},
        "kinds": kinds,
        "odd": plane.outputs[0] % 2 == 1,
        "fields": rows.shape[1],
        "multiplier": window.outputs // x.shape[3],
        "batch": x.shape[0],
        "input_size": x.size // x.shape[0],
        "output_size": y.size // y.shape[0],
        "outside": x.zero_point,
        "words": plane.rows * plane.columns,
    }
    planes = window.outputs * x.shape[0]
    pairs = -(-plane.outputs[0] // 2) * plane.outputs[1] * planes
    bands = -(-plane.outputs[0] // (2 * plane.pairs))
    return KernelCall(
        template="cortexm/thumb_depthwise.j2",
        stem=f"depthwise_{window.kernel[0]}x{window.kernel[1]}",
        parameters=parameters,
        operands=(
            Input(0, "input"),
            Packed("channels", rows),
            Scratch("words", DType.INT32, plane.rows * plane.columns),
            Output(0, "output"),
        ),
        summary="two pixels at a time, two products in one multiplication",
        form=core.form,
        work={
            "products": pairs * window.taps,
            "lines": pairs * plane.lines,
            "outputs": pairs,
            "inputs": planes * plane.filled * plane.rows * bands,
            "planes": planes * bands,
            "calls": 1,
        },
    )


def _fits(weights: Array, chunks: tuple[int, ...]) -> Array:
    """bool `[o]`: whether all chunks of a channel's taps, `[o, k]`, stay in 16 bits."""
    starts = np.cumsum((0, *chunks[:-1]))
    sums = np.add.reduceat(np.abs(weights.astype(np.int64)), starts, axis=1)
    return np.asarray((sums <= LARGEST_GROUP).all(axis=1))


KERNELS = (ThumbDepthwiseConv2D(),)

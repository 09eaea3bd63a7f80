"""int8 transposed convolutions, phase by phase.

Outputs whose positions leave the same remainder by the stride are a phase: they meet the same taps,
so that each phase is an ordinary convolution with some of the weights, and no product is one with a
zero between inputs. Source: Shi et al., "Is the deconvolution layer the same as a convolutional
layer?" (2016).

The inputs of a pixel's window are brought together once for all output channels, less their zero
point; those of two pixels in one word where the processor multiplies 32 by 32 bits into 64, as in
`convolution_blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

import numpy as np

from smelt.codegen.backends.c.convolution_blocks import HALVES, LIMIT
from smelt.codegen.backends.c.transposed_axis import PhaseAxis, PhasedAxis
from smelt.codegen.lower.image_loops import ImageLoop
from smelt.codegen.lower.kernel import (
    Input,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
    Scratch,
    missed_for_ram,
)
from smelt.codegen.lower.nested_loops import LANES
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.quantized_products import centred_weights, folds
from smelt.codegen.lower.requantization import folded_bias, sum_range
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node, TensorType
from smelt.ops.core.convolution_nd import ConvolutionND, ConvTranspose
from smelt.targets import Optimize

_UNROLLED: dict[Optimize, int] = {"speed": 8, "ram": 8, "size": 2}
"""Inputs in one turn of the innermost loop, at most."""


@dataclass(frozen=True)
class _Phases:
    """How a transposed convolution is computed.

    Attributes:
        y, x: the axes.
        depth: channels of the input.
        outputs: channels of the output.
        weights: `[o, ky, kx, i]` of each phase that has any, in the order of their computation.
        unrolled: inputs in one turn of the innermost loop.
    """

    y: PhasedAxis
    x: PhasedAxis
    depth: int
    outputs: int
    weights: tuple[Array, ...]
    unrolled: int

    @staticmethod
    def of(node: Node[ConvTranspose], request: Request) -> _Phases:
        """That of a node of constant weights; a row is an image of height 1."""
        op, x, y = node.op, node.input(0).type, node.output.type
        weights = centred_weights(node, -1)
        weights = weights.reshape(y.shape[-1], -1, *weights.shape[-2:])
        sizes, outputs = (1, *x.shape[1:-1])[-2:], (1, *y.shape[1:-1])[-2:]
        strides = (1, *op.stride)[-2:]
        before = (0, *(pair[0] for pair in op.padding))[-2:]
        down, across = (
            PhasedAxis(name, weights.shape[a + 1], strides[a], before[a], sizes[a], outputs[a])
            for a, name in enumerate("yx")
        )
        taps = [(down.taps_of(py), across.taps_of(px)) for py, px in product(*map(range, strides))]
        parts = tuple(weights[:, list(ky)][:, :, list(kx)] for ky, kx in taps if ky and kx)
        wide = "long_multiply" in request.target.features and _fits_pairs(parts, x.zero_point)
        if wide and across.outputs > across.stride:
            across = replace(across, together=2)
        common = gcd(*(part[0].size for part in parts))
        most = _UNROLLED[request.optimize]
        unrolled = max(n for n in range(1, most + 1) if common % n == 0)
        return _Phases(down, across, x.shape[-1], y.shape[-1], parts, unrolled)

    @property
    def longest(self) -> int:
        """Elements of the longest window."""
        return max(part[0].size for part in self.weights)

    @property
    def at_once(self) -> int:
        """Output channels whose sums are in registers together."""
        return min(LANES, self.outputs)

    @property
    def rest(self) -> int:
        """Output channels in the last block, if it is not whole."""
        return self.outputs % self.at_once

    @property
    def padded(self) -> bool:
        """Whether windows reach beyond the image."""
        return self.y.reaches_out or self.x.reaches_out

    @property
    def ordered(self) -> Array:
        """All weights, int8, in the order in which they are read."""
        found: list[Array] = []
        for part in self.weights:
            rows = part.reshape(self.outputs, -1)
            whole = rows[: self.outputs - self.rest].reshape(-1, self.at_once, rows.shape[1])
            found += [whole.transpose(0, 2, 1).ravel(), rows[self.outputs - self.rest :].T.ravel()]
        return np.concatenate(found).astype(np.int8)


@dataclass(frozen=True, kw_only=True)
class PhaseChannels:
    """Output channels whose sums a function of its own computes.

    Attributes:
        count: how many channels.
        loop: C line that opens the loop over blocks of them; empty where there is one.
        first: the first channel, where there is one block.
        begin: C statements that declare the sums.
        turn: C statements that add the products of a turn of the loop over inputs.
        results: C statements that store the sums.
        advance: C expression of how many weights are read.
        stores: C statements that store the outputs of each channel.
    """

    count: int
    loop: str
    first: int
    begin: tuple[str, ...]
    turn: tuple[str, ...]
    results: tuple[str, ...]
    advance: str
    stores: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(
        cut: _Phases, finish: OutputStage, count: int, loop: str, first: int = 0
    ) -> PhaseChannels:
        """So many channels."""
        pair = cut.x.together == 2
        channels, wide = range(count), "(int64_t)" * pair
        turn: list[str] = []
        for k in range(cut.unrolled):
            turn.append(f"x = word[{k}];")
            turn += [f"sum{j} += {wide}x * weight[{k * count + j}];" for j in channels]
        results = [f"sums[{j}] = sum{j};" for j in channels]
        if pair:
            halves = [(0, "low"), (count, "high")]
            results = [
                f"sums[{start + j}] = {half}_sum((uint64_t)sum{j});"
                for j in channels
                for start, half in halves
            ]
        stores: list[tuple[str, ...]] = []
        for j in channels:
            at = f"o + {j}" if j else "o"
            following = [(f"next[{at}]", f"sums[{count + j}]")] if pair else []
            stores.append(finish.stores(at, *following, (f"out[{at}]", f"sums[{j}]")))
        return PhaseChannels(
            count=count,
            loop=loop,
            first=first,
            begin=tuple(f"{'int64_t' if pair else 'int32_t'} sum{j} = 0;" for j in channels),
            turn=(*turn, f"weight += {cut.unrolled * count};"),
            results=tuple(results),
            advance=f"{count} * length" if count > 1 else "length",
            stores=tuple(stores),
        )


@dataclass(frozen=True)
class PhasesParameters(Parameters):
    """Variables of `transposed_phases.j2`; texts are C.

    Attributes:
        title, notes: for the function's comment.
        images: the loop over images.
        pair: whether two pixels are computed at a time.
        outside: condition that an input pixel lies outside of the image; empty where none can.
        input_pixel: where input pixel (y, x) starts.
        depth: inputs of a pixel.
        word: of `patch`, made of inputs.
        unrolled: words in a turn of the loop over them.
        y, x: the axes.
        sums: of a block of pixels times channels.
        output_pixel: where output pixel (y, x) starts.
        last: from where on a row has no second pixel, and `beside` how far that is away; both 0
            where pixels are computed one by one.
        channels: in whole blocks, and in the last one.
        outputs: output channels.
    """

    title: str
    notes: tuple[str, ...]
    images: ImageLoop
    pair: bool
    outside: str
    input_pixel: str
    depth: int
    word: str
    unrolled: int
    y: PhaseAxis
    x: PhaseAxis
    sums: int
    output_pixel: str
    last: int
    beside: int
    channels: tuple[PhaseChannels, ...]
    outputs: int


def _fits_pairs(parts: tuple[Array, ...], zero_point: int) -> bool:
    """Whether no sum of inputs less their zero point leaves its 23 bits."""
    ranges = [sum_range(folded_bias(None, part, zero_point), part) for part in parts]
    return all(bool((low > -LIMIT).all() and (high < LIMIT).all()) for low, high in ranges)


def phases(
    node: Node[ConvTranspose], finish: OutputStage, request: Request
) -> KernelCall | Refusal:
    """The call that computes a node, or why this form does not serve it.

    Args:
        node: what is computed.
        finish: what follows each sum of inputs less their zero point.
        request: target and preference, and the scratch that the call may take.
    """
    op, x, y = node.op, node.input(0).type, node.output.type
    if x.dtype is not DType.INT8 or not folds(node):
        return Refusal(f"{op.name} is served phase by phase for int8 and constant weights only.")
    if op.groups > 1 or len(op.stride) > 2 or set(op.dilation) != {1}:
        return Refusal(f"{op.name} is served phase by phase for one group of 1-D or 2-D taps only.")
    cut = _Phases.of(node, request)
    if 4 * cut.longest > request.scratch_limit:
        return Refusal(
            f"Phase by phase would be faster, but takes {4 * cut.longest:,} bytes of scratch; more "
            f"than {request.scratch_limit:,} could make the arena larger.",
            optional=True,
        )
    if request.optimize == "ram":
        return Refusal(missed_for_ram("Phase by phase"), optional=True)
    pair, zero_point = cut.x.together == 2, -x.zero_point
    word = ("in0[i]", zero_point)
    if pair:
        word = ("in0[i] + in1[i] * 8388608", zero_point * ((1 << 23) + 1))
    operands: list[Operand] = [Input(0, "input")]
    if cut.padded:
        operands.append(Packed("padding", np.full(cut.depth, x.zero_point, np.int8)))
    operands += [Packed("weights", cut.ordered), *finish.operands]
    operands += [Scratch("patch", DType.INT32, cut.longest), Output(0, "output")]
    kernel = node.input(1).type.shape[:-2]
    width, stride = cut.x.outputs, cut.x.stride
    parameters = PhasesParameters(
        title=f"{op.name}: {x} -> {y}",
        notes=(geometry(op, kernel), *finish.notes),
        images=_images(x, y),
        pair=pair,
        outside=f"y < 0 || y >= {cut.y.size} || x < 0 || x >= {cut.x.size}" if cut.padded else "",
        input_pixel=f"y * {cut.x.size * cut.depth} + x * {cut.depth}",
        depth=cut.depth,
        word=offset(*word),
        unrolled=cut.unrolled,
        y=cut.y.loops,
        x=cut.x.loops,
        sums=cut.x.together * cut.at_once,
        output_pixel=f"(y * {width} + x) * {cut.outputs}",
        last=width - stride if pair else 0,
        beside=stride * cut.outputs if pair else 0,
        channels=tuple(_channels(cut, finish)),
        outputs=cut.outputs,
    )
    return KernelCall(
        template="backends/c/transposed_phases.j2",
        stem=f"transposed_conv_{'x'.join(map(str, kernel))}",
        parameters=parameters,
        operands=tuple(operands),
        uses=finish.uses | {"SMELT_ARRAY", "SMELT_NOINLINE"} | when(pair, *HALVES),
        summary=f"phase by phase, {cut.x.together} pixels x {cut.at_once} channels",
    )


def geometry(op: ConvolutionND, kernel: tuple[int, ...]) -> str:
    """A window in words, as `3x3 taps, stride 2x2, padding 0+1, 0+1.`."""
    parts = [
        f"{'x'.join(map(str, kernel))} taps",
        f"stride {'x'.join(map(str, op.stride))}",
        f"padding {', '.join(f'{before}+{after}' for before, after in op.padding)}",
    ]
    if max(op.dilation) > 1:
        parts.append(f"dilation {'x'.join(map(str, op.dilation))}")
    if op.groups > 1:
        parts.append(f"{op.groups} groups")
    return ", ".join(parts) + "."


def _images(x: TensorType, y: TensorType) -> ImageLoop:
    """The loop over images."""
    batch = x.shape[0]
    return ImageLoop(batch, x.size // batch, y.size // batch) if batch > 1 else ImageLoop(1, 0, 0)


def _channels(cut: _Phases, finish: OutputStage) -> Iterator[PhaseChannels]:
    """The output channels in whole blocks, and in the last one."""
    whole = cut.outputs - cut.rest
    loop = f"for (int32_t o = 0; o < {whole}; o += {cut.at_once}) {{"
    yield PhaseChannels.of(cut, finish, cut.at_once, loop if whole > cut.at_once else "")
    if cut.rest:
        yield PhaseChannels.of(cut, finish, cut.rest, "", whole)

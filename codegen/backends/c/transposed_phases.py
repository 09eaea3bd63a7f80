"""int8 transposed convolutions, computed phase by phase.

A phase is the outputs at positions with the same remainder modulo the stride. They use the same
taps. So each phase is an ordinary convolution with some of the weights, and no input is a zero that
was inserted between inputs. Source: Shi et al., "Is the deconvolution layer the same as a
convolutional layer?" (2016).

The inputs of a pixel's window, minus their zero point, are gathered once for all output channels.
If the processor multiplies 32 by 32 bits into 64, the inputs of two pixels are packed into one
word, as in `convolution_blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

import numpy as np

from smelt.codegen.backends.c.convolution_blocks import HALVES, LIMIT
from smelt.codegen.backends.c.transposed_axis import PhasedAxis, PhaseLoops
from smelt.codegen.lower.image_loops import ImageLoop, PixelStrides
from smelt.codegen.lower.input_pixel import input_pixel
from smelt.codegen.lower.kernel import (
    InnerFunction,
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
from smelt.codegen.lower.nested_loops import LANES, total
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.quantized_products import can_fold_zero_point, centered_weights
from smelt.codegen.lower.requantization import folded_bias, sum_range
from smelt.codegen.text.expressions import in_parentheses, offset, times
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node, TensorType
from smelt.ops.core.convolution_nd import ConvolutionND, ConvTranspose
from smelt.targets import Optimize

_UNROLLED: dict[Optimize, int] = {"speed": 8, "ram": 8, "size": 2}
"""Maximum number of inputs per iteration of the innermost loop."""


@dataclass(frozen=True)
class _Phases:
    """How a transposed convolution is computed.

    Attributes:
        y, x: height and width.
        depth: channels of the input.
        outputs: channels of the output.
        weights: weights `[o, ky, kx, i]` of each phase that has taps, in the order in which phases
            are computed.
        unrolled: inputs per iteration of the innermost loop.
    """

    y: PhasedAxis
    x: PhasedAxis
    depth: int
    outputs: int
    weights: tuple[Array, ...]
    unrolled: int

    @staticmethod
    def of(node: Node[ConvTranspose], request: Request) -> _Phases:
        """Return the phases of a node with constant weights; 1-D data is an image of height 1."""
        op, x, y = node.op, node.input(0).type, node.output.type
        weights = centered_weights(node, -1)
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
    def input_pixel(self) -> InnerFunction:
        """The function that returns the address of an input pixel, or of padding."""
        strides = PixelStrides(self.x.size * self.depth, self.depth)
        return input_pixel((self.y.size, self.x.size), strides, padded=self.padded)

    @property
    def longest(self) -> int:
        """The number of inputs of the largest window."""
        return max(part[0].size for part in self.weights)

    @property
    def at_once(self) -> int:
        """The number of output channels of a block; their sums are in registers together."""
        return min(LANES, self.outputs)

    @property
    def rest(self) -> int:
        """The number of output channels after the last whole block."""
        return self.outputs % self.at_once

    @property
    def padded(self) -> bool:
        """Whether a window reaches beyond the image."""
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
    """Blocks of output channels of one size, which share a function for their sums; texts are C.

    Attributes:
        count: channels of a block.
        loop: line that opens the loop over blocks; empty if there is one block.
        begin: statements that declare the sums.
        iteration: statements of an iteration of the loop over inputs; they add products.
        results: statements that store the sums.
        advance: number of weights of a block.
        stores: statements that store the outputs.
    """

    count: int
    loop: str
    begin: tuple[str, ...]
    iteration: tuple[str, ...]
    results: tuple[str, ...]
    advance: str
    stores: tuple[str, ...]

    @staticmethod
    def of(
        plan: _Phases, finish: OutputStage, count: int, loop: str, first: int = 0
    ) -> PhaseChannels:
        """Return blocks of `count` channels.

        Args:
            plan: the convolution.
            finish: output stage of each sum.
            count: channels of a block.
            loop: C line that opens the loop over blocks; empty for one block.
            first: first channel of the only block.
        """
        pair = plan.x.together == 2
        channels, wide = range(count), "(int64_t)" * pair
        iteration: list[str] = []
        for k in range(plan.unrolled):
            iteration.append(f"x = word[{k}];")
            iteration += [f"sum{j} += {wide}x * weight[{k * count + j}];" for j in channels]
        results = [f"sums[{j}] = sum{j};" for j in channels]
        if pair:
            halves = [(0, "low"), (count, "high")]
            results = [
                f"sums[{start + j}] = {half}_sum_23((uint64_t)sum{j});"
                for j in channels
                for start, half in halves
            ]
        stores: list[tuple[str, list[tuple[str, str]]]] = []
        for j in channels:
            at = offset("o" if loop else str(first), j)
            following = [(f"next[{at}]", f"sums[{count + j}]")] if pair else []
            stores.append((at, [*following, (f"out[{at}]", f"sums[{j}]")]))
        return PhaseChannels(
            count=count,
            loop=loop,
            begin=tuple(f"{'int64_t' if pair else 'int32_t'} sum{j} = 0;" for j in channels),
            iteration=(*iteration, f"weight += {plan.unrolled * count};"),
            results=tuple(results),
            advance=f"{count} * length" if count > 1 else "length",
            stores=finish.stores_in_order(stores),
        )


@dataclass(frozen=True)
class PhasesParameters(Parameters):
    """Variables of `transposed_phases.j2`; texts are C.

    Attributes:
        title, notes: text of the function's comment.
        images: the loop over images.
        pair: whether two pixels are computed together.
        padded: whether an input pixel can be outside of the image.
        depth: channels of an input pixel.
        word: element of `patch`, computed from channel `i` of one or two input pixels.
        unrolled: words per iteration of the loop over the patch.
        y, x: loops along the height and the width.
        sums: sums of a block: pixels times channels.
        output_pixel: offset of output pixel (y, x).
        last: output pixels from this column on are not followed by a second one of their phase; 0
            if pixels are computed one by one.
        beside: distance from a pixel's to the second pixel's outputs; 0 likewise.
        channels: the channels in whole blocks, then those of the last block.
        outputs: output channels.
    """

    title: str
    notes: tuple[str, ...]
    images: ImageLoop
    pair: bool
    padded: bool
    depth: int
    word: str
    unrolled: int
    y: PhaseLoops
    x: PhaseLoops
    sums: int
    output_pixel: str
    last: int
    beside: int
    channels: tuple[PhaseChannels, ...]
    outputs: int


def _fits_pairs(parts: tuple[Array, ...], zero_point: int) -> bool:
    """Return whether every sum of products of inputs, minus their zero point, fits in 23 bits."""
    ranges = [sum_range(folded_bias(None, part, zero_point), part) for part in parts]
    return all(bool((low > -LIMIT).all() and (high < LIMIT).all()) for low, high in ranges)


def phases(
    node: Node[ConvTranspose], finish: OutputStage, request: Request
) -> KernelCall | Refusal:
    """Return the call that computes a node, or why it is not served phase by phase.

    Args:
        node: the transposed convolution.
        finish: output stage of each sum of products of inputs, minus their zero point.
        request: target, `--optimize` preference and scratch limit.
    """
    op, x, y = node.op, node.input(0).type, node.output.type
    if x.dtype is not DType.INT8 or not can_fold_zero_point(node):
        return Refusal(f"{op.name} is served phase by phase for int8 and constant weights only.")
    if op.groups > 1 or len(op.stride) > 2 or set(op.dilation) != {1}:
        return Refusal(f"{op.name} is served phase by phase for one group of 1-D or 2-D taps only.")
    plan = _Phases.of(node, request)
    if not request.allows(4 * plan.longest):
        return Refusal(missed_for_ram("Computing phase by phase"), optional=True)
    if 4 * plan.longest > request.scratch_limit:
        return Refusal(
            f"Computing phase by phase would be faster, but takes {4 * plan.longest:,} bytes of "
            f"scratch; more than {request.scratch_limit:,} could make the arena larger.",
            optional=True,
        )
    pair, zero_point = plan.x.together == 2, -x.zero_point
    word = ("in0[i]", zero_point)
    if pair:
        word = ("in0[i] + in1[i] * 8388608", zero_point * ((1 << 23) + 1))
    operands: list[Operand] = [Input(0, "input")]
    if plan.padded:
        operands.append(Packed("padding", np.full(plan.depth, x.zero_point, np.int8)))
    operands += [Packed("weights", plan.ordered), *finish.operands]
    operands += [Scratch("patch", DType.INT32, plan.longest), Output(0, "output")]
    kernel = node.input(1).type.shape[:-2]
    width, stride = plan.x.outputs, plan.x.stride
    row = total((times("y" if plan.y.outputs > 1 else "0", width), "x"))
    parameters = PhasesParameters(
        title=f"{op.name}: {x} -> {y}",
        notes=(geometry(op, kernel), *finish.notes),
        images=_images(x, y),
        pair=pair,
        padded=plan.padded,
        depth=plan.depth,
        word=offset(*word),
        unrolled=plan.unrolled,
        y=plan.y.loops,
        x=plan.x.loops,
        sums=plan.x.together * plan.at_once,
        output_pixel=times(in_parentheses(row), plan.outputs),
        last=width - stride if pair else 0,
        beside=stride * plan.outputs if pair else 0,
        channels=tuple(_channels(plan, finish)),
        outputs=plan.outputs,
    )
    return KernelCall(
        template="backends/c/transposed_phases.j2",
        stem=f"transposed_conv_{'x'.join(map(str, kernel))}",
        parameters=parameters,
        operands=tuple(operands),
        inner=(plan.input_pixel,),
        uses=finish.uses | {"SMELT_ARRAY", "SMELT_NOINLINE"} | when(pair, *HALVES),
        summary=f"phase by phase, {plan.x.together} pixels x {plan.at_once} channels",
    )


def geometry(op: ConvolutionND, kernel: tuple[int, ...]) -> str:
    """Return a description of a window, such as `3x3 taps, stride 2x2, padding 0+1, 0+1.`."""
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
    """Return the loop over images."""
    batch = x.shape[0]
    return ImageLoop(batch, x.size // batch, y.size // batch) if batch > 1 else ImageLoop(1, 0, 0)


def _channels(plan: _Phases, finish: OutputStage) -> Iterator[PhaseChannels]:
    """Yield the output channels in whole blocks, then those of a smaller last block, if any."""
    whole = plan.outputs - plan.rest
    loop = f"for (int32_t o = 0; o < {whole}; o += {plan.at_once}) {{"
    yield PhaseChannels.of(plan, finish, plan.at_once, loop if whole > plan.at_once else "")
    if plan.rest:
        yield PhaseChannels.of(plan, finish, plan.rest, "", whole)

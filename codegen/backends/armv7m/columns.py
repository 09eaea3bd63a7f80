"""int8 depthwise convolutions of 3x3 taps for Armv7-M without the DSP extension.

Words hold inputs of two neighbouring lines of a channel, as `products` proves them exact:
129 more than the one and 2^16 times the other. A function in assembly walks along a line of
outputs with all weights in registers. Of each column it loads one word with the first two of its
three inputs and one with the last two, and adds their products to the sums of the three outputs
that see the column: two loads and six multiplications for nine products.

The weight of the middle input is shared out to both words so that their brackets hold. That fails
only where all three weights of a column are large; channels with such a column are computed by a
second function, which adds one more product a column, that of the repair. What the sums hold
besides is part of the bias that requantization takes in.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.armv7m.columns_assembly import SlidingLines, lines
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.products import LIFT, split_pairs
from smelt.codegen.lower.images import Frame, ImageLoop
from smelt.codegen.lower.offer import (
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
from smelt.codegen.lower.products import bias_with_zero_point, sums
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.lower.short_products import SCRATCH_BYTES, scaling_of
from smelt.codegen.lower.short_scaling import ScalingSteps, ShortScaling, short_scaling
from smelt.codegen.lower.window import Window
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import convolution_scales
from smelt.ops.core.convolution import DepthwiseConv2D

_MOST_TURNS = 255
"""What an immediate counts down from; three outputs a turn."""


_UNROLLED = {"speed": 5, "ram": 5, "size": 1}
"""Times three outputs in a turn of the loop, at most."""

_LONGEST_STRAIGHT = 16
"""Words of a column that are packed without a loop."""


@dataclass(frozen=True)
class LinesFunction:
    """A function for the lines of a channel; `lacks` is where its repairs stand, if it has any.

    `assembly` has the lines of each of its statements.
    """

    name: str
    lacks: int | None
    assembly: tuple[str, ...]


@dataclass(frozen=True)
class LinePacking:
    """How inputs of a channel are brought into words, each with the one in the next line.

    Attributes:
        begin: word of the first column that the image fills.
        filled: columns that it fills.
        source: elements from one line of the image to the next, and over two.
        column: elements from one column to the next.
        pitch: words of a line, and of two.
        size: lines of the image.
        loads: where there is no loop over lines: which are loaded, and from where.
        stores: then: index and C of each word.
        lower, upper, both: C of inputs outside of the image, as the lower half of a word, its upper
            half, and both.
        plain: the number that such an input has.
    """

    begin: int
    filled: int
    source: tuple[int, int]
    column: int
    pitch: tuple[int, int]
    size: int
    loads: tuple[tuple[int, int], ...]
    stores: tuple[tuple[int, str], ...]
    lower: int
    upper: int
    both: int


@dataclass(frozen=True)
class SlidingColumnsParameters(Parameters):
    """Variables of `backends/armv7m/columns.j2`.

    Attributes:
        title: what is computed.
        images: that it is computed for.
        condition: the preprocessor's, for assembly.
        functions: without repairs, with them, or both.
        chooser: which word of a row chooses the latter; None for one function.
        scaling: of sums.
        own: C of a channel's requantization.
        fields: words of a row.
        across: what lines are.
        band: lines at a time.
        count: lines.
        outputs: of a line.
        step: elements from an output to the next, and from a line to the next.
        packing: of inputs.
        scratch_words: that are taken.
        channels: of the output.
        channel: C of the input's channel.
        before: lines before the image.
    """

    title: str
    images: ImageLoop
    condition: str
    functions: tuple[LinesFunction, ...]
    chooser: int | None
    scaling: ScalingSteps
    own: tuple[str, ...]
    fields: int
    across: str
    band: int
    count: int
    outputs: int
    step: tuple[int, int]
    packing: LinePacking
    scratch_words: int
    channels: int
    channel: str
    before: int


class SlidingDepthwise(Kernel[DepthwiseConv2D]):
    """Depthwise convolutions of 3x3 taps, stride 1, whose lines fit into scratch."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        served, name, window = scaling_of(node), node.op.name, Window.of(node)
        if isinstance(served, Refusal):
            return served
        if (window.kernel, window.stride, window.dilation) != ((3, 3), (1, 1), (1, 1)):
            return Refusal(
                f"{name} is served in sliding columns for 3x3 taps, stride 1, no dilation only."
            )
        longest = max(node.output.type.shape[1:3])
        if (longest + 2) * 4 * 2 > SCRATCH_BYTES or longest // 3 > _MOST_TURNS:
            return Refusal(f"{name} has lines too long to be packed into {SCRATCH_BYTES} bytes.")
        scaling = _scaling(node)
        if scaling is None:
            return Refusal(f"{name} has scales that no short multiplications are exact for.")
        x, y = node.input(0).type, node.output.type
        # Lines run along the longer axis; `axis` is the one across them, which comes first.
        axis = 0 if y.shape[2] >= y.shape[1] else 1
        order = slice(None, None, 1 if axis == 0 else -1)
        before = tuple(side[0] for side in window.padding)[order]
        size, outputs = window.size[order], y.shape[1:3][order]
        source = (x.shape[2] * x.shape[3], x.shape[3])[order]
        target = (y.shape[2] * y.shape[3], y.shape[3])[order]
        pitch = outputs[1] + 2
        band = min(SCRATCH_BYTES // 4 // pitch - 1, outputs[0])
        band = -(-outputs[0] // -(-outputs[0] // band))
        rows, repaired = _rows(_columns(node, axis), scaling)
        kinds = [kind for kind in (False, True) if (repaired == kind).any()]
        constants, biased = scaling.rows.shape[1], scaling.biases is not None
        held = constants + (3 if repaired.any() else 0)
        triples = _triples(outputs[1] // 3, _UNROLLED[request.optimize])
        turns, multiplier = outputs[1] // 3 // triples, window.outputs // x.shape[3]
        straight = _straight(size[0], before[0], band + 1 if band == outputs[0] else 0)
        parameters = SlidingColumnsParameters(
            title=f"{node.op.name}: {x} -> {y}, {window.text}",
            images=Frame.of(node).images,
            condition=CONDITION,
            functions=tuple(
                LinesFunction(
                    "lines_repaired" if kind else "lines",
                    constants if kind else None,
                    lines(
                        SlidingLines(
                            pitch=pitch,
                            outputs=outputs[1],
                            triples=triples,
                            turns=turns,
                            step=target[1],
                            line_step=target[0],
                            held=held,
                            repaired=kind,
                            scaling=scaling,
                        )
                    ).statements,
                )
                for kind in kinds
            ),
            chooser=rows.shape[1] - 1 if len(kinds) > 1 else None,
            scaling=scaling.steps,
            own=tuple(f"held[{(i - biased) % constants}]" for i in range(constants)),
            fields=rows.shape[1],
            across="columns" if axis else "rows",
            band=band,
            count=outputs[0],
            outputs=outputs[1],
            step=(target[1], target[0]),
            packing=LinePacking(
                begin=before[1],
                filled=max(min(size[1], pitch - before[1]), 0),
                source=(source[0], 2 * source[0]),
                column=source[1],
                pitch=(pitch, 2 * pitch),
                size=0 if straight else size[0],
                loads=tuple(
                    (i, i * source[0])
                    for i in range(size[0])
                    if any(i in pair for pair in straight)
                ),
                stores=tuple(
                    (i * pitch, _word(pair, x.zero_point)) for i, pair in enumerate(straight)
                ),
                lower=x.zero_point + LIFT,
                upper=LIFT + x.zero_point * 65536,
                both=x.zero_point + LIFT + x.zero_point * 65536,
            ),
            scratch_words=pitch * (band + 1),
            channels=window.outputs,
            channel=f"o / {multiplier}" if multiplier > 1 else "o",
            before=0 if straight else before[0],
        )
        planes = window.outputs * x.shape[0]
        return KernelCall(
            template="backends/armv7m/columns.j2",
            stem="depthwise_3x3",
            parameters=parameters,
            operands=(
                Input(0, "input"),
                Packed("rows", rows),
                Scratch("words", DType.INT32, pitch * (band + 1)),
                Output(0, "output"),
            ),
            uses={"SMELT_ARRAY"},
            summary="lines of outputs, two taps in one multiplication",
            form="armv7m_columns_3x3",
            work={
                "outputs": y.size,
                "repaired": y.size // window.outputs * int(repaired.sum()),
                "lines": planes * outputs[0],
                "inputs": planes * size[1] * (outputs[0] + -(-outputs[0] // band)),
                "planes": planes * -(-outputs[0] // band),
                "calls": 1,
            },
        )


def _columns(node: Node, axis: int) -> Array:
    """int64 `[o, 3, 3]`: the weights of each column across the lines, from its first input on."""
    weights = np.moveaxis(node.input(1).array[0], 2, 0).astype(np.int64)
    return weights.transpose(0, 2, 1) if axis == 0 else weights


def _scaling(node: Node[DepthwiseConv2D]) -> ShortScaling | None:
    """The requantization of sums with what else they hold; None if no short one is exact."""
    x, weights, y = node.input(0).type, node.input(1).type, node.output.type
    scales = convolution_scales(x, weights, y, node.rounding)
    bias = bias_with_zero_point(node, 3)
    axis = 0 if y.shape[2] >= y.shape[1] else 1
    first, second = _shared(_columns(node, axis))
    excess = LIFT * (first[..., 0] + second[..., 0]).sum(axis=1)
    excess -= (first[..., 1] < 0).sum(axis=1) + (second[..., 1] < 0).sum(axis=1)
    known = (0 if bias is None else bias) - excess
    requantization = Requantization.of(node, scales, node.op.activation, sums(node, 3))
    found = short_scaling(requantization, known)
    return None if found is None else found.signed


def _triples(count: int, most: int) -> int:
    """Three outputs each that a turn of the loop makes: as many as divide all there are."""
    return max(i for i in range(1, most + 1) if count % i == 0)


def _straight(size: int, before: int, words: int) -> list[tuple[int | None, int | None]]:
    """The two inputs of each word of a column, None for outside; nothing where they are many."""
    if words > _LONGEST_STRAIGHT:
        return []
    inside = [i if 0 <= i < size else None for i in range(-before, words + 1 - before)]
    return list(pairwise(inside)) if words else []


def _word(pair: tuple[int | None, int | None], outside: int) -> str:
    """C of a word of two inputs."""
    lower, upper = pair
    first = f"{outside + LIFT}" if lower is None else f"x{lower} + {LIFT}"
    return f"{first} + {outside if upper is None else f'x{upper}'} * 65536"


def _shared(columns: Array) -> tuple[Array, Array]:
    """The weights of the first two inputs and of the last two, `[o, 3, 2]` each."""
    last, _ = split_pairs(columns[..., 1:])
    rest = columns[..., 1] - last[..., 0]
    return np.stack([columns[..., 0], rest], axis=-1), last


def _rows(columns: Array, scaling: ShortScaling) -> tuple[Array, Array]:
    """int32 `[o, fields]`: weights, requantization, repairs; bool `[o]`: whether there are any."""
    first, second = _shared(columns)
    kept, repairs = split_pairs(first)
    lacks = np.zeros((len(columns), 3), np.int64)
    for lack, repair in zip(lacks, repairs, strict=True):
        for at, missing in repair:
            lack[at] = missing << 16
    repaired = np.asarray(lacks.any(axis=1))
    # A bias comes last here: only sums with one load it.
    fields = np.roll(scaling.rows, -1, axis=1) if scaling.biases is not None else scaling.rows
    parts = [*(pair[..., 1] + (pair[..., 0] << 16) for pair in (kept, second)), fields]
    if repaired.any():
        parts += [lacks, repaired[:, None]]
    return np.concatenate(parts, axis=1).astype(np.int32), repaired


KERNELS = (SlidingDepthwise(),)

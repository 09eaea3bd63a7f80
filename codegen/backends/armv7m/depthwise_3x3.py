"""int8 depthwise convolutions of 3x3 taps for Armv7-M without the DSP extension.

Words hold inputs of two neighbouring lines of a channel, as `convolution_pairs` proves them exact:
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

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.armv7m.depthwise_3x3_assembly import SlidingLines, lines
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.paired_weights import LIFT, PairedWeights
from smelt.codegen.lower.depthwise_plane import Plane, input_channel
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
from smelt.codegen.lower.quantized_products import bias_with_zero_point, sums
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.lower.requantization_32bit import ScalingSteps, ShortScaling, short_scaling
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
    """Variables of `backends/armv7m/depthwise_3x3.j2`.

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
        served = scaling_of(node)
        if isinstance(served, Refusal):
            return served
        if refusal := _refuse_shape(node):
            return refusal
        band = LineBand.of(node)
        columns = SharedColumns.of(node, band)
        scaling = _scaling(node, columns)
        if scaling is None:
            name = node.op.name
            return Refusal(f"{name} has scales that no short multiplications are exact for.")
        y, plane = node.output.type, band.plane
        planes, bands = y.shape[0] * y.shape[3], -(-plane.outputs[0] // band.lines)
        return KernelCall(
            template="backends/armv7m/depthwise_3x3.j2",
            stem="depthwise_3x3",
            parameters=_parameters(node, band, columns, scaling, request),
            operands=(
                Input(0, "input"),
                Packed("rows", columns.rows(scaling)),
                Scratch("words", DType.INT32, band.words),
                Output(0, "output"),
            ),
            uses={"SMELT_ARRAY", "SMELT_NAKED"},
            summary="lines of outputs, two taps in one multiplication",
            form="armv7m_columns_3x3",
            work={
                "outputs": y.size,
                "repaired": y.size // y.shape[3] * int(columns.repaired.sum()),
                "lines": planes * plane.outputs[0],
                "inputs": planes * plane.size[1] * (plane.outputs[0] + bands),
                "planes": planes * bands,
                "calls": 1,
            },
        )


def _refuse_shape(node: Node[DepthwiseConv2D]) -> Refusal | None:
    """Why a shape is not served; None where it is."""
    name, window = node.op.name, Window.of(node)
    if (window.kernel, window.stride, window.dilation) != ((3, 3), (1, 1), (1, 1)):
        return Refusal(
            f"{name} is served in sliding columns for 3x3 taps, stride 1, no dilation only."
        )
    longest = max(node.output.type.shape[1:3])
    if (longest + 2) * 4 * 2 > SCRATCH_BYTES or longest // 3 > _MOST_TURNS:
        return Refusal(f"{name} has lines too long to be packed into {SCRATCH_BYTES} bytes.")
    return None


@dataclass(frozen=True)
class LineBand:
    """So many lines of outputs at a time; lines run along v, the longer axis of the plane."""

    plane: Plane
    lines: int

    @staticmethod
    def of(node: Node[DepthwiseConv2D]) -> LineBand:
        """As many lines as fit into scratch, the same in all bands but for the last one."""
        y = node.output.type
        plane = Plane.along(node, 0 if y.shape[2] >= y.shape[1] else 1)
        count = plane.outputs[0]
        most = min(SCRATCH_BYTES // 4 // plane.columns - 1, count)
        return LineBand(plane, -(-count // -(-count // most)))

    @property
    def words(self) -> int:
        """Words of scratch: a line more, for the last one's lower inputs."""
        return self.plane.columns * (self.lines + 1)

    @property
    def straight(self) -> list[tuple[int | None, int | None]]:
        """The two inputs of each word of a column, None for outside; nothing if they are many."""
        words, before = self.lines + 1, self.plane.before[0]
        if self.lines < self.plane.outputs[0] or words > _LONGEST_STRAIGHT:
            return []
        inside = (
            i if 0 <= i < self.plane.size[0] else None for i in range(-before, words + 1 - before)
        )
        return list(pairwise(inside))

    def packing(self, outside: int) -> LinePacking:
        """How inputs become words; outside of the image, they are that number."""
        plane, straight, (line, column) = self.plane, self.straight, self.plane.source
        pitch, loaded = plane.columns, {i for pair in straight for i in pair if i is not None}
        return LinePacking(
            begin=plane.before[1],
            filled=plane.filled,
            source=(line, 2 * line),
            column=column,
            pitch=(pitch, 2 * pitch),
            size=0 if straight else plane.size[0],
            loads=tuple((i, i * line) for i in sorted(loaded)),
            stores=tuple((i * pitch, _word(pair, outside)) for i, pair in enumerate(straight)),
            lower=outside + LIFT,
            upper=LIFT + outside * 65536,
            both=outside + LIFT + outside * 65536,
        )


def _parameters(
    node: Node[DepthwiseConv2D],
    band: LineBand,
    columns: SharedColumns,
    scaling: ShortScaling,
    request: Request,
) -> SlidingColumnsParameters:
    plane, constants = band.plane, scaling.rows.shape[1]
    line_step, step = plane.target
    kinds = [kind for kind in (False, True) if (columns.repaired == kind).any()]
    triples = _triples(plane.outputs[1] // 3, _UNROLLED[request.optimize])
    sums = SlidingLines(
        pitch=plane.columns,
        outputs=plane.outputs[1],
        triples=triples,
        turns=plane.outputs[1] // 3 // triples,
        step=step,
        line_step=line_step,
        held=constants + (3 if True in kinds else 0),
        repaired=False,
        scaling=scaling,
    )
    fields = columns.rows(scaling).shape[1]
    return SlidingColumnsParameters(
        title=Window.of(node).title(node),
        images=Frame.of(node).images,
        condition=CONDITION,
        functions=tuple(_function(replace(sums, repaired=kind)) for kind in kinds),
        chooser=fields - 1 if len(kinds) > 1 else None,
        scaling=scaling.steps,
        own=tuple(
            f"held[{(i - (scaling.biases is not None)) % constants}]" for i in range(constants)
        ),
        fields=fields,
        across="columns" if plane.axis else "rows",
        band=band.lines,
        count=plane.outputs[0],
        outputs=plane.outputs[1],
        step=(step, line_step),
        packing=band.packing(node.input(0).type.zero_point),
        scratch_words=band.words,
        channels=node.output.type.shape[3],
        channel=input_channel(node),
        before=0 if band.straight else plane.before[0],
    )


def _function(sums: SlidingLines) -> LinesFunction:
    name = "lines_repaired" if sums.repaired else "lines"
    return LinesFunction(name, sums.constants if sums.repaired else None, lines(sums).statements)


def _scaling(node: Node[DepthwiseConv2D], columns: SharedColumns) -> ShortScaling | None:
    """The requantization of sums with what else they hold; None if no short one is exact."""
    scales = convolution_scales(
        node.input(0).type, node.input(1).type, node.output.type, node.rounding
    )
    bias = bias_with_zero_point(node, 3)
    known = (0 if bias is None else bias) + columns.first.starts + columns.last.starts
    requantization = Requantization.of(node, scales, node.op.activation, sums(node, 3))
    found = short_scaling(requantization, known)
    return None if found is None else found.signed


def _triples(count: int, most: int) -> int:
    """Three outputs each that a turn of the loop makes: as many as divide all there are."""
    return max(i for i in range(1, most + 1) if count % i == 0)


def _word(pair: tuple[int | None, int | None], outside: int) -> str:
    """C of a word of two inputs."""
    lower, upper = pair
    first = f"{outside + LIFT}" if lower is None else f"x{lower} + {LIFT}"
    return f"{first} + {outside if upper is None else f'x{upper}'} * 65536"


@dataclass(frozen=True)
class SharedColumns:
    """Weights of columns across the lines, for the first two inputs and for the last two."""

    first: PairedWeights
    last: PairedWeights

    @staticmethod
    def of(node: Node[DepthwiseConv2D], band: LineBand) -> SharedColumns:
        """Those of a node; what is left of the middle input's goes to the first pair."""
        columns = np.moveaxis(node.input(1).array[0], 2, 0).astype(np.int64)
        if band.plane.axis == 0:
            columns = columns.transpose(0, 2, 1)
        last = PairedWeights.of(columns[..., 1:]).kept
        rest = columns[..., 1] - last[..., 0]
        first = np.stack([columns[..., 0], rest], axis=-1)
        return SharedColumns(PairedWeights.of(first), PairedWeights.of(last))

    @property
    def repaired(self) -> Array:
        """bool `[o]`: whether an output has repairs."""
        return np.asarray([bool(repairs) for repairs in self.first.repairs])

    def rows(self, scaling: ShortScaling) -> Array:
        """int32 `[o, fields]`: weights, requantization, repairs."""
        # A bias comes last here: only sums with one load it.
        fields = np.roll(scaling.rows, -1, axis=1) if scaling.biases is not None else scaling.rows
        parts = [self.first.words, self.last.words, fields]
        if self.first.repaired:
            lacks = np.zeros((len(fields), 3), np.int64)
            for lack, repairs in zip(lacks, self.first.repairs, strict=True):
                for at, missing in repairs:
                    lack[at] = missing << 16
            parts += [lacks, self.repaired[:, None]]
        return np.concatenate(parts, axis=1).astype(np.int32)


KERNELS = (SlidingDepthwise(),)

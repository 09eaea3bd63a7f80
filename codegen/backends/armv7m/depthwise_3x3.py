"""int8 depthwise convolutions of 3x3 taps for Armv7-M without the DSP extension.

Each word holds inputs of two neighboring lines of a channel: (x_a + 129) + 2^16 x_b, as
`convolution_pairs` proves exact. An assembly function walks along a line of outputs with all
weights in registers. For each column it loads two words, with the first two and the last two of the
column's three inputs, and adds their products to the sums of the three outputs whose windows
contain the column: two loads and six multiplications for nine products.

The weight of the middle input is split between both words so that their brackets fit into 16 bits.
That fails only if all three weights of a column are large. Channels with such a column are computed
by a second function, which adds another product per column, the repair. The constant that the sums
contain is subtracted by the bias in the requantization.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.armv7m.depthwise_3x3_assembly import SlidingLines
from smelt.codegen.backends.armv7m.depthwise_lines import lines_function, shared_lines
from smelt.codegen.backends.armv7m.paired_weights import LIFT, PairedWeights
from smelt.codegen.lower.depthwise_plane import Plane, input_channel, overwrites
from smelt.codegen.lower.image_loops import Frame, ImageLoop
from smelt.codegen.lower.kernel import (
    InnerFunction,
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
from smelt.codegen.lower.output_slabs import OutputSlabs
from smelt.codegen.lower.products_32bit import SCRATCH_BYTES, scaling_of
from smelt.codegen.lower.quantized_products import bias_with_zero_point, sums
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.lower.requantization_32bit import ShortScaling, short_scaling
from smelt.codegen.lower.window import Window
from smelt.codegen.text.expressions import offset
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import convolution_scales
from smelt.ops.core.convolution import DepthwiseConv2D

_MOST_ITERATIONS = 255
"""Largest immediate for the loop counter; an iteration computes at least three outputs."""


_UNROLLED = {"speed": 5, "ram": 5, "size": 1}
"""Upper limit of the groups of three outputs per iteration of the loop."""

_LONGEST_UNROLLED = 16
"""Largest number of words of a column that are packed without a loop."""


@dataclass(frozen=True)
class LinePacking(Parameters):
    """The packing of a channel's inputs: each word holds an input and the one in the next line.

    Variables of `backends/armv7m/depthwise_3x3_pack.j2`.

    Attributes:
        begin: word of the first column inside the image.
        filled: columns inside the image.
        source: elements from one line of the image to the next, and to the one after.
        column: elements from one column to the next.
        pitch: words of a line, and of two.
        size: lines of the image; 0 without a loop over lines.
        loads: without a loop over lines: index and offset of each loaded line.
        stores: without a loop over lines: index and C text of each word.
        lower: lower half of a word for an input outside of the image.
        upper: upper half of such a word, plus the 129 of its lower half.
        both: a word of two inputs outside of the image.
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
        title: text of the function's comment.
        images: the loop over images.
        chooser: index of the word of a row that selects the function with repairs; None if there
            is only one function.
        arguments: C text: more arguments of the functions for lines; may be empty.
        walk: the array of numbers that these functions get: elements from an output to the next,
            from the last whole group of three outputs to the next line, and these groups in a line;
            None if there is no such array.
        fields: words of a channel's row of constants.
        across: "rows" or "columns", whichever the lines are.
        slabs: the loop over slabs of lines of outputs.
        line_step: elements from one line of outputs to the next.
        packing: packing of inputs.
        scratch_words: words of scratch.
        channels: output channels.
        channel: C text: the input channel of output channel `o`.
        before: lines of padding before the image.
    """

    title: str
    images: ImageLoop
    chooser: int | None
    arguments: str
    fields: int
    across: str
    slabs: OutputSlabs
    line_step: int
    packing: LinePacking
    scratch_words: int
    channels: int
    channel: str
    before: int
    walk: tuple[int, int, int] | None = None


class SlidingDepthwise(Kernel[DepthwiseConv2D]):
    """Depthwise convolutions of 3x3 taps with stride 1 whose lines fit into scratch."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        common = scaling_of(node)
        if isinstance(common, Refusal):
            return common
        if refusal := _refuse_shape(node):
            return refusal
        slab = LineSlab.of(node)
        columns = SharedColumns.of(node, slab)
        scaling = _scaling(node, columns)
        if scaling is None:
            name = node.op.name
            return Refusal(f"{name} has scales for which no short multiplications are exact.")
        y, plane = node.output.type, slab.plane
        planes, slabs = y.shape[0] * y.shape[3], -(-plane.outputs[0] // slab.lines)
        outside = node.input(0).type.zero_point
        own = _functions(slab, columns, scaling, request)
        call = KernelCall(
            template="backends/armv7m/depthwise_3x3.j2",
            stem="depthwise_3x3",
            details=scaling.details,
            in_place=overwrites(node) if slab.lines == plane.outputs[0] else (),
            parameters=_parameters(node, slab, columns, scaling, ""),
            operands=(
                Input(0, "input"),
                Packed("rows", columns.rows(scaling)),
                Scratch("words", DType.INT32, slab.words),
                Output(0, "output"),
            ),
            inner=(*map(lines_function, own), slab.pack_function(outside)),
            summary="lines of outputs, two taps in one multiplication",
            form="armv7m_columns_3x3",
            work={
                "outputs": y.size,
                "repaired": y.size // y.shape[3] * int(columns.repaired.sum()),
                "lines": planes * plane.outputs[0],
                "inputs": planes * plane.size[1] * (plane.outputs[0] + slabs),
                "planes": planes * slabs,
                "calls": 1,
            },
        )
        joint = [p.shared(any_length=request.optimize == "size") for p in own]
        line_step, step = plane.target
        walk = step, joint[0].back(step, line_step), joint[0].iterations
        arguments = ", walk" if joint[0].any_length else f", {walk[0]}, {walk[1]}"
        parameters = _parameters(node, slab, columns, scaling, arguments)
        if joint[0].any_length:
            parameters = replace(parameters, walk=walk)
        inner = (*map(lines_function, joint), slab.pack_function(outside))
        shared = replace(call, parameters=parameters, inner=inner)
        counts = [y.shape[0] * int((columns.repaired == p.repaired).sum()) for p in own]
        return replace(
            call, shared=shared_lines(call, shared, own, joint, counts, plane.outputs[0], slabs)
        )


def _refuse_shape(node: Node[DepthwiseConv2D]) -> Refusal | None:
    """Return why a shape is not supported; None if it is."""
    name, window = node.op.name, Window.of(node)
    if (window.kernel, window.stride, window.dilation) != ((3, 3), (1, 1), (1, 1)):
        return Refusal(
            f"{name} in sliding columns supports only 3x3 taps, stride 1 and no dilation."
        )
    longest = max(node.output.type.shape[1:3])
    if (longest + 2) * 4 * 2 > SCRATCH_BYTES or longest // 3 > _MOST_ITERATIONS:
        return Refusal(f"{name} has lines too long to pack into {SCRATCH_BYTES} bytes.")
    return None


@dataclass(frozen=True)
class LineSlab:
    """The lines of outputs computed at once; lines run along v, the longer axis of the plane.

    Attributes:
        plane: the plane of a channel.
        lines: number of lines.
    """

    plane: Plane
    lines: int

    @staticmethod
    def of(node: Node[DepthwiseConv2D]) -> LineSlab:
        """Return the lines of a slab: as few slabs as scratch allows, divided evenly."""
        y = node.output.type
        plane = Plane.along(node, 0 if y.shape[2] >= y.shape[1] else 1)
        count = plane.outputs[0]
        most = min(SCRATCH_BYTES // 4 // plane.columns - 1, count)
        return LineSlab(plane, -(-count // -(-count // most)))

    @property
    def words(self) -> int:
        """Words of scratch; one more line holds the last line's lower inputs."""
        return self.plane.columns * (self.lines + 1)

    @property
    def unrolled(self) -> list[tuple[int | None, int | None]]:
        """The two input lines of each word of a column, None outside of the image.

        The list is empty if a loop packs the words.
        """
        words, before = self.lines + 1, self.plane.before[0]
        if self.lines < self.plane.outputs[0] or words > _LONGEST_UNROLLED:
            return []
        inside = (
            i if 0 <= i < self.plane.size[0] else None for i in range(-before, words + 1 - before)
        )
        return list(pairwise(inside))

    def pack_function(self, outside: int) -> InnerFunction:
        """Return the function that packs a channel's inputs; see `packing`."""
        packing = self.packing(outside)
        lines, columns = self.plane.size
        return InnerFunction(
            template="backends/armv7m/depthwise_3x3_pack.j2",
            stem="depthwise_3x3_pack",
            details={
                "size": f"{lines}x{columns}",
                "by": self.plane.name,
                "pitch": f"pitch{packing.pitch[0]}",
                "channels": f"step{packing.column}",
            },
            parameters=packing,
        )

    def packing(self, outside: int) -> LinePacking:
        """Return the packing of inputs; inputs outside of the image have the value `outside`."""
        plane, unrolled, (line, column) = self.plane, self.unrolled, self.plane.source
        pitch, loaded = plane.columns, {i for pair in unrolled for i in pair if i is not None}
        return LinePacking(
            begin=plane.before[1],
            filled=plane.filled,
            source=(line, 2 * line),
            column=column,
            pitch=(pitch, 2 * pitch),
            size=0 if unrolled else plane.size[0],
            loads=tuple((i, i * line) for i in sorted(loaded)),
            stores=tuple((i * pitch, _word(pair, outside)) for i, pair in enumerate(unrolled)),
            lower=outside + LIFT,
            upper=LIFT + outside * 65536,
            both=outside + LIFT + outside * 65536,
        )


def _functions(
    slab: LineSlab, columns: SharedColumns, scaling: ShortScaling, request: Request
) -> list[SlidingLines]:
    """Return the function without repairs, the one with repairs, or both."""
    kinds = [kind for kind in (False, True) if (columns.repaired == kind).any()]
    outputs = slab.plane.outputs[1]
    triples = _triples(outputs // 3, _UNROLLED[request.optimize])
    line_step, step = slab.plane.target
    return [
        SlidingLines(
            pitch=slab.plane.columns,
            outputs=outputs,
            triples=triples,
            iterations=outputs // 3 // triples,
            step=step,
            line_step=line_step,
            held=scaling.rows.shape[1] + (3 if True in kinds else 0),
            repaired=kind,
            scaling=scaling,
        )
        for kind in kinds
    ]


def _parameters(
    node: Node[DepthwiseConv2D],
    slab: LineSlab,
    columns: SharedColumns,
    scaling: ShortScaling,
    arguments: str,
) -> SlidingColumnsParameters:
    plane, fields = slab.plane, columns.rows(scaling).shape[1]
    repaired = columns.repaired
    return SlidingColumnsParameters(
        title=Window.of(node).title(node),
        images=Frame.of(node).images,
        chooser=fields - 1 if repaired.any() and not repaired.all() else None,
        arguments=arguments,
        fields=fields,
        across="columns" if plane.axis else "rows",
        slabs=OutputSlabs.of(plane.outputs[0], slab.lines),
        line_step=plane.target[0],
        packing=slab.packing(node.input(0).type.zero_point),
        scratch_words=slab.words,
        channels=node.output.type.shape[3],
        channel=input_channel(node),
        before=0 if slab.unrolled else plane.before[0],
    )


def _scaling(node: Node[DepthwiseConv2D], columns: SharedColumns) -> ShortScaling | None:
    """Return the requantization, whose bias removes the sums' constant; None if none is exact."""
    scales = convolution_scales(
        node.input(0).type, node.input(1).type, node.output.type, node.rounding
    )
    bias = bias_with_zero_point(node, 3)
    total_bias = (0 if bias is None else bias) + columns.first.starts + columns.last.starts
    requantization = Requantization.of(node, scales, node.op.activation, sums(node, 3))
    found = short_scaling(requantization, total_bias)
    return None if found is None else found.signed


def _triples(count: int, most: int) -> int:
    """Return the groups of three outputs per iteration: the largest divisor of `count`."""
    return max(i for i in range(1, most + 1) if count % i == 0)


def _word(pair: tuple[int | None, int | None], outside: int) -> str:
    """Return the C text of a word of two inputs."""
    lower, upper = pair
    first = f"{outside + LIFT}" if lower is None else f"x{lower}"
    if upper is None:
        return offset(first, LIFT * (lower is not None) + outside * 65536)
    return f"{first if lower is None else offset(first, LIFT)} + x{upper} * 65536"


@dataclass(frozen=True)
class SharedColumns:
    """Weights of the window's columns across the lines.

    Attributes:
        first: weights of each column's first two inputs.
        last: weights of each column's last two inputs.
    """

    first: PairedWeights
    last: PairedWeights

    @staticmethod
    def of(node: Node[DepthwiseConv2D], slab: LineSlab) -> SharedColumns:
        """Return the weights of a node; `first` gets what `last` cannot take of the middle one."""
        columns = np.moveaxis(node.input(1).array[0], 2, 0).astype(np.int64)
        if slab.plane.axis == 0:
            columns = columns.transpose(0, 2, 1)
        last = PairedWeights.of(columns[..., 1:]).kept
        rest = columns[..., 1] - last[..., 0]
        first = np.stack([columns[..., 0], rest], axis=-1)
        return SharedColumns(PairedWeights.of(first), PairedWeights.of(last))

    @property
    def repaired(self) -> Array:
        """bool `[o]`: whether an output channel has repairs."""
        return np.asarray([bool(repairs) for repairs in self.first.repairs])

    def rows(self, scaling: ShortScaling) -> Array:
        """Return int32 `[o, fields]`: weights, requantization, repairs."""
        # Move the bias to the end, since not all layers have one.
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

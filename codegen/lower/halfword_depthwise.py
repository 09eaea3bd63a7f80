"""int8 depthwise convolutions for cores without wide products: two products per multiplication.

As in `halfword_convolution`, a word packs the inputs of two pixels: here, those under the same tap
of the windows of two outputs that are adjacent along one axis. The kernel computes one channel
after another. It packs a slab (some lines) of the image into words in scratch. An assembly function
then moves the window over the slab. It reads the channel's weights and requantization from one row
of constants. It sums a *group* of two or three taps before it adds the sum to the totals, as
`halfword_convolution` does. A channel has groups of three taps if the magnitudes of the weights in
each group add up to at most 255.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.codegen.lower.depthwise_any_plane import AnyPlaneParameters, any_plane_pack
from smelt.codegen.lower.depthwise_cost import plane_cost
from smelt.codegen.lower.depthwise_numbers import LayerNumbers
from smelt.codegen.lower.depthwise_packing import PlanePacking, pack_function
from smelt.codegen.lower.depthwise_plane import Plane, input_channel, overwrites, plane_of
from smelt.codegen.lower.depthwise_walk import ANY_PLANE, EQUAL_PLANES, OWN, PlaneWalk
from smelt.codegen.lower.halfword_pairs import DepthwiseCore, pairs_function
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
    SharedBody,
)
from smelt.codegen.lower.output_slabs import OutputSlabs
from smelt.codegen.lower.products_32bit import SCRATCH_BYTES, scaling_of
from smelt.codegen.lower.requantization_32bit import ShortScaling
from smelt.codegen.lower.tap_groups import LARGEST_GROUP
from smelt.codegen.lower.window import Window
from smelt.codegen.text.expressions import offset, times
from smelt.ir import Array, DType, Node
from smelt.ops.core.convolution import DepthwiseConv2D

_LARGEST_WINDOW = 60
"""Largest number of taps whose weights, as words, an 8-bit immediate offset can reach."""


@dataclass(frozen=True)
class HalfwordDepthwiseParameters(Parameters):
    """Variables of `lower/halfword_depthwise.j2`; u is the axis of pairs.

    Attributes:
        title: What the function computes, for the comment.
        images: The loop over images.
        chooser: The index in a row of the constant that is nonzero if the first of two functions
            computes the channel; None if there is one function.
        fields: Words of a row.
        packing: The packing of inputs.
        loaded: The numbers that are fields of the layer's struct.
        scratch_words: Words of scratch.
        outputs: Output channels.
        channel: C of the input channel.
        target: Elements from an output to the next along u.
        slabs: The loop over slabs of outputs along u.
        rows: C of the rows that are packed for a slab.
        before: Padding before the image along u.
    """

    title: str
    images: ImageLoop
    chooser: int | None
    fields: int
    packing: PlanePacking
    loaded: tuple[str, ...]
    scratch_words: int
    outputs: int | str
    channel: str
    target: int | str
    slabs: OutputSlabs
    rows: int | str
    before: int


class HalfwordDepthwise(Kernel[DepthwiseConv2D]):
    """Depthwise convolutions whose lines of inputs fit into scratch, for the core in `_core`."""

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
            return Refusal(f"{name} has lines too long to pack into {SCRATCH_BYTES} bytes.")
        if refusal := _refuse_weights(node):
            return refusal
        scaling = scaling.signed if self._core.saturates else scaling
        channels = ChannelRows.of(node, plane, scaling, self._core, request)
        own = self._call(node, plane, scaling, channels, OWN)
        if request.target.is_riscv and request.optimize != "size":
            return own
        read = ANY_PLANE if request.optimize == "size" else EQUAL_PLANES
        shared = self._call(node, plane, scaling, channels, read)
        batch = node.output.type.shape[0]
        costs = (
            plane_cost(self._core, PlaneWalk(plane, n), scaling, channels.counts, batch)
            for n in (read, OWN)
        )
        return replace(own, shared=SharedBody(shared, *costs))

    def _call(
        self,
        node: Node[DepthwiseConv2D],
        plane: Plane,
        scaling: ShortScaling,
        channels: ChannelRows,
        read: int,
    ) -> KernelCall:
        """Return the call of a function that reads the first `read` numbers of `WALK`."""
        (height, width), shape = Window.of(node).kernel, node.output.type.shape
        planes, slabs = shape[0] * shape[3], -(-plane.outputs[0] // (2 * plane.pairs))
        count = -(-plane.outputs[0] // 2) * plane.outputs[1] * planes
        numbers, any_plane = LayerNumbers.of(node, plane, read), read == ANY_PLANE
        return KernelCall(
            template=f"lower/{'depthwise_any_plane' if any_plane else 'halfword_depthwise'}.j2",
            stem=f"depthwise_{height}x{width}",
            details=scaling.details,
            in_place=overwrites(node) if plane.whole else (),
            parameters=_parameters(node, channels, numbers),
            operands=(
                Input(0, "input"),
                Packed("channels", channels.rows),
                *numbers.struct,
                Scratch("words", DType.INT32, plane.words),
                Output(0, "output"),
            ),
            summary="two pixels at a time, two products in one multiplication",
            form=self._core.form,
            work={
                "products": count * plane.run * plane.lines,
                "lines": count * plane.lines,
                "outputs": count,
                "inputs": planes * plane.filled * plane.rows * slabs,
                "planes": planes * slabs,
                "calls": 1,
            },
            inner=(
                *(
                    pairs_function(self._core, numbers.walk, scaling, largest)
                    for largest in channels.groups
                ),
                any_plane_pack(_distance(plane, 0)) if any_plane else pack_function(numbers),
            ),
        )


def _refuse_window(node: Node[DepthwiseConv2D]) -> Refusal | None:
    """Return why a window is not supported, or None."""
    name, window = node.op.name, Window.of(node)
    if window.dilation != (1, 1):
        return Refusal(f"{name} in halfwords does not support dilation.")
    if window.taps > _LARGEST_WINDOW:
        return Refusal(f"{name} in halfwords supports at most {_LARGEST_WINDOW} taps.")
    return None


def _refuse_weights(node: Node[DepthwiseConv2D]) -> Refusal | None:
    """Return why weights are not supported, or None."""
    if np.abs(node.input(1).array.astype(np.int64)).max() > LARGEST_GROUP // 2:
        return Refusal(
            f"{node.op.name} has weights of -128: the sum of two products could exceed 16 bits."
        )
    return None


@dataclass(frozen=True)
class ChannelRows:
    """The constants of each channel.

    Attributes:
        rows: int32 `[o, fields]`: weights, requantization and, if there are two functions, whether
            the first one computes the channel.
        groups: The largest number of taps in a group, for each function.
    """

    rows: Array
    groups: tuple[int, ...]

    @property
    def counts(self) -> dict[int, int]:
        """The number of channels of each function, by its largest number of taps in a group."""
        if len(self.groups) == 1:
            return {self.groups[0]: len(self.rows)}
        first = int(np.count_nonzero(self.rows[:, -1]))
        return dict(zip(self.groups, (first, len(self.rows) - first), strict=True))

    @staticmethod
    def of(
        node: Node[DepthwiseConv2D],
        plane: Plane,
        scaling: ShortScaling,
        core: DepthwiseCore,
        request: Request,
    ) -> ChannelRows:
        """Return a node's constants: groups of three taps for channels whose sums fit 16 bits."""
        weights = np.moveaxis(node.input(1).array[0], 2, 0)
        # Weights are ordered by lines of taps, as the inputs in scratch are.
        if plane.axis != 1 - plane.inner:
            weights = weights.transpose(0, 2, 1)
        weights = weights.reshape(len(weights), -1).astype(np.int32)
        wide = _fits(weights, core.groups(plane, 3))
        if wide.all() or not wide.any() or request.optimize == "size":
            return ChannelRows(
                np.concatenate([weights, scaling.rows], axis=1), (3 if wide.all() else 2,)
            )
        return ChannelRows(np.column_stack([weights, scaling.rows, wide.astype(np.int32)]), (3, 2))


def _parameters(
    node: Node[DepthwiseConv2D], channels: ChannelRows, numbers: LayerNumbers
) -> HalfwordDepthwiseParameters | AnyPlaneParameters:
    plane, fields, window = numbers.walk.plane, channels.rows.shape[1], Window.of(node)
    if numbers.walk.read == ANY_PLANE:
        return AnyPlaneParameters(
            window="x".join(map(str, window.kernel)),
            images=Frame.of(node).images,
            fields=fields,
            channel=input_channel(node),
            reach=plane.taps[0],
            across=_distance(plane, 0),
            along=_distance(plane, 1),
        )
    slabs = OutputSlabs.of(plane.outputs[0], 2 * plane.pairs)
    return HalfwordDepthwiseParameters(
        title=f"Depthwise convolutions, {window.text}, with the numbers in `layer`."
        if numbers.struct
        else window.title(node),
        images=Frame.of(node).images,
        chooser=fields - 1 if len(channels.groups) > 1 else None,
        fields=fields,
        packing=PlanePacking.of(numbers),
        loaded=numbers.loaded(("planes", "outside", *(("across",) if slabs.several else ()))),
        scratch_words=plane.words,
        outputs=numbers.text("planes"),
        channel=input_channel(node),
        target=numbers.text("across"),
        slabs=slabs,
        rows=_packed_rows(plane, slabs),
        before=plane.before[0],
    )


def _distance(plane: Plane, axis: int) -> int | str:
    """Return C of the distance, in words, of neighbors along an axis: 0 for u, 1 for v."""
    return 1 if axis == plane.inner else "layer->pitch"


def _packed_rows(plane: Plane, slabs: OutputSlabs) -> int | str:
    """Return C of the rows that are packed for a slab."""
    if slabs.uneven:
        return offset(times("(count - 1) / 2", plane.period), plane.taps[0])
    return (int(slabs.count) - 1) // 2 * plane.period + plane.taps[0]


def _fits(weights: Array, groups: tuple[int, ...]) -> Array:
    """Return for each channel of `[o, k]` weights whether its groups' sums fit 16 bits."""
    starts = np.cumsum((0, *groups[:-1]))
    sums = np.add.reduceat(np.abs(weights.astype(np.int64)), starts, axis=1)
    return np.asarray((sums <= LARGEST_GROUP).all(axis=1))

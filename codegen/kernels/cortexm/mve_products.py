"""int8 convolutions and dense layers on Helium, as dot products (see `mve_tiles`).

Where the inputs of a pixel stand in a row - a window of one row, without padding - they are read
where they are. Otherwise the rows of the image under the window are kept in working memory, padded.
Chunks of sixteen channels are read from there; other windows are copied, each into one row. Images
too wide for that are cut into strips, many output channels into blocks; where neither comes out
even, the last one overlaps the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    Input,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.kernels.c.products import (
    bias_with_zero_point,
    folds,
    refuse_products,
    sums,
)
from smelt.codegen.kernels.c.requantization import Requantization
from smelt.codegen.kernels.c.store import offset
from smelt.codegen.kernels.cortexm.cores import HeliumKernel
from smelt.codegen.kernels.cortexm.mve_assembly import Body
from smelt.codegen.kernels.cortexm.mve_functions import (
    TileBlocks,
    TilesFunction,
    windows_assembly,
)
from smelt.codegen.kernels.cortexm.mve_plan import (
    Geometry,
    TileCall,
    TilePlan,
    plan_of,
    scratch_limit,
)
from smelt.codegen.kernels.cortexm.mve_scaling import HeliumScaling
from smelt.ir import DType, Node, Rounding
from smelt.ops.convolution import Conv2D, DepthwiseConv2D, Pair
from smelt.ops.fixed_point import convolution_scales
from smelt.ops.fully_connected import FullyConnected, fully_connected_scales
from smelt.targets import Target


def refuse(node: Node, target: Target, channel_axis: int) -> Refusal | None:
    """None where a node's products can be computed on Helium, else why not."""
    if node.rounding is Rounding.ONNX and "mve_float" not in target.features:
        return Refusal(f"{target.name} has no Helium for floats, which ONNX's rounding needs.")
    reason = refuse_products(node, channel_axis)
    if reason is not None:
        return Refusal(reason)
    if node.output.type.dtype is not DType.INT8 or not folds(node):
        return Refusal(
            f"{node.op.name} has a Helium kernel for i8 and constant, symmetric weights only."
        )
    return None


def scaling_of(
    node: Node[Conv2D | DepthwiseConv2D | FullyConnected], channel_axis: int
) -> HeliumScaling | Refusal:
    """How the node's sums are scaled, or why they cannot be."""
    op, x, weights, y = node.op, node.input(0).type, node.input(1).type, node.output.type
    scales = fully_connected_scales if isinstance(op, FullyConnected) else convolution_scales
    real = scales(x, weights, y, node.rounding)
    requantization = Requantization.of(node, real, op.activation, sums(node, channel_axis))
    bias = bias_with_zero_point(node, channel_axis)
    if bias is None:
        return Refusal(f"{op.name} has no quantized input.")
    found = HeliumScaling.of(requantization, bias)
    return Refusal(f"{op.name}: {found}") if isinstance(found, str) else found


@dataclass(frozen=True)
class RowCopies:
    """Copies of the last inputs, behind which vectors may end.

    Attributes:
        size: of the input.
        reach: bytes that are read for a group.
        inputs: bytes of a group.
    """

    size: int
    reach: int
    inputs: int


@dataclass(frozen=True)
class OutputRows:
    """Rows of outputs, where all are not one.

    Attributes:
        images, count: how many images, rows in each.
        output: outputs of a row.
        image, input: inputs from one image, one row to the next.
    """

    images: int
    count: int
    output: int
    image: int
    input: int


@dataclass(frozen=True)
class MveRowsParameters(Parameters):
    """Of `cortexm/mve_rows.j2`.

    Attributes:
        title: of the comment.
        tile: the function that computes groups of pixels.
        blocks: of output channels, where there are several.
        copies: of inputs, where they are needed.
        rows: of outputs, where there are several.
        calls: for the groups of a row.
    """

    title: str
    tile: TilesFunction
    blocks: TileBlocks | None
    copies: RowCopies | None
    rows: OutputRows | None
    calls: tuple[TileCall, ...]


def _rows(node: Node, plan: TilePlan, scaling: HeliumScaling) -> MveRowsParameters:
    g, t, size = plan.geometry, plan.tiles, node.input(0).type.size
    rows = OutputRows(
        images=g.images,
        count=g.output[0],
        output=g.output[1] * g.channels,
        image=g.size[0] * g.size[1] * g.depth,
        input=g.stride[0] * g.size[1] * g.depth,
    )
    several = g.images * g.output[0] > 1
    return MveRowsParameters(
        title=_title(node),
        tile=TilesFunction.of(t, scaling),
        blocks=TileBlocks.of(plan, scaling),
        copies=RowCopies(size, t.reach, t.inputs) if t.copies else None,
        rows=rows if several else None,
        calls=plan.calls("in" if several else "input", "output"),
    )


@dataclass(frozen=True)
class WindowCopies:
    """The function that copies windows.

    Attributes:
        body: its assembly.
        length: bytes of a window.
        segment: of a row of it.
        pitch: from one window to the next.
        row: of all windows of a row.
    """

    body: Body
    length: int
    segment: int
    pitch: int
    row: int


@dataclass(frozen=True)
class MveWindowsParameters(Parameters):
    """Of `cortexm/mve_windows.j2`.

    Attributes:
        title: of the comment.
        tile: the function that computes groups of pixels.
        blocks: of output channels, where there are several.
        windows: how they are copied, where they are.
        window_rows, stride: rows of a window, and from one to the next.
        size: height and width of an image.
        depth, channels: of input and output.
        images: how many there are.
        image_size, output_size: elements of an image.
        output_rows, output_row: rows of outputs, and elements of one.
        zero: what images are padded with.
        strips: the first output column of each.
        columns, width: of outputs in a strip, and of inputs.
        strip_row: bytes of a strip's row.
        top, side: C of the row and the column of the image at their start.
        several: rows of outputs whose windows are copied at a time, if more than one.
        calls: for the groups of a row.
    """

    title: str
    tile: TilesFunction
    blocks: TileBlocks | None
    windows: WindowCopies | None
    window_rows: int
    stride: int
    size: Pair
    depth: int
    channels: int
    images: int
    image_size: int
    output_size: int
    output_rows: int
    output_row: int
    zero: int
    strips: tuple[int, ...]
    columns: int | None
    width: int
    strip_row: int
    top: str
    side: str
    several: int | None
    calls: tuple[TileCall, ...]


def _windows(node: Node, plan: TilePlan, scaling: HeliumScaling) -> MveWindowsParameters:
    g, t = plan.geometry, plan.tiles
    windows = None
    if plan.rows:
        windows = WindowCopies(
            windows_assembly(plan).body, t.length, g.segment, g.pitch, plan.copied_row
        )
    return MveWindowsParameters(
        title=_title(node),
        tile=TilesFunction.of(t, scaling),
        blocks=TileBlocks.of(plan, scaling),
        windows=windows,
        window_rows=g.kernel[0],
        stride=g.stride[0],
        size=g.size,
        depth=g.depth,
        channels=g.channels,
        images=g.images,
        image_size=g.size[0] * g.size[1] * g.depth,
        output_size=g.output[0] * g.output[1] * g.channels,
        output_rows=g.output[0],
        output_row=g.output[1] * g.channels,
        zero=node.input(0).type.zero_point,
        strips=plan.strips,
        columns=plan.columns if plan.rows else None,
        width=g.width(plan.columns),
        strip_row=plan.row,
        top=offset("ready", -g.padding[0][0]),
        side=offset(f"strips[s] * {g.stride[1]}", -g.padding[1][0]),
        several=plan.rows if plan.rows > 1 else None,
        calls=plan.calls("", ""),
    )


def _title(node: Node) -> str:
    return f"{node.op.name}: {node.input(0).type} -> {node.output.type}"


class HeliumProducts(HeliumKernel[Conv2D | FullyConnected | DepthwiseConv2D]):
    """Dot products of rows of bytes.

    A depthwise convolution is one where all outputs see its only input channel.
    """

    op = Conv2D | FullyConnected | DepthwiseConv2D

    @override
    def offer(
        self, node: Node[Conv2D | FullyConnected | DepthwiseConv2D], request: Request
    ) -> KernelCall | Refusal:
        op, name, axis = node.op, node.op.name, 0
        if isinstance(op, DepthwiseConv2D):
            if node.input(0).type.shape[3] > 1:
                return Refusal(f"{name} is a convolution for one channel only.")
            axis = 3
        refusal = refuse(node, request.target, axis)
        if refusal is not None:
            return refusal
        if isinstance(op, Conv2D) and op.groups > 1:
            return Refusal(f"{name} has no Helium kernel for groups.")
        if isinstance(op, Conv2D | DepthwiseConv2D) and op.dilation != (1, 1):
            return Refusal(f"{name} has no Helium kernel for dilation.")
        scaling = scaling_of(node, axis)
        if isinstance(scaling, Refusal):
            return scaling
        limit = scratch_limit(node)
        plan = plan_of(Geometry.of(node), limit)
        if plan is None:
            return Refusal(
                f"{name} would need more than {limit} bytes of working memory on Helium."
            )
        return _call(node, plan, scaling, axis)


def _call(
    node: Node[Conv2D | FullyConnected | DepthwiseConv2D],
    plan: TilePlan,
    scaling: HeliumScaling,
    axis: int,
) -> KernelCall:
    g, t = plan.geometry, plan.tiles
    weights = np.zeros((g.channels, t.length), np.int8)
    plain = np.moveaxis(node.input(1).array, axis, 0).reshape(g.channels, -1)
    weights[:, : plain.shape[1]] = plain
    stem = "fully_connected"
    if not isinstance(node.op, FullyConnected):
        kind = "depthwise" if isinstance(node.op, DepthwiseConv2D) else "conv"
        stem = "{}_{}x{}".format(kind, *node.input(1).type.shape[1:3])
    starts = plan.blocks
    packed = [t.packed(weights[o : o + t.channels]) for o in starts]
    scales = [scaling.part(o, o + t.channels).constants(t.parts) for o in starts]
    return KernelCall(
        template=f"cortexm/mve_{'windows' if plan.padded else 'rows'}.j2",
        stem=stem,
        parameters=_windows(node, plan, scaling) if plan.padded else _rows(node, plan, scaling),
        operands=(
            Input(0, "input"),
            Packed("weights", np.concatenate(packed)),
            Packed("channels", np.concatenate(scales)),
            *plan.scratch,
            Output(0, "output"),
        ),
        summary=f"{t.pixels} pixel{'s' if t.pixels > 1 else ''} x {t.outputs} channels, "
        f"inputs from {_FROM[plan.form]}",
        form=f"mve_{plan.form}_{t.pixels}x{t.outputs}",
        work=plan.work,
        helpers=scaling.helpers,
    )


_FROM = {
    "row": "where they are",
    "window": "copies of windows",
    "image": "a few padded rows",
}


KERNELS = (HeliumProducts(),)

"""Variables of the templates for convolutions and dense layers on Helium."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.helium.convolution_plan import TileCall, TilePlan
from smelt.codegen.backends.helium.scaling import HeliumScaling
from smelt.codegen.backends.helium.tile_functions import TileBlocks, tile_sizes
from smelt.codegen.lower.kernel import Parameters
from smelt.codegen.lower.window import Window
from smelt.codegen.text.expressions import offset, times
from smelt.ir import Node
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected

_TileOp = Conv2D | FullyConnected | DepthwiseConv2D


@dataclass(frozen=True)
class OutputRows:
    """The loops over rows of outputs, if there is more than one row.

    Attributes:
        images: number of images.
        count: rows of an output image.
        output: elements of a row of outputs.
        image: elements of an input image.
        input: input elements from one row of windows to the next.
    """

    images: int
    count: int
    output: int
    image: int
    input: int


@dataclass(frozen=True)
class HeliumRowsParameters(Parameters):
    """Variables of `backends/helium/rows.j2`.

    Attributes:
        title: text of the function's comment.
        sizes: the layer's sizes.
        blocks: blocks of output channels; None if there is one block.
        size: elements of the input tensor, if its last inputs are copied because vector loads
            would read beyond its end; else None.
        depth: elements of a pixel's inputs, if `size` is given; else None.
        rows: the loops over rows of outputs; None if there is one row.
        calls: calls of the tile function for the groups of a row.
    """

    title: str
    sizes: tuple[tuple[str, int], ...]
    blocks: TileBlocks | None
    size: int | None
    depth: int | None
    rows: OutputRows | None
    calls: tuple[TileCall, ...]


def rows_parameters(
    node: Node[_TileOp], plan: TilePlan, scaling: HeliumScaling
) -> HeliumRowsParameters:
    """Return the variables for a plan that reads inputs in place."""
    g, t = plan.geometry, plan.tiles
    rows = OutputRows(
        images=g.images,
        count=g.output[0],
        output=g.output[1] * g.channels,
        image=g.size[0] * g.size[1] * g.depth,
        input=g.stride[0] * g.size[1] * g.depth,
    )
    several = g.images * g.output[0] > 1
    return HeliumRowsParameters(
        title=_title(node),
        sizes=tile_sizes(t, scaling),
        blocks=TileBlocks.of(plan, scaling),
        size=node.input(0).type.size if t.copies else None,
        depth=t.length if t.copies else None,
        rows=rows if several else None,
        calls=plan.calls("in" if several else "input", "output"),
    )


@dataclass(frozen=True)
class DirectStrips:
    """Strips that need no padding: the rows under their windows are read in place.

    Attributes:
        first: the first row under the windows of output row 0; negative if there is padding above.
        last_column: the last first column of such a strip.
        last_begin: the last element at which such a strip may begin, so that all that is read is in
            the image.
        columns, depth: columns and channels of the image.
        row: elements of a row of the image.
    """

    first: int
    last_column: int
    last_begin: int
    columns: int
    depth: int
    row: int

    @staticmethod
    def of(plan: TilePlan) -> DirectStrips | None:
        """Return these strips for a plan; None if it has none."""
        if not plan.reach:
            return None
        g = plan.geometry
        return DirectStrips(
            first=-g.padding[0][0],
            last_column=g.size[1] - g.width(plan.columns),
            last_begin=g.size[0] * g.size[1] * g.depth - plan.reach,
            columns=g.size[1],
            depth=g.depth,
            row=g.size[1] * g.depth,
        )


@dataclass(frozen=True)
class HeliumWindowsParameters(Parameters):
    """Variables of `backends/helium/windows.j2`.

    Attributes:
        title: text of the function's comment.
        sizes: the layer's sizes.
        pixels: pixels of a group.
        blocks: blocks of output channels; None if there is one block.
        copied_row: bytes of all copied windows of a row; 0 if they are read from the padded rows.
        window_rows: rows of a window.
        rows_below: rows of a window below the first; 0 if windows are copied.
        stride: vertical stride, in rows.
        channels: output channels.
        images: number of images; None if there is one.
        image_size: elements of an input image.
        output_size: elements of an output image.
        output_rows: rows of an output image.
        output_row: elements of a row of outputs.
        direct: strips whose rows are read in place; None if no strip is within the image.
        strips: the first output column of each strip; None if there is one.
        columns: output columns of a strip; None if windows are not copied.
        strip_row: bytes of a row of a strip in scratch.
        top: C text: the input row (in the unpadded image) of padded row `ready`.
        side: C text: the first input column of strip `s`.
        rows_at_once: output rows whose windows are copied at once; None if it is one row.
        calls: calls of the tile function for the groups of a row, or of `rows_at_once` rows.
    """

    title: str
    sizes: tuple[tuple[str, int], ...]
    pixels: int
    blocks: TileBlocks | None
    copied_row: int
    window_rows: int
    rows_below: int
    stride: int
    channels: int
    images: int | None
    image_size: int
    output_size: int
    output_rows: int
    output_row: int
    direct: DirectStrips | None
    strips: tuple[int, ...] | None
    columns: int | None
    strip_row: int
    top: str
    side: str
    rows_at_once: int | None
    calls: tuple[TileCall, ...]


def windows_parameters(
    node: Node[_TileOp], plan: TilePlan, scaling: HeliumScaling
) -> HeliumWindowsParameters:
    """Return the variables for a plan that keeps padded rows in scratch."""
    g, t = plan.geometry, plan.tiles
    several, left = len(plan.strips) > 1, str(-g.padding[1][0])
    return HeliumWindowsParameters(
        title=_title(node),
        sizes=tile_sizes(t, scaling),
        pixels=t.pixels,
        blocks=TileBlocks.of(plan, scaling),
        copied_row=plan.copied_row_bytes if plan.copied_rows else 0,
        window_rows=g.kernel[0],
        rows_below=0 if plan.copied_rows else g.kernel[0] - 1,
        stride=g.stride[0],
        channels=g.channels,
        images=g.images if g.images > 1 else None,
        image_size=g.size[0] * g.size[1] * g.depth,
        output_size=g.output[0] * g.output[1] * g.channels,
        output_rows=g.output[0],
        output_row=g.output[1] * g.channels,
        direct=DirectStrips.of(plan),
        strips=plan.strips if several else None,
        columns=plan.columns if plan.copied_rows else None,
        strip_row=plan.row_bytes,
        top=offset("ready", -g.padding[0][0]),
        side=offset(times("strips[s]", g.stride[1]), -g.padding[1][0]) if several else left,
        rows_at_once=plan.copied_rows if plan.copied_rows > 1 else None,
        calls=plan.calls("", ""),
    )


def _title(node: Node[_TileOp]) -> str:
    if isinstance(node.op, FullyConnected):
        return f"{node.op.name}: {node.input(0).type} -> {node.output.type}"
    return Window.of(node).title(node)

"""What the templates of convolutions and dense layers on Helium have of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.helium.assembly import AssemblyLines
from smelt.codegen.backends.helium.convolution_plan import TileCall, TilePlan
from smelt.codegen.backends.helium.scaling import HeliumScaling
from smelt.codegen.backends.helium.tile_functions import TileBlocks, TilesFunction, windows_assembly
from smelt.codegen.lower.kernel import Parameters
from smelt.codegen.text.expressions import offset, times
from smelt.ir import Node
from smelt.ops.core.convolution import Pair


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
class HeliumRowsParameters(Parameters):
    """Of `backends/helium/rows.j2`.

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


def rows_parameters(node: Node, plan: TilePlan, scaling: HeliumScaling) -> HeliumRowsParameters:
    """Those of a plan that reads inputs where they are."""
    g, t, size = plan.geometry, plan.tiles, node.input(0).type.size
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

    body: AssemblyLines
    length: int
    segment: int
    pitch: int
    row: int


@dataclass(frozen=True)
class HeliumWindowsParameters(Parameters):
    """Of `backends/helium/windows.j2`.

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


def windows_parameters(
    node: Node, plan: TilePlan, scaling: HeliumScaling
) -> HeliumWindowsParameters:
    """Those of a plan that keeps padded rows in working memory."""
    g, t = plan.geometry, plan.tiles
    windows = None
    if plan.rows:
        windows = WindowCopies(
            windows_assembly(plan).body, t.length, g.segment, g.pitch, plan.copied_row
        )
    return HeliumWindowsParameters(
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
        side=offset(times("strips[s]", g.stride[1]), -g.padding[1][0]),
        several=plan.rows if plan.rows > 1 else None,
        calls=plan.calls("", ""),
    )


def _title(node: Node) -> str:
    return f"{node.op.name}: {node.input(0).type} -> {node.output.type}"

"""What `lower/pool_walk.j2` has of a pool: from images to calls that pool pixels side by side."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.pooling import PoolAxis, Pooling


@dataclass(frozen=True)
class AxisClip:
    """Where windows begin and end along an axis of which some reach beyond the image.

    Attributes:
        stride: from one window to the next.
        before: pixels of the first one that lie before the image.
        window: its pixels.
        size: pixels of the image.
    """

    stride: int
    before: int
    window: int
    size: int

    @staticmethod
    def of(axis: PoolAxis) -> AxisClip | None:
        """That of an axis; None where all windows lie inside."""
        if not axis.clipped:
            return None
        return AxisClip(axis.stride, axis.before, axis.window, axis.size)


@dataclass(frozen=True)
class InsideWindows:
    """The windows of a row that lie inside: the first, how many, how many after the first."""

    first: int
    count: int
    more: int


@dataclass(frozen=True)
class PoolWalk:
    """Loops over the windows of images.

    Attributes:
        text: what is computed, for the comment.
        images: how many there are.
        image, output: elements of an image and of its output.
        single: whether a call pools a whole image.
        rows, columns: of windows.
        row: elements of a row of the image; `stride` is from one row of windows to the next.
        output_row: elements of a row of outputs.
        channels: of a pixel.
        clip_rows, clip_columns: where windows are clipped.
        inside: those that are not, where columns are.
        run, edge: C of the last arguments, for windows of whole rows and for others.
    """

    text: str
    images: int
    image: int
    output: int
    single: bool
    rows: int
    columns: int
    row: int
    stride: int
    output_row: int
    channels: int
    clip_rows: AxisClip | None
    clip_columns: AxisClip | None
    inside: InsideWindows | None
    run: str
    edge: str

    @staticmethod
    def of(p: Pooling) -> PoolWalk:
        """The loops of a pool."""
        rows, columns = p.rows, p.columns
        told = ", rows" if rows.clipped else ""
        scales = ", scales" if p.varies else ""
        if p.varies and rows.clipped:
            scales += f" + (rows - {rows.least}) * {2 * len(columns.kinds)}"
        if p.varies and columns.clipped:
            scales += f" + (columns - {columns.least}) * 2"
        inside = None
        if columns.clipped and columns.inside:
            inside = InsideWindows(columns.first, columns.inside, columns.inside - 1)
        output_row = columns.outputs * p.channels
        return PoolWalk(
            text=p.text,
            images=p.images,
            image=rows.size * p.row,
            output=rows.outputs * output_row,
            single=rows.outputs == 1 and not rows.clipped and not columns.clipped,
            rows=rows.outputs,
            columns=columns.outputs,
            row=p.row,
            stride=rows.stride * p.row,
            output_row=output_row,
            channels=p.channels,
            clip_rows=AxisClip.of(rows),
            clip_columns=AxisClip.of(columns),
            inside=inside,
            run=told + scales,
            edge=f"{told}, columns{scales}" if columns.clipped else "",
        )

"""Parameters of `lower/pool_walk.j2`: loops over images and windows around a pooling function."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.pooling import PoolAxis, Pooling


@dataclass(frozen=True)
class AxisClip:
    """Windows along an axis where some extend beyond the image.

    Attributes:
        stride: Pixels from one window to the next.
        before: Pixels of the first window that are before the image.
        window: Pixels of a window.
        size: Pixels of the image.
    """

    stride: int
    before: int
    window: int
    size: int

    @staticmethod
    def of(axis: PoolAxis) -> AxisClip | None:
        """Return the clipping of an axis; None if all windows are inside the image."""
        if not axis.clipped:
            return None
        return AxisClip(axis.stride, axis.before, axis.window, axis.size)


@dataclass(frozen=True)
class InsideWindows:
    """The windows of a row that are inside the image.

    Attributes:
        first: The index of the first one.
        count: The number of windows.
        more: The number of windows after the first.
    """

    first: int
    count: int
    more: int


@dataclass(frozen=True)
class PoolWalk:
    """Loops over the windows of images.

    Attributes:
        text: The operator, types and window, for the comment.
        images: Number of images.
        image, output: Elements of an image and of its output.
        single: Whether one call pools a whole image.
        rows, columns: Numbers of windows.
        row: Elements of a row of the image.
        stride: Elements from one row of windows to the next.
        output_row: Elements of a row of outputs.
        channels: Channels of a pixel.
        clip_rows, clip_columns: The clipping of windows, or None.
        inside: The windows that are not clipped, if columns are clipped.
        run, edge: C of the last arguments, for windows of full rows and for clipped ones.
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
        """Return the loops of a pooling."""
        rows, columns = p.rows, p.columns
        rows_argument = ", rows" if rows.clipped else ""
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
            run=rows_argument + scales,
            edge=f"{rows_argument}, columns{scales}" if columns.clipped else "",
        )

"""The points of `smelt explore` as a table and as a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.cli.show.tables import TextTable
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render
from smelt.proof.explore import Measure, MemoryPoint

_HEADINGS: dict[Measure, str] = {
    "instructions": "instructions",
    "seconds": "milliseconds",
    "estimated_cycles": "cycles (estimate)",
}

_WIDTH, _HEIGHT = 800, 470
_LEFT, _RIGHT = 30, 730
"""Size of the drawing, and the edges of its plots, in pixels."""
_COST, _FLASH = (50, 270), (340, 410)
"""First and last row of the two plots."""


def table(points: Sequence[MemoryPoint]) -> TextTable:
    """Return the points as a table; ratios are to the fastest one, which is the last."""
    fastest = points[-1]
    measured = fastest.flash is not None
    rows = tuple(
        (
            point.ram,
            f"{point.ram / max(fastest.ram, 1):.2f}",
            _cost(point),
            _ratio(point, fastest),
            *((point.flash, _known(point.stack)) if measured else (point.weights,)),
            f"{point.banded} of {point.layers}",
            point.limit or "no limit",
        )
        for point in points
    )
    columns = (
        *("RAM", "RAM ratio", _HEADINGS[fastest.measure], "ratio"),
        *(("flash", "stack") if measured else ("weights",)),
        *("layers in bands", "chosen by"),
    )
    return TextTable(columns, rows)


def _cost(point: MemoryPoint) -> object:
    return f"{1e3 * point.seconds:.4g}" if point.seconds is not None else _known(point.cost)


def _known(figure: object) -> object:
    return "-" if figure is None else figure


def _ratio(point: MemoryPoint, fastest: MemoryPoint) -> str:
    if point.cost is None or not fastest.cost:
        return "-"
    return f"{point.cost / fastest.cost:.3f}"


@dataclass(frozen=True)
class Dot:
    """A point of a plot in pixels, its label, and its RAM."""

    x: float
    y: float
    text: str
    ram: str


@dataclass(frozen=True)
class Plot:
    """A part of the drawing, between two of its rows; `line` goes through the dots."""

    title: str
    top: int
    bottom: int
    dots: tuple[Dot, ...]

    @property
    def line(self) -> str:
        """Return the coordinates of the line through the dots."""
        return " ".join(f"{dot.x},{dot.y}" for dot in self.dots)


@dataclass(frozen=True)
class DrawingParameters(Parameters):
    """Variables of `report/explore.svg.j2`; lengths are in pixels.

    Attributes:
        title: what the drawing shows.
        width, height: size of the drawing.
        left, right: edges of the plots.
        plots: the plots, from top to bottom.
    """

    title: str
    width: int
    height: int
    left: int
    right: int
    plots: tuple[Plot, ...]


def drawing(points: Sequence[MemoryPoint]) -> str:
    """Return an SVG with RAM to the right; above, cost upwards, and below, flash upwards."""
    fastest = points[-1]
    heading = _HEADINGS[fastest.measure]
    costs = [point.cost or 0 for point in points]
    ratios = [_ratio(point, fastest) for point in points]
    stored = [point.weights if point.flash is None else point.flash for point in points]
    what = "bytes of constants" if fastest.flash is None else "bytes of flash: code and constants"
    parameters = DrawingParameters(
        title=f"RAM, {heading} of an inference, and {what}",
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        plots=(
            _plot(f"{heading}, relative to the fastest", _COST, points, costs, ratios),
            _plot(what, _FLASH, points, stored, [f"{count:,}" for count in stored]),
        ),
    )
    return render("report/explore.svg.j2", parameters)


def _plot(
    title: str,
    rows: tuple[int, int],
    points: Sequence[MemoryPoint],
    heights: Sequence[float],
    texts: Sequence[str],
) -> Plot:
    """Return a plot of heights over RAM; both axes begin at zero."""
    top, bottom = rows
    greatest = max(heights) or 1
    most = points[-1].ram or 1
    dots = tuple(
        Dot(
            x=round(_LEFT + point.ram / most * (_RIGHT - _LEFT), 1),
            y=round(bottom - height / greatest * (bottom - top), 1),
            text=text,
            ram=f"{point.ram:,}",
        )
        for point, height, text in zip(points, heights, texts, strict=True)
    )
    return Plot(title, top, bottom, dots)

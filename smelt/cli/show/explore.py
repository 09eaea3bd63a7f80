"""The points of `smelt explore` as a table and as a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.api.explore import MemoryPoint
from smelt.cli.show.tables import TextTable
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 610, 50, 300
"""Size of the drawing, and the edges of its plot, in pixels."""


def table(points: Sequence[MemoryPoint]) -> TextTable:
    """Return the points as a table; ratios are to the fastest one, which is the last."""
    fastest = points[-1]
    rows = tuple(
        (
            point.ram,
            f"{point.ram / max(fastest.ram, 1):.2f}",
            "-" if point.cycles is None else point.cycles,
            _ratio(point, fastest),
            f"{point.banded} of {point.layers}",
            point.weights,
        )
        for point in points
    )
    columns = (
        *("RAM", "RAM ratio", "cycles (estimate)", "cycle ratio"),
        *("layers in bands", "weights"),
    )
    return TextTable(columns, rows)


def _ratio(point: MemoryPoint, fastest: MemoryPoint) -> str:
    if point.cycles is None or not fastest.cycles:
        return "-"
    return f"{point.cycles / fastest.cycles:.3f}"


@dataclass(frozen=True)
class Dot:
    """A point of the drawing in pixels, and its labels."""

    x: float
    y: float
    ram: str
    ratio: str


@dataclass(frozen=True)
class DrawingParameters(Parameters):
    """Variables of `report/explore.svg.j2`; lengths are in pixels.

    Attributes:
        width, height: Size of the drawing.
        left, right, top, bottom: Edges of the plot.
        dots: The points.
        line: The coordinates of the line through them.
    """

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    dots: tuple[Dot, ...]
    line: str


def drawing(points: Sequence[MemoryPoint]) -> str:
    """Return an SVG with RAM to the right and cycles upwards."""
    fastest = points[-1]
    cycles = [point.cycles or 0 for point in points]
    most, base = max(cycles), min(cycles)
    dots = tuple(
        Dot(
            _scaled(point.ram, 0, fastest.ram, _LEFT, _RIGHT),
            _scaled(count, base, most, _BOTTOM, _TOP),
            f"{point.ram:,}",
            _ratio(point, fastest),
        )
        for point, count in zip(points, cycles, strict=True)
    )
    parameters = DrawingParameters(
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        top=_TOP,
        bottom=_BOTTOM,
        dots=dots,
        line=" ".join(f"{dot.x},{dot.y}" for dot in dots),
    )
    return render("report/explore.svg.j2", parameters)


def _scaled(value: int, low: int, high: int, start: int, end: int) -> float:
    """Return where a value between two others lies between two pixels."""
    part = (value - low) / (high - low) if high > low else 0.0
    return round(start + part * (end - start), 1)

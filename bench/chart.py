"""The chart of README.md as SVG: instructions and memory relative to TFLite Micro with CMSIS-NN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import random_weights
from bench.cortexm import IntegerInference
from bench.pages import render
from bench.tables import arena, flash, inferences, speed, title

WIDTH = 876
_LEFT = (168, 546)
"""Left ends of the bars of both panels, in pixels."""
_UNIT = 260
"""Pixels of a bar for a ratio of 1: as much as TFLite Micro."""
_TOP = 108
_ROW = 52
_BAR = 16
_GAP = 6
"""Pixels between a bar's end and its number."""
_NUMBER = 30
"""The width of a number, in pixels."""
_STEP = 19
"""Pixels from the top of a bar to that of the next one of the same network."""

NETWORKS = (
    ("kws", "keyword spotting"),
    ("vww", "person detection"),
    (random_weights.NAME, "no dead channels"),
    ("ic", "image classification"),
    ("ad", "anomaly detection"),
    ("sww", "wake word"),
)


@dataclass(frozen=True)
class Theme:
    """Colors of a chart: text, lines, and the bars of each series."""

    name: str
    text: str
    muted: str
    line: str
    bars: tuple[str, str, str, str]


THEMES = (
    Theme("light", "#1f2328", "#59636e", "#afb8c1", ("#0969da", "#80b4f5", "#1a7f5a", "#7fc8ad")),
    Theme("dark", "#e6edf3", "#9198a1", "#484f58", ("#4493f8", "#1f5fae", "#3fb68b", "#1f6e54")),
)


@dataclass(frozen=True)
class Bar:
    """A bar and the number to the right of it, in pixels; `series` selects the color."""

    x: int
    y: int
    width: float
    height: int
    series: int
    number: str
    number_x: float
    number_y: int


@dataclass(frozen=True)
class RowLabel:
    """A network's name, and its purpose in a second line; positions in pixels."""

    x: int
    y: int
    name: str
    detail: str
    detail_y: int


@dataclass(frozen=True)
class LegendEntry:
    """A square in the color of a series, and the series' name; positions in pixels."""

    x: int
    y: int
    series: int
    text: str
    text_x: int
    text_y: int


@dataclass(frozen=True)
class Panel:
    """One of the two panels: its heading, its legend, and the line at ratio 1."""

    x: int
    heading: str
    one_x: int
    top: int
    bottom: int
    legend: tuple[LegendEntry, ...]


@dataclass(frozen=True)
class ChartParameters:
    """Variables of the template `chart.svg.j2`."""

    theme: Theme
    width: int
    height: int
    panels: tuple[Panel, ...]
    labels: tuple[RowLabel, ...]
    bars: tuple[Bar, ...]


def chart(theme: Theme) -> str:
    """Return the chart as SVG, with the colors of a theme."""
    m4 = {row.network: row for row in inferences("m4").rows}
    m55 = {row.network: row for row in inferences("m55").rows}
    bottom = _TOP + _ROW * len(NETWORKS)
    parameters = ChartParameters(
        theme=theme,
        width=WIDTH,
        height=bottom + 44,
        panels=(
            _panel(0, "Instructions of one inference", ("Cortex-M4", "Cortex-M55"), bottom),
            _panel(1, "Memory on a Cortex-M4", ("flash", "RAM (arena)"), bottom),
        ),
        labels=tuple(_label(index) for index in range(len(NETWORKS))),
        bars=(
            *_bars(0, m4, speed),
            *_bars(1, m55, speed),
            *_bars(2, m4, flash),
            *_bars(3, m4, arena),
        ),
    )
    return render("chart.svg.j2", parameters)


def _panel(index: int, heading: str, series: Sequence[str], bottom: int) -> Panel:
    left = _LEFT[index]
    legend = tuple(
        LegendEntry(
            x=left + 110 * place,
            y=_TOP - 42,
            series=2 * index + place,
            text=text,
            text_x=left + 110 * place + 18,
            text_y=_TOP - 31,
        )
        for place, text in enumerate(series)
    )
    return Panel(left, heading, left + _UNIT, _TOP - 12, bottom, legend)


def _label(index: int) -> RowLabel:
    name, detail = NETWORKS[index]
    y = _TOP + _ROW * index + 14
    return RowLabel(_LEFT[0] - 12, y, title(name), detail, y + 16)


def _bars(
    series: int,
    rows: dict[str, IntegerInference],
    figure: Callable[[IntegerInference], float],
) -> list[Bar]:
    """Return the bars of one series; `figure` returns the ratio of each network."""
    left = _LEFT[series // 2]
    found: list[Bar] = []
    for index, (network, _) in enumerate(NETWORKS):
        part = figure(rows[network])
        y = _TOP + _ROW * index + _STEP * (series % 2)
        width = round(part * _UNIT, 1)
        found.append(
            Bar(
                x=left,
                y=y,
                width=width,
                height=_BAR,
                series=series,
                number=f"{part:.2f}",
                number_x=_number_x(left, width),
                number_y=y + 12,
            )
        )
    return found


def _number_x(left: int, width: float) -> float:
    """Return x of a bar's number: right of the line at ratio 1 if the number would cross it."""
    x, line = left + width + _GAP, left + _UNIT
    return line + _GAP if x - _GAP < line < x + _NUMBER else x

"""A drawing of the arena: time runs to the right, addresses upwards, a buffer is an area."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt.cli.show.tables import TextTable

_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 940, 40, 400
"""Edges of the plot, in pixels."""

_LETTER, _LINE = 6.5, 14
"""Width of a letter, and height of a line, in pixels: names that do not fit are omitted."""

_FEWEST_LETTERS = 4
_MOST_ARENAS = 2
"""A limit is drawn if it is at most this many times the arena."""


@dataclass(frozen=True)
class Area:
    """A buffer in the drawing.

    Attributes:
        kind: `scratch`, or `tensor` for all other buffers, including bands.
        outline: The path around its live bytes.
        title: Its name, size and place.
        label: The end of its name, as much as there is room for; empty if there is no room.
        x, y: The position of the label.
    """

    kind: str
    outline: str
    title: str
    label: str
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class MemoryPicture:
    """What `report/memory.svg.j2` draws; lengths are in pixels.

    Attributes:
        name: The arena: its memory is named if there are several arenas.
        left, right, top, bottom: The edges of the plot.
        areas: The buffers.
        calls, last: The number of slots of time, and the last one.
        bytes: The size of the arena.
        arena_y: The vertical position of the end of the arena.
        limit: The bytes that the memory has for the arena; None if there is no limit.
        limit_y: The vertical position of the limit; None if it is not drawn.
        peak: What runs when the most bytes are live.
        peak_x, peak_width, peak_height: A rectangle: the slot of the peak, up to the arena's end.
    """

    left: int = _LEFT
    right: int = _RIGHT
    top: int = _TOP
    bottom: int = _BOTTOM
    name: str
    areas: tuple[Area, ...]
    calls: int
    last: int
    bytes: int
    arena_y: float
    limit: int | None
    limit_y: float | None
    peak: str
    peak_x: float
    peak_width: float
    peak_height: float


@dataclass(frozen=True)
class _Scale:
    """Converts slots of time and bytes to pixels."""

    slots: int
    bytes: int

    def x(self, slot: int) -> float:
        return round(_LEFT + slot * (_RIGHT - _LEFT) / self.slots, 1)

    def y(self, byte: int) -> float:
        return round(_BOTTOM - byte * (_BOTTOM - _TOP) / self.bytes, 1)


def pictures(report: Mapping[str, Any]) -> tuple[MemoryPicture, ...]:
    """Return the drawings of a report's arenas; the main one is the first."""
    main = report["arena"]
    if not main["others"]:
        return (_picture(main, "the arena"),)
    return tuple(
        _picture(arena, f"the arena in memory {arena['memory']}")
        for arena in (main, *main["others"])
    )


def memories(report: Mapping[str, Any]) -> TextTable | None:
    """Return what each memory stores, or None if the board has one for each part of the network."""
    found = report["memories"]
    parts = Counter(part for memory in found for part in memory["holds"])
    if max(parts["arena"], parts["weights"]) <= 1:
        return None
    keys = ("wait_states", "arena", "state", "weights", "moved", "wait_cycles")
    rows = tuple((memory["name"], *(memory[key] for key in keys)) for memory in found)
    columns = ("memory", "wait states", "arena", "state", "weights", "bytes moved", "wait cycles")
    return TextTable(columns, rows)


def _picture(arena: Mapping[str, Any], name: str) -> MemoryPicture:
    size, limit, peak = arena["bytes"], arena["limit"], arena["peak"]
    slots = max((placed["end"] for placed in arena["map"]), default=1)
    drawn = limit if limit is not None and limit <= _MOST_ARENAS * size else None
    scale = _Scale(slots, max(size, drawn or 0))
    return MemoryPicture(
        name=name,
        areas=tuple(_area(placed, scale) for placed in arena["map"]),
        calls=slots,
        last=slots - 1,
        bytes=size,
        arena_y=scale.y(size),
        limit=limit,
        limit_y=None if drawn is None else scale.y(drawn),
        peak=peak["call"],
        peak_x=scale.x(peak["slot"]),
        peak_width=round((_RIGHT - _LEFT) / slots, 1),
        peak_height=round(_BOTTOM - scale.y(size), 1),
    )


def _area(placed: Mapping[str, Any], scale: _Scale) -> Area:
    """Return a buffer as an area, with a label if the largest of its rectangles has room."""
    whole = {"start": placed["start"], "end": placed["end"], "low": 0, "high": placed["size"]}
    spans = placed.get("spans") or [whole]
    first, last, bottom = placed["start"], placed["end"], placed["offset"]
    where = f"{placed['size']:,} bytes at {bottom:,}, calls {first} to {last - 1}"
    room = int((scale.x(last) - scale.x(first)) / _LETTER)
    height = scale.y(bottom) - scale.y(bottom + placed["size"])
    fits = room >= _FEWEST_LETTERS and height >= _LINE
    return Area(
        kind="scratch" if placed["scratch"] else "tensor",
        outline=" ".join(_outlines(spans, bottom, scale)),
        title=f"{placed['name']}: {where}",
        label=placed["name"][-room:] if fits else "",
        x=round((scale.x(first) + scale.x(last)) / 2, 1),
        y=round(scale.y(bottom) - height / 2, 1),
    )


def _outlines(spans: Sequence[Mapping[str, int]], offset: int, scale: _Scale) -> Iterator[str]:
    """Yield a path around each run of consecutive spans: along their tops, back along bottoms."""
    run: list[Mapping[str, int]] = []
    for span in spans:
        if run and run[-1]["end"] != span["start"]:
            yield _outline(run, offset, scale)
            run = []
        run.append(span)
    yield _outline(run, offset, scale)


def _outline(run: Sequence[Mapping[str, int]], offset: int, scale: _Scale) -> str:
    tops = [f"V{scale.y(offset + s['high'])}H{scale.x(s['end'])}" for s in run]
    bottoms = [f"V{scale.y(offset + s['low'])}H{scale.x(s['start'])}" for s in reversed(run)]
    start = f"M{scale.x(run[0]['start'])},{scale.y(offset + run[0]['low'])}"
    return f"{start}{''.join(tops)}{''.join(bottoms)}Z"

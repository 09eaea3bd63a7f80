"""Search in the order of time for a layout within a given number of bytes.

Buffers are placed in the order in which they begin. Each may lie at both ends of every gap between
the buffers that are live then. All layouts of the live buffers that are possible so far are kept
(a beam search): layouts that differ only in buffers that have ended are the same. This finds what
first fit does not: where a buffer must leave space below itself for one that begins later.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from smelt.codegen.arena.conflict import Arena, align_down, align_up
from smelt.codegen.arena.first_fit import PlacementConstraint

_WIDTH = 32
"""Largest number of layouts that are kept. The most compact ones are kept."""


@dataclass(frozen=True, slots=True)
class _PartialLayout:
    """Offsets of the live buffers, and the layout that the last one was added to."""

    live: dict[int, int]
    buffer: int = -1
    offset: int = 0
    before: "_PartialLayout | None" = None


def layout_within(
    arena: Arena, links: list[list[PlacementConstraint]], limit: int
) -> list[int] | None:
    """Return offsets that need at most `limit` bytes, or None if none are found.

    Args:
        arena: The buffers.
        links: For each buffer, the constraints with buffers that it may share bytes with.
        limit: Bytes.
    """
    buffers = arena.buffers
    order = sorted(range(len(buffers)), key=lambda i: (buffers[i].start, -buffers[i].size))
    layouts = [_PartialLayout({})]
    for i in order:
        if not buffers[i].size:
            continue
        found: dict[tuple[tuple[int, int], ...], _PartialLayout] = {}
        for layout in layouts:
            live = {j: at for j, at in layout.live.items() if buffers[j].end > buffers[i].start}
            for offset in _possible(arena, links, live, i, limit):
                extended = {**live, i: offset}
                found.setdefault(
                    tuple(extended.items()), _PartialLayout(extended, i, offset, layout)
                )
        layouts = sorted(found.values(), key=lambda x: _looseness(arena, x.live, limit))[:_WIDTH]
    if not layouts:
        return None
    offsets = [b.offset or 0 for b in buffers]
    layout: _PartialLayout | None = layouts[0]
    while layout is not None and layout.buffer >= 0:
        offsets[layout.buffer] = layout.offset
        layout = layout.before
    return offsets


def _looseness(arena: Arena, live: dict[int, int], limit: int) -> int:
    """Return how far the live buffers are from the ends of the memory, in bytes times bytes."""
    total = 0
    for i, offset in live.items():
        size = arena.buffers[i].size
        total += size * min(offset, limit - size - offset)
    return total


def _possible(
    arena: Arena,
    links: list[list[PlacementConstraint]],
    live: dict[int, int],
    i: int,
    limit: int,
) -> Iterator[int]:
    """Yield the offsets of buffer `i` at the ends of the gaps between the live buffers."""
    buffer = arena.buffers[i]
    size, alignment = buffer.size, buffer.alignment
    together = set(arena.apart[i])
    forbidden = [(at - size, at + arena.buffers[j].size) for j, at in live.items() if j in together]
    for link in links[i]:
        if link.other in live:
            base = live[link.other]
            forbidden += [(base + low, base + high) for low, high in link.gaps]
    if buffer.offset is not None:
        fixed = buffer.offset
        if not any(low < fixed < high for low, high in forbidden):
            yield fixed
        return
    lowest, top = 0, limit - size
    for low, high in (*sorted(forbidden), (top, top)):
        first, last = align_up(lowest, alignment), align_down(min(low, top), alignment)
        if first <= last:
            yield first
            if first < last:
                yield last
        lowest = max(lowest, high)

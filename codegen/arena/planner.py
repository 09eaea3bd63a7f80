"""The planner: assigns a memory and an offset to every buffer."""

from bisect import bisect_right
from collections.abc import Mapping

from smelt.codegen.arena.bound import lower_bound
from smelt.codegen.arena.conflict import Arena, make_arena
from smelt.codegen.arena.pack import Packing, pack
from smelt.codegen.arena.problem import Buffer, Memory, Problem
from smelt.codegen.arena.result import Effort, MemoryUse, Placement, Plan
from smelt.errors import UnsupportedError


def plan(problem: Problem) -> Plan:
    """Lay out all buffers of `problem`. Pure and deterministic.

    Buffers go to their preferred memory. If they exceed its size, the search moves as few bytes as
    it can to the next memory that the buffers allow. The plan may still need more than a memory
    has: call `require_fit` to check that.

    Raises:
        UnsupportedError: More buffers are live at the same time than can be planned.
    """
    _require_plannable(problem)
    home = _assign(problem)
    placements: dict[str, Placement] = {}
    uses: list[MemoryUse] = []
    layouts = checks = 0
    for memory in problem.memories:
        arena = _arena_of(problem, memory, home)
        packing = pack(arena)
        if memory.size is not None and packing.bytes > memory.size:
            packing = min(packing, pack(arena, enough=memory.size), key=lambda p: p.bytes)
        layouts += packing.effort.layouts
        checks += packing.effort.checks
        uses.append(
            MemoryUse(
                memory.name, packing.bytes, packing.lower_bound, packing.optimal, packing.peak_step
            )
        )
        for b, offset in zip(arena.buffers, packing.offsets, strict=True):
            placements[b.name] = Placement(
                name=b.name,
                memory=memory.name,
                offset=offset,
                size=b.size,
                start=b.start,
                end=b.end,
                spans=b.spans,
            )
    return Plan(
        placements=tuple(placements[b.name] for b in problem.buffers),
        memories=tuple(uses),
        spilled=tuple(b.name for b in problem.buffers if home[b.name] != b.memories[0]),
        steps=problem.steps,
        effort=Effort(layouts, checks),
    )


MOST_PAIRS = 4_000_000
"""Largest number of pairs of buffers that are live at the same time.

About 2,800 buffers at once make as many pairs. Planning these takes two or three seconds and some
hundred megabytes.
"""


def _require_plannable(problem: Problem) -> None:
    begins = sorted(b.start for b in problem.buffers if b.size)
    ends = sorted(b.end for b in problem.buffers if b.size)
    living = [i - bisect_right(ends, start) for i, start in enumerate(begins)]
    pairs = sum(living)
    if pairs > MOST_PAIRS:
        most = max(living)
        step = begins[living.index(most)]
        where = f" at {problem.steps[step]}" if step < len(problem.steps) else ""
        raise UnsupportedError(
            f"{most + 1:,} tensors and buffers are live at the same time{where}: {pairs:,} pairs "
            f"may not share memory, and Smelt plans at most {MOST_PAIRS:,}. Split the network, or "
            "join its many small tensors into larger ones."
        )


def _arena_of(problem: Problem, memory: Memory, home: Mapping[str, str]) -> Arena:
    buffers = [b for b in problem.buffers if home[b.name] == memory.name]
    return make_arena(buffers, problem.in_place)


def _assign(problem: Problem) -> dict[str, str]:
    """Return the memory of every buffer, by name."""
    home = {b.name: b.memories[0] for b in problem.buffers}
    moved: list[Buffer] = []
    settled: set[str] = set()
    while len(settled) < len(problem.memories):
        memory = next(m for m in problem.memories if m.name not in settled)
        buffer = _next_to_move(problem, memory, home)
        if buffer is None:
            settled.add(memory.name)
            continue
        home[buffer.name] = buffer.memories[buffer.memories.index(memory.name) + 1]
        settled.discard(home[buffer.name])
        moved.append(buffer)
    for buffer in sorted(dict.fromkeys(moved), key=lambda b: -b.size):
        _move_back(problem, buffer, home)
    return home


def _next_to_move(problem: Problem, memory: Memory, home: Mapping[str, str]) -> Buffer | None:
    """Return the buffer to move out of `memory`; None if all fit or none can move.

    This is the smallest buffer live at the peak that frees the missing bytes, or else the largest.
    """
    if memory.size is None:
        return None
    arena = _arena_of(problem, memory, home)
    movable = [
        b for b in arena.buffers if b.size and b.offset is None and b.memories[-1] != memory.name
    ]
    if not movable:
        return None
    needed, step = lower_bound(arena)
    at_peak = [b for b in movable if any(span.start <= step < span.end for span in b.live)]
    if needed <= memory.size or not at_peak:
        packing = pack(arena, enough=memory.size)
        needed = packing.bytes
        at_peak = at_peak or _high(movable, arena, packing)
    excess = needed - memory.size
    if excess <= 0:
        return None
    return min(at_peak, key=lambda b: (b.size < excess, b.size if b.size >= excess else -b.size))


def _high(movable: list[Buffer], arena: Arena, packing: Packing) -> list[Buffer]:
    """Return the movable buffers that end highest, which are the ones that are hardest to place."""
    ends = {
        b.name: offset + b.size for b, offset in zip(arena.buffers, packing.offsets, strict=True)
    }
    top = max(ends[b.name] for b in movable)
    return [b for b in movable if ends[b.name] == top]


def _move_back(problem: Problem, buffer: Buffer, home: dict[str, str]) -> None:
    """Move `buffer` back to a preferred memory if it fits there after all."""
    for name in buffer.memories[: buffer.memories.index(home[buffer.name])]:
        memory, before = problem.memory(name), home[buffer.name]
        home[buffer.name] = name
        arena = _arena_of(problem, memory, home)
        if memory.size is None or pack(arena, enough=memory.size).bytes <= memory.size:
            return
        home[buffer.name] = before

"""The planner: assigns an offset to every buffer."""

from bisect import bisect_right
from math import inf

from smelt.codegen.arena.conflict import make_arena
from smelt.codegen.arena.pack import Packing, pack
from smelt.codegen.arena.problem import Problem
from smelt.codegen.arena.result import Effort, MemoryUse, Placement, Plan
from smelt.errors import UnsupportedError


def plan(problem: Problem, most: float = inf) -> Plan:
    """Lay out all buffers of `problem`. Pure and deterministic.

    The plan may need more than a memory has: call `require_fit` to check that.

    Args:
        problem: The buffers and memories.
        most: A plan is of no use if a memory needs more bytes. Then the search is given up early.

    Raises:
        UnsupportedError: More buffers are live at the same time than can be planned.
    """
    _require_plannable(problem)
    placements: dict[str, Placement] = {}
    uses: list[MemoryUse] = []
    layouts = checks = 0
    for memory in problem.memories:
        buffers = [b for b in problem.buffers if b.memory == memory.name]
        arena = make_arena(buffers, problem.in_place)
        packing = pack(arena, most=most)
        size = packing.bytes if memory.size is None or packing.given_up else memory.size
        if packing.lower_bound <= size < packing.bytes:
            packing = min(packing, pack(arena, enough=size, most=most), key=_bytes)
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
        steps=problem.steps,
        effort=Effort(layouts, checks),
    )


def _bytes(packing: Packing) -> int:
    return packing.bytes


MOST_PAIRS = 8_000_000
"""Largest number of pairs of buffers that are live at the same time.

4,000 buffers at once make as many pairs. Planning these takes a few seconds and some hundred
megabytes.
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

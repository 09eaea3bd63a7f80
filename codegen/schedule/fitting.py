"""Kernels and segments that fit into an arena: for `--optimize ram`, boards and `--max-ram`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from smelt.codegen import arena
from smelt.codegen.lower.kernel import Scratch
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.schedule.schedule import ARENA, Schedule
from smelt.codegen.schedule.steps import Call, InBuffer
from smelt.codegen.segments.choose import SegmentSearch
from smelt.codegen.segments.turns import Turns
from smelt.ir import Node

Scheduling = Callable[[Partitioner, Sequence[Turns]], Schedule]
"""Returns the schedule with the kernels that a partitioner chooses, and with segments."""

_MOST_PLANS = 12
"""How many times segments are searched for and planned until they fit into a limit."""

_STEPS = 64
"""A limit that no segments fit into grows by this fraction of itself."""


@dataclass(frozen=True)
class Fitting:
    """A schedule with its plan.

    Attributes:
        schedule: The steps.
        plan: The offsets of their buffers.
        preferred: The same for the kernels that were preferred, if these do not fit.
    """

    schedule: Schedule
    plan: arena.Plan
    preferred: Fitting | None = None

    @property
    def bytes(self) -> int:
        """The size of the arena."""
        return self.plan.use(ARENA).bytes

    @property
    def cycles(self) -> int | None:
        """The estimated cycles of an inference; None if a step has no estimate."""
        cycles = [step.cycles for step in self.schedule.calls]
        return None if None in cycles else sum(filter(None, cycles))

    @property
    def constants(self) -> int:
        """The bytes of all constants."""
        return sum(array.nbytes for array in self.schedule.constants.values())

    def notes(self) -> Iterator[str]:
        """Yield what it costs that the preferred kernels do not fit."""
        if self.preferred is not None:
            ours, theirs = self.cycles, self.preferred.cycles
            more = ours / theirs - 1 if ours and theirs else 0
            costs = [f"an estimated {more:.1%} more cycles"] if more >= 0.001 else []
            copied = self.constants - self.preferred.constants
            costs += [f"{copied:,} more bytes of constants"] if copied > 0 else []
            cost = f": {' and '.join(costs)}" if costs else ""
            banded = sum(step.bands is not None for step in self.schedule.calls)
            rows = f", and {banded} layers computed a few rows at a time" if banded else ""
            yield (
                f"the preferred kernels need an arena of {self.preferred.bytes:,} bytes; others"
                f"{rows} need {self.bytes:,}{cost}"
            )

    def faster_than(self, other: Fitting) -> bool:
        """Return whether both have estimates and this one takes fewer cycles."""
        ours, theirs = self.cycles, other.cycles
        return ours is not None and theirs is not None and ours < theirs

    def highest(self, slots: range) -> int:
        """Return the end of the highest buffer that is live in some slots, in bytes."""
        return max(
            placed.offset + placed.size
            for placed in self.plan.placements
            if placed.memory == ARENA and placed.start < slots.stop and slots.start < placed.end
        )


def kernels_that_fit(
    scheduled: Scheduling, partitioner: Partitioner, search: SegmentSearch | None
) -> Fitting:
    """Return the preferred kernels if they fit into the memory of the arena, else others that fit.

    If none fit, the result has the smallest arena, which is too large.

    Args:
        scheduled: Makes schedules.
        partitioner: Chooses the preferred kernels.
        search: Finds segments; None if the graph can have none.
    """
    preferred = _fitting(scheduled, partitioner)
    limit = preferred.schedule.problem.memory(ARENA).size
    if limit is None or preferred.bytes <= limit:
        return preferred
    return replace(_within(scheduled, partitioner, search, limit), preferred=preferred)


def kernels_for_smallest_arena(
    scheduled: Scheduling, partitioner: Partitioner, search: SegmentSearch | None
) -> Fitting:
    """Return the fastest of the kernels and segments that fit into the smallest arena."""
    return _within(scheduled, partitioner, search, 0)


def _within(
    scheduled: Scheduling, partitioner: Partitioner, search: SegmentSearch | None, limit: int
) -> Fitting:
    """Return kernels, in segments if need be, that fit into `limit` bytes or the smallest arena.

    If whole tensors fit too, the result is what takes fewer cycles. The search may find nothing for
    a limit although it does for a smaller one: then limits from the smallest on are tried.
    """
    whole = _kernels_within(scheduled, partitioner, limit)
    if search is None:
        return whole
    if limit >= search.smallest():
        banded = _segments_within(scheduled, partitioner, search, limit)
        if whole.bytes <= limit:
            return whole if banded is None or not banded.faster_than(whole) else banded
        if banded is not None:
            return banded
    budget = search.smallest()
    while budget < whole.bytes:
        banded = _segments_within(scheduled, partitioner, search, budget)
        if banded is not None:
            return banded
        budget += max(budget // _STEPS, 1)
    return whole


def _segments_within(
    scheduled: Scheduling, partitioner: Partitioner, search: SegmentSearch, limit: int
) -> Fitting | None:
    """Return the fastest segments that fit into `limit` bytes, or None if none were found.

    The search does not know the gaps between buffers. It is told which segments need more memory
    than it expected, and searches again.
    """
    for _ in range(_MOST_PLANS):
        parts = search.fastest(limit)
        if parts is None or not parts.segments:
            return None
        for moving in (False, True):
            segments = parts.turns(search.nodes, moving=moving)
            limited = replace(partitioner.limited(), scratch_limits=parts.scratch(segments))
            found = _fitting(scheduled, limited, segments)
            if found.bytes <= limit:
                return found
        actions = found.schedule.segments
        needed = [found.highest(action.slots) for action in actions]
        if max(needed) <= limit:
            return None
        for part, bytes_ in zip(parts.segments, needed, strict=True):
            if bytes_ > limit:
                search.require(part, bytes_)
    return None


def _kernels_within(scheduled: Scheduling, partitioner: Partitioner, limit: int) -> Fitting:
    """Return kernels that fit into an arena of `limit` bytes, or into the smallest if it is larger.

    The smallest arena results if every call takes the least scratch. In that plan, some bytes hold
    no tensor while a call runs: the call may then take as much scratch. If the new plan is too
    large, because it has gaps, calls that run while a buffer lies beyond the limit take the least
    scratch again, until a plan fits.
    """
    partitioner = partitioner.limited()
    smallest = _fitting(scheduled, partitioner)
    alignment = smallest.schedule.problem.memory(ARENA).alignment
    most = max(limit // alignment * alignment, smallest.bytes)
    limits: dict[Node, int] = _free_bytes(smallest, most)
    while limits:
        found = _fitting(scheduled, replace(partitioner, scratch_limits=limits))
        if found.bytes <= most:
            return found
        placements = found.plan.placements
        beyond = [p for p in placements if p.memory == ARENA and p.offset + p.size > most]
        slots = {slot for p in beyond for slot in range(p.start, p.end)}
        running = {call.node for call in found.schedule.calls if call.slot in slots}
        if running.isdisjoint(limits):
            break
        limits = {node: limit for node, limit in limits.items() if node not in running}
    return smallest


def _fitting(
    scheduled: Scheduling, partitioner: Partitioner, segments: Sequence[Turns] = ()
) -> Fitting:
    schedule = scheduled(partitioner, segments)
    return Fitting(schedule, arena.plan(schedule.problem))


def _free_bytes(found: Fitting, most: int) -> dict[Node, int]:
    """Return the bytes in an arena of `most` bytes that hold no tensor while a call runs."""
    free: dict[Node, int] = {}
    for call in found.schedule.calls:
        scratch = _scratch(call)
        taken = end = 0
        for placed in found.plan.live(ARENA, call.slot):
            if placed.name not in scratch:
                top = placed.offset + placed.size
                taken += max(top - max(placed.offset, end), 0)
                end = max(end, top)
        free[call.node] = most - taken
    return {node: count for node, count in free.items() if count > 0}


def _scratch(call: Call) -> set[str]:
    """Return the names of the buffers that are scratch of a call."""
    calls = [(call.call, call.arguments)]
    if call.fallback is not None:
        calls.append((call.fallback.call, call.fallback.arguments))
    return {
        argument.buffer
        for kernel, arguments in calls
        for operand, argument in zip(kernel.operands, arguments, strict=True)
        if isinstance(operand, Scratch) and isinstance(argument, InBuffer)
    }

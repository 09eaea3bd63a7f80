"""Kernels whose buffers fit into an arena: for `--optimize ram`, boards and `--max-ram`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from smelt.codegen import arena
from smelt.codegen.lower.kernel import Scratch
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.schedule.schedule import ARENA, Schedule
from smelt.codegen.schedule.steps import Call, InBuffer
from smelt.ir import Node

Scheduling = Callable[[Partitioner], Schedule]
"""Returns the schedule with the kernels that a partitioner chooses."""


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
        cycles = [step.choice.taken.cycles for step in self.schedule.calls]
        return None if None in cycles else sum(filter(None, cycles))

    def notes(self) -> Iterator[str]:
        """Yield what it costs that the preferred kernels do not fit."""
        if self.preferred is not None:
            ours, theirs = self.cycles, self.preferred.cycles
            more = ours / theirs - 1 if ours and theirs else 0
            cost = f": an estimated {more:.1%} more cycles" if more >= 0.001 else ""
            yield (
                f"the preferred kernels need an arena of {self.preferred.bytes:,} bytes; others "
                f"are used that need {self.bytes:,}{cost}"
            )


def kernels_that_fit(scheduled: Scheduling, partitioner: Partitioner) -> Fitting:
    """Return the preferred kernels if they fit into the memory of the arena, else others that fit.

    If none fit, the result has the smallest arena, which is too large.
    """
    preferred = _fitting(scheduled, partitioner)
    limit = preferred.schedule.problem.memory(ARENA).size
    if limit is None or preferred.bytes <= limit:
        return preferred
    return replace(_kernels_within(scheduled, partitioner, limit), preferred=preferred)


def kernels_for_smallest_arena(scheduled: Scheduling, partitioner: Partitioner) -> Fitting:
    """Return the preferred ones of the kernels that fit into the smallest arena.

    The arena is the smallest if every call takes the least scratch.
    """
    return _kernels_within(scheduled, partitioner, 0)


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


def _fitting(scheduled: Scheduling, partitioner: Partitioner) -> Fitting:
    schedule = scheduled(partitioner)
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

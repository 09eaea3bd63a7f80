"""The fastest steps whose buffers fit into the smallest arena: `--optimize ram`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from smelt.codegen import arena
from smelt.codegen.lower.kernel import Scratch
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.schedule.schedule import ARENA, Schedule
from smelt.codegen.schedule.steps import Call, InBuffer
from smelt.ir import Node


def fastest_in_smallest_arena(
    scheduled: Callable[[Partitioner], Schedule], partitioner: Partitioner
) -> Schedule:
    """Return the fastest schedule that needs no larger arena than the smallest one.

    First, every call takes the least scratch, which gives the smallest arena. Then, every call may
    take the bytes of that arena in which no tensor lies while it runs. If the plan of these calls
    is larger, calls that run while a buffer lies beyond the smallest arena take the least scratch
    again, until the plan is small enough.

    Args:
        scheduled: Returns the schedule with a partitioner's kernels.
        partitioner: A partitioner whose calls take the least scratch without `scratch_limits`.
    """
    smallest = scheduled(partitioner)
    plan = arena.plan(smallest.problem)
    most = plan.use(ARENA).bytes
    limits: dict[Node, int] = _free_bytes(smallest, plan)
    while limits:
        found = scheduled(replace(partitioner, scratch_limits=limits))
        plan = arena.plan(found.problem)
        if plan.use(ARENA).bytes <= most:
            return found
        beyond = [p for p in plan.placements if p.memory == ARENA and p.offset + p.size > most]
        slots = {slot for p in beyond for slot in range(p.start, p.end)}
        running = {call.node for call in found.calls if call.slot in slots}
        if running.isdisjoint(limits):
            break
        limits = {node: limit for node, limit in limits.items() if node not in running}
    return smallest


def _free_bytes(scheduled: Schedule, plan: arena.Plan) -> dict[Node, int]:
    """Return the bytes of the arena in which no tensor lies while a call runs, if there are any."""
    free: dict[Node, int] = {}
    for call in scheduled.calls:
        scratch = _scratch(call)
        taken = end = 0
        for placed in plan.live(ARENA, call.slot):
            if placed.name not in scratch:
                top = placed.offset + placed.size
                taken += max(top - max(placed.offset, end), 0)
                end = max(end, top)
        free[call.node] = plan.use(ARENA).bytes - taken
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

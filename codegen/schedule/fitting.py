"""Kernels and segments that fit into an arena, or that make it smaller at little cost."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from math import inf

from smelt.codegen import arena
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.schedule.schedule import ARENA, Schedule
from smelt.codegen.segments.choose import SegmentSearch
from smelt.codegen.segments.parts import GraphPart, Parts
from smelt.codegen.segments.turns import Turns
from smelt.ir import Node, Value

Scheduling = Callable[[Partitioner, Sequence[Turns]], Schedule]
"""Returns the schedule with the kernels that a partitioner chooses, and with segments."""

_MOST_PARTS = 8
"""Largest number of ways to cut a graph that are planned to find the fastest one that fits."""

_MOST_SLOWDOWN = 1.01
"""Where memory suffices, segments may take this many times the fewest cycles, to save memory."""

_SMALL = 4096
"""An arena of fewer bytes is left as it is then, because segments take more code."""

_LEAST_SAVED = 4
"""Segments must then save at least the bytes of the arena divided by this number."""

_MOST_TRIES = 3
"""Largest number of plans that are made to find such segments."""

_STEPS, _LARGEST = 64, 16
"""Budgets of live bytes for which parts are searched differ by `1 / _STEPS` to `1 / _LARGEST`."""

_MOST_EXCESS = 1.1
"""How far a plan may exceed a limit for other layouts of the same parts to be planned."""


@dataclass(frozen=True)
class Fitting:
    """A schedule with its plan.

    Attributes:
        schedule: The steps.
        plan: The offsets of their buffers.
        preferred: The schedule and plan with the preferred kernels, if others are used instead.
        searched: The bytes of the arenas of all different schedules that were planned.
    """

    schedule: Schedule
    plan: arena.Plan
    preferred: Fitting | None = None
    searched: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """The size of the arena."""
        return self.plan.use(ARENA).bytes

    @property
    def fits(self) -> bool:
        """Whether the arena is not larger than its memory."""
        limit = self.schedule.problem.memory(ARENA).size
        return limit is None or self.bytes <= limit

    @property
    def cycles(self) -> int | None:
        """The estimated cycles of an inference; None if a step has no estimate."""
        cycles = [step.cycles for step in self.schedule.calls]
        return None if None in cycles else sum(filter(None, cycles))

    @property
    def constants(self) -> int:
        """The bytes of all constants."""
        return sum(array.nbytes for array in self.schedule.constants.values())

    @property
    def slowdown(self) -> float:
        """The fraction of more cycles than the preferred kernels take; 0 if it is not known."""
        theirs = None if self.preferred is None else self.preferred.cycles
        return self.cycles / theirs - 1 if self.cycles and theirs else 0

    def notes(self) -> Iterator[str]:
        """Yield a note if the preferred kernels are not used: what the other kernels cost."""
        if self.preferred is not None:
            more = self.slowdown
            costs = [f"an estimated {more:.1%} more cycles"] if more >= 0.001 else []
            copied = self.constants - self.preferred.constants
            costs += [f"{copied:,} more bytes of constants"] if copied > 0 else []
            cost = f": {' and '.join(costs)}" if costs else ""
            banded = sum(step.bands is not None for step in self.schedule.calls)
            layers = f"{banded} layer{'s' if banded > 1 else ''} computed a few rows at a time"
            rows = f", with {layers}," if banded else ""
            kept = " (kept with a large --max-ram)" if self.preferred.fits else ""
            yield (
                f"the preferred kernels{kept} need an arena of {self.preferred.bytes:,} bytes; "
                f"other kernels{rows} need {self.bytes:,}{cost}"
            )

    def faster_than(self, other: Fitting) -> bool:
        """Return whether both have estimates and this one takes fewer cycles."""
        ours, theirs = self.cycles, other.cycles
        return ours is not None and theirs is not None and ours < theirs

    def better_than(self, other: Fitting) -> bool:
        """Return whether this one is faster, if both fit, or else whether this one fits better."""
        if self.fits and other.fits:
            return self.faster_than(other)
        return self.fits or (not other.fits and self.bytes <= other.bytes)

    def highest(self, slots: range) -> int:
        """Return the end of the highest buffer that is live in some slots, in bytes."""
        return max(
            placed.offset + placed.size
            for placed in self.plan.placements
            if placed.memory == ARENA and placed.start < slots.stop and slots.start < placed.end
        )


def fastest_kernels(scheduled: Scheduling, partitioner: Partitioner) -> Fitting:
    """Return the preferred kernels, whether they fit into the memory of the arena or not."""
    planner = _Planner(scheduled)
    return replace(planner.fit(partitioner), searched=planner.arenas)


def kernels_that_fit(
    scheduled: Scheduling,
    partitioner: Partitioner,
    search: SegmentSearch | None,
    *,
    frugal: bool,
) -> Fitting:
    """Return the preferred kernels if they fit into the memory of the arena, else others that fit.

    If none fit, the result has the smallest arena, which is too large.

    Args:
        scheduled: Makes schedules.
        partitioner: Chooses the preferred kernels.
        search: Finds segments; None if the graph can have none.
        frugal: Whether segments that save memory and are nearly as fast are used instead of
            preferred kernels that fit.
    """
    planner = _Planner(scheduled)
    if search is not None and search.streamed is not None:
        fastest = search.fastest_of_all
        parts = search.least_memory(fastest.cycles * _MOST_SLOWDOWN, fastest.limit)
        found = preferred = _best_layout(planner, search, parts or fastest)
    else:
        found = preferred = planner.fit(partitioner)
    limit = preferred.schedule.problem.memory(ARENA).size
    if limit is not None and not preferred.fits:
        found = replace(_within(planner, partitioner, search, limit), preferred=preferred)
    elif search is not None and frugal:
        found = _nearly_as_fast(planner, search, preferred)
    return replace(found, searched=planner.arenas)


def kernels_for_smallest_arena(
    scheduled: Scheduling, partitioner: Partitioner, search: SegmentSearch | None, free: int
) -> Fitting:
    """Return the fastest of the kernels and segments that fit into the smallest arena.

    The arena may have `free` bytes anyway, so that a smaller one is not searched for.
    """
    planner = _Planner(scheduled)
    found = _within(planner, partitioner, search, free)
    return replace(found, searched=planner.arenas)


class _Planner:
    """Plans schedules, those with equal buffers once.

    Attributes:
        found: All schedules with their plans.
    """

    def __init__(self, scheduled: Scheduling) -> None:
        self.found: list[Fitting] = []
        self._scheduled = scheduled
        self._plans: dict[arena.Problem, tuple[arena.Plan, float]] = {}
        self._limited: Partitioner | None = None

    def fit(
        self, partitioner: Partitioner, segments: Sequence[Turns] = (), most: float = inf
    ) -> Fitting:
        """Return the schedule with a partitioner's kernels, and its plan.

        A plan of more than `most` bytes is of no use: the search for it may be given up early.
        """
        schedule = self._scheduled(partitioner, segments)
        problem = schedule.problem
        plan, useful = self._plans.get(problem, (None, 0))
        if plan is None or useful < min(most, plan.use(ARENA).bytes):
            plan = arena.plan(problem, most)
            self._plans[problem] = plan, most
        self.found.append(Fitting(schedule, plan))
        return self.found[-1]

    def limited(self, partitioner: Partitioner, scratch: Mapping[Node, int]) -> Partitioner:
        """Return a partitioner restricted to scratch; the same one for equal limits in succession.

        It remembers its choices.
        """
        if self._limited is None or self._limited.scratch_limits != scratch:
            self._limited = replace(partitioner.limited(), scratch_limits=scratch)
        return self._limited

    @property
    def arenas(self) -> tuple[int, ...]:
        """The bytes of all arenas."""
        return tuple(plan.use(ARENA).bytes for plan, _ in self._plans.values())


def _nearly_as_fast(planner: _Planner, search: SegmentSearch, preferred: Fitting) -> Fitting:
    """Return segments with the smallest arena for at most 1 % more cycles than the preferred plan.

    Returns the preferred plan if segments save little memory, or take more constants than that. The
    estimates of the search do not include code that layers share, so other parts are tried if a
    plan takes more cycles than estimated.
    """
    fewest = preferred.cycles
    if fewest is None or search.streamed is not None or preferred.bytes < _SMALL:
        return preferred
    most = preferred.bytes - preferred.bytes // _LEAST_SAVED
    budget = slowest = fewest * _MOST_SLOWDOWN
    for _ in range(_MOST_TRIES):
        parts = search.least_memory(budget, most)
        if parts is None:
            break
        found = _best_layout(planner, search, parts)
        if found.cycles is None:
            break
        cycles = found.cycles + sum(part.overhead for part in parts.segments)
        if cycles <= slowest:
            more = found.constants - preferred.constants
            useful = found.bytes <= most and more <= preferred.bytes - found.bytes
            return replace(found, preferred=preferred) if useful else preferred
        budget *= slowest / cycles
    return preferred


def _within(
    planner: _Planner, partitioner: Partitioner, search: SegmentSearch | None, limit: int
) -> Fitting:
    """Return the fastest kernels, in segments if need be, that fit into `limit` bytes.

    If none fit, the result has the smallest arena.
    """
    whole = None
    if search is None or search.streamed is None:
        whole = _kernels_within(planner, partitioner, limit)
        if search is None:
            return whole
    found = _fastest_segments(planner, search, limit)
    if whole is not None and whole.bytes <= limit:
        return whole if found is None or not found.faster_than(whole) else found
    if found is None:
        smallest = _smallest_segments(planner, search)
        found = min(
            (fitting for fitting in planner.found if fitting.bytes <= limit),
            key=lambda fitting: fitting.cycles or 0,
            default=smallest if whole is None or smallest.bytes < whole.bytes else whole,
        )
    return found


def _fastest_segments(planner: _Planner, search: SegmentSearch, limit: int) -> Fitting | None:
    """Return the fastest segments that fit into `limit` bytes, or None if none were found.

    The search knows the live bytes of parts, but not the gaps between buffers. So the fastest parts
    for a budget may not fit. The next candidates are then the fastest parts for a smaller budget,
    and, for each segment that was too large, those for the same budget without it. Candidates are
    planned in the order of their estimated cycles.
    """
    candidates: list[tuple[float, int, int, AbstractSet[GraphPart], Parts]] = []
    seen, order = set[Hashable](), count()

    def add(budget: int, excluded: AbstractSet[GraphPart]) -> None:
        parts = search.fastest(budget, excluded)
        if parts is not None and parts.segments and parts.key not in seen:
            seen.add(parts.key)
            heappush(candidates, (parts.cycles, next(order), budget, excluded, parts))

    add(limit, frozenset())
    for _ in range(_MOST_PARTS):
        if not candidates:
            break
        _, _, budget, excluded, parts = heappop(candidates)
        found = _best_layout(planner, search, parts, limit)
        if found.bytes <= limit:
            return found
        less = max(min((found.bytes - limit) // 4, budget // _LARGEST), budget // _STEPS, 1)
        add(budget - less, excluded)
        for part in _larger(parts, found, limit):
            add(budget, excluded | {part})
    return _segments_for_less(planner, search, limit)


def _segments_for_less(planner: _Planner, search: SegmentSearch, limit: int) -> Fitting | None:
    """Return the fastest of the plans within `limit` bytes for some smaller budgets, or None.

    Bisection finds about the largest budget of live bytes for which the fastest parts fit.
    """
    best: Fitting | None = None
    low, high = 0, limit
    while high - low > max(limit // _STEPS, 1):
        budget = (low + high) // 2
        parts = search.fastest(budget)
        if parts is None:
            low = budget
            continue
        found = _best_layout(planner, search, parts, limit)
        if found.bytes > limit:
            high = budget
            continue
        low = budget
        if best is None or found.faster_than(best):
            best = found
    return best


def _smallest_segments(planner: _Planner, search: SegmentSearch) -> Fitting:
    """Return the segments with the smallest arena of all that were planned.

    The first parts are those with the fewest live bytes. Then larger budgets are tried as long as
    they are below the smallest arena. For each budget, segments that need as much as the smallest
    arena so far are replaced by others.
    """
    budget, best, found = search.smallest(), inf, list[Fitting]()
    excluded, seen = set[GraphPart](), set[Hashable]()
    while budget < best:
        for _ in range(_MOST_PARTS):
            parts = search.fastest(budget, excluded)
            if parts is None or parts.key in seen:
                break
            seen.add(parts.key)
            found.append(_best_layout(planner, search, parts, best=best))
            best = min(best, found[-1].bytes)
            excluded.update(_larger(parts, found[-1], best - 1))
        budget += max(budget // _STEPS, 1)
    return min(found, key=lambda fitting: (fitting.bytes, fitting.cycles or 0))


def _larger(parts: Parts, found: Fitting, limit: float) -> list[GraphPart]:
    """Return the segments of a plan that need more than `limit` bytes."""
    needed = [found.highest(action.slots) for action in found.schedule.segments]
    return [p for p, end in zip(parts.segments, needed, strict=True) if end > limit]


def _best_layout(
    planner: _Planner,
    search: SegmentSearch,
    parts: Parts,
    limit: float = inf,
    best: float = inf,
) -> Fitting:
    """Return the first layout of parts that fits into `limit` bytes, or else the smallest one.

    If there is no limit, a layout of more than `best` bytes is of no use.
    """
    found: list[Fitting] = []
    for layout in _layouts(planner, search, parts, limit, best):
        found.append(layout)
        if layout.bytes <= limit < inf:
            break
    return min(found, key=lambda fitting: fitting.bytes)


def _layouts(
    planner: _Planner,
    search: SegmentSearch,
    parts: Parts,
    limit: float,
    best: float,
) -> Iterator[Fitting]:
    """Yield plans of the same parts with different places of tensors and kept rows.

    In the first one, kept rows are spilled, which leaves one large gap. But then a call needs space
    for two copies of the kept rows of the bands that it uses. So in the second one, the bands of
    the call with the most live bytes are not spilled. In the third one, all kept rows stay in their
    bands; it is seldom the smallest, but may fit into a limit. If the first one is far too large,
    the others are left out. If there are several segments, the same follows with tensors that are
    moved between segments.
    """
    none: frozenset[Value] = frozenset()
    most = useful = min(limit, best)

    def planned(early: frozenset[Value], spilled: frozenset[Value], *, moving: bool) -> Fitting:
        nonlocal most
        turns = parts.turns(search.nodes, moving=moving, early=early, spilled=spilled)
        found = _planned(planner, search.partitioner, turns, parts, most)
        if limit == inf:
            most = min(most, found.bytes)
        return found

    for moving in (False,) if len(parts.segments) == 1 else (False, True):
        first = planned(none, parts.bands, moving=moving)
        yield first
        if first.bytes > useful * _MOST_EXCESS:
            continue
        peak = _bands_at_peak(first) & parts.bands
        if peak:
            yield planned(peak, parts.bands - peak, moving=moving)
        if limit < inf:
            yield planned(none, none, moving=moving)


def _planned(
    planner: _Planner,
    partitioner: Partitioner,
    segments: Sequence[Turns],
    parts: Parts,
    most: float,
) -> Fitting:
    """Return the schedule of segments with the fastest kernels that fit, and its plan."""
    limited = planner.limited(partitioner, parts.scratch(segments))

    def in_place(node: Node) -> bool:
        return (0, 0) in limited.choose(node).taken.call.in_place

    return planner.fit(limited, [turns.with_possible_chains(in_place) for turns in segments], most)


def _bands_at_peak(found: Fitting) -> frozenset[Value]:
    """Return the tensors of a segment that the call with the most live bytes reads and makes."""
    peak = found.plan.use(ARENA).peak_step
    for segment in found.schedule.segments:
        nodes = {layer.index: layer.node for layer in segment.layers}
        for call in segment.calls:
            if peak in call.slots:
                node = nodes[call.step]
                return frozenset(v for v in (*node.inputs, node.output) if v is not None)
    return frozenset()


def _kernels_within(planner: _Planner, partitioner: Partitioner, limit: int) -> Fitting:
    """Return kernels that fit into an arena of `limit` bytes, or into the smallest if it is larger.

    The smallest arena results if every call takes the least scratch. In that plan, some bytes hold
    no tensor while a call runs: the call may then take as much scratch. If the new plan is too
    large, because it has gaps, calls that run while a buffer lies beyond the limit take the least
    scratch again, until a plan fits.
    """
    partitioner = partitioner.limited()
    smallest = planner.fit(partitioner)
    alignment = smallest.schedule.problem.memory(ARENA).alignment
    most = max(limit // alignment * alignment, smallest.bytes)
    limits: dict[Node, int] = _free_bytes(smallest, most)
    while limits:
        found = planner.fit(replace(partitioner, scratch_limits=limits))
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


def _free_bytes(found: Fitting, most: int) -> dict[Node, int]:
    """Return the bytes in an arena of `most` bytes that hold no tensor while a call runs."""
    free: dict[Node, int] = {}
    for call in found.schedule.calls:
        scratch = call.scratch_buffers
        taken = end = 0
        for placed in found.plan.live(ARENA, call.slot):
            if placed.name not in scratch:
                top = placed.offset + placed.size
                taken += max(top - max(placed.offset, end), 0)
                end = max(end, top)
        free[call.node] = most - taken
    return {node: count for node, count in free.items() if count > 0}

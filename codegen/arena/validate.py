"""An independent check of a plan, which shares no code with the planner."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from smelt.codegen.arena.problem import Buffer, Problem
from smelt.codegen.arena.result import Placement, Plan
from smelt.errors import GraphError


def validate(problem: Problem, plan: Plan) -> None:
    """Raise GraphError unless `plan` is a legal layout of `problem`.

    Every buffer must be placed exactly once, aligned, inside the bytes that the plan claims for its
    memory. In no step may a byte be live in two buffers, unless the problem
    allows the two in place and they have the same offset. `require_fit` checks separately whether
    the memories are large enough.

    Raises:
        GraphError: The plan breaks one of these rules.
    """
    _check_complete(problem, plan)
    _check_memories(problem, plan)
    buffers = {b.name: b for b in problem.buffers}
    for placement in plan.placements:
        _check_placement(buffers[placement.name], placement, plan)
    allowed = {frozenset((pair.input, pair.output)) for pair in problem.in_place}
    for memory in problem.memories:
        spans = [span for p in plan.placements if p.memory == memory.name for span in _live(p)]
        for a, b in _crossing(spans):
            one, other = a.placement, b.placement
            if one.offset != other.offset or frozenset((one.name, other.name)) not in allowed:
                _fail(
                    f"{one.name!r} (live bytes {a.low} to {a.high}) and {other.name!r} (live bytes "
                    f"{b.low} to {b.high}) share bytes of memory {memory.name!r} at "
                    f"{plan.step_name(max(a.start, b.start))}, where both are live"
                )


class _Live(NamedTuple):
    """In the steps `start <= step < end`, a buffer has the live bytes [low, high) of its memory."""

    start: int
    end: int
    low: int
    high: int
    placement: Placement


def _live(placement: Placement) -> list[_Live]:
    at, whole = placement.offset, (placement.start, placement.end, 0, placement.size)
    spans = [(s.start, s.end, s.low, s.high) for s in placement.spans] or [whole]
    return [_Live(start, end, at + low, at + high, placement) for start, end, low, high in spans]


def _crossing(spans: Sequence[_Live]) -> Iterator[tuple[_Live, _Live]]:
    """Yield all pairs of spans that share a byte, where the second begins while the first lasts.

    One pass ordered by first step keeps only the spans that last: a long network has too many pairs
    to check them all.
    """
    live: list[_Live] = []
    for begun in sorted(spans, key=lambda span: span.start):
        if begun.low == begun.high:
            continue
        start, low, high = begun.start, begun.low, begun.high
        live = [span for span in live if span.end > start]
        for span in live:
            if span.low < high and low < span.high:
                yield span, begun
        live.append(begun)


def _check_complete(problem: Problem, plan: Plan) -> None:
    placed = Counter(p.name for p in plan.placements)
    for buffer in problem.buffers:
        if placed[buffer.name] != 1:
            _fail(f"buffer {buffer.name!r} is placed {placed[buffer.name]} times")
    if len(placed) != len(problem.buffers):
        unknown = sorted(set(placed) - {b.name for b in problem.buffers})
        _fail(f"has buffers that are not in the problem: {', '.join(unknown)}")


def _check_memories(problem: Problem, plan: Plan) -> None:
    names, expected = [u.name for u in plan.memories], [m.name for m in problem.memories]
    if names != expected:
        _fail(f"has memories {names}, but the problem has {expected}")
    for use in plan.memories:
        if use.lower_bound > use.bytes:
            _fail(
                f"memory {use.name!r}: {use.bytes} bytes are below the lower bound of "
                f"{use.lower_bound}"
            )
        if use.lower_bound == use.bytes and not use.optimal:
            _fail(
                f"memory {use.name!r}: {use.bytes} bytes equal the lower bound, but the plan is "
                f"not marked optimal"
            )


def _check_placement(buffer: Buffer, placement: Placement, plan: Plan) -> None:
    where = f"buffer {buffer.name!r}"
    told = (placement.size, placement.start, placement.end)
    asked = (buffer.size, buffer.start, buffer.end)
    if told != asked:
        _fail(f"{where}: size, start and end are {told} instead of {asked}")
    if placement.spans != buffer.spans:
        _fail(f"{where}: its spans are not those of the problem")
    if placement.memory != buffer.memory:
        _fail(f"{where}: is in memory {placement.memory!r} instead of {buffer.memory!r}")
    if placement.offset % buffer.alignment:
        _fail(f"{where}: offset {placement.offset} is not a multiple of {buffer.alignment}")
    end, size = placement.offset + placement.size, plan.use(placement.memory).bytes
    if placement.offset < 0 or end > size:
        _fail(
            f"{where}: bytes {placement.offset} to {end} are outside memory "
            f"{placement.memory!r} of {size} bytes"
        )
    if buffer.offset not in (None, placement.offset):
        _fail(f"{where}: is at {placement.offset}, but is fixed at {buffer.offset}")


def _fail(message: str) -> None:
    raise GraphError(f"arena plan: {message}")

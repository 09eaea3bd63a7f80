"""An independent check of a plan, which shares no code with the planner."""

from collections import Counter
from collections.abc import Iterator, Sequence

from smelt.codegen.arena.problem import Buffer, Overlap, Problem, WriteOrder
from smelt.codegen.arena.result import Placement, Plan
from smelt.errors import GraphError


def validate(problem: Problem, plan: Plan) -> None:
    """Raise GraphError unless `plan` is a legal layout of `problem`.

    Every buffer must be placed exactly once, aligned, inside the bytes that the plan claims for a
    memory that the buffer allows. Buffers that are live at the same time may share bytes only as an
    overlap allows. `require_fit` checks separately whether the memories are large enough.

    Raises:
        GraphError: The plan breaks one of these rules.
    """
    _check_complete(problem, plan)
    _check_memories(problem, plan)
    buffers = {b.name: b for b in problem.buffers}
    for placement in plan.placements:
        _check_placement(buffers[placement.name], placement, plan)
    overlaps = {(o.input, o.output): o for o in problem.overlaps}
    for a, b in _live_together(plan.placements):
        crossing = a.offset < b.offset + b.size and b.offset < a.offset + a.size
        if a.memory == b.memory and crossing and a.size and b.size:
            _check_shared(a, b, overlaps, plan)


def _live_together(placements: Sequence[Placement]) -> Iterator[tuple[Placement, Placement]]:
    """Yield all pairs of buffers where the second begins while the first is live.

    One pass ordered by first step keeps only the live buffers: a long network has too many pairs to
    check them all.
    """
    live: list[Placement] = []
    for begun in sorted(placements, key=lambda p: p.start):
        live = [p for p in live if p.end > begun.start]
        for other in live:
            yield other, begun
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
    if placement.memory not in buffer.memories:
        _fail(
            f"{where}: is in memory {placement.memory!r}, allowed are {', '.join(buffer.memories)}"
        )
    if placement.offset % buffer.alignment:
        _fail(f"{where}: offset {placement.offset} is not a multiple of {buffer.alignment}")
    end, size = placement.offset + placement.size, plan.use(placement.memory).bytes
    if placement.offset < 0 or end > size:
        _fail(
            f"{where}: bytes {placement.offset} to {end} are outside memory "
            f"{placement.memory!r} of {size} bytes"
        )
    pinned = (buffer.memories[0], buffer.offset)
    if buffer.offset is not None and (placement.memory, placement.offset) != pinned:
        _fail(
            f"{where}: is at {placement.offset} of {placement.memory!r}, but is fixed at "
            f"{buffer.offset} of {buffer.memories[0]!r}"
        )


def _check_shared(
    a: Placement, b: Placement, overlaps: dict[tuple[str, str], Overlap], plan: Plan
) -> None:
    steps = f"{plan.step_name(max(a.start, b.start))}"
    for x, y in ((a, b), (b, a)):
        overlap = overlaps.get((x.name, y.name))
        if overlap is None:
            continue
        delta = y.offset - x.offset
        if delta in overlap.deltas:
            return
        order = plan.write_orders.get(y.start)
        below, above = overlap.ascending, overlap.descending
        if order is WriteOrder.ASCENDING and below is not None and delta <= -below:
            return
        if order is WriteOrder.DESCENDING and above is not None and delta >= above:
            return
        _fail(
            f"{y.name!r} is {delta:+} bytes from its input {x.name!r} at {steps}, written "
            f"in {order or 'any'} order; allowed are {_describe(overlap)}"
        )
    _fail(
        f"{a.name!r} (bytes {a.offset} to {a.offset + a.size}) and {b.name!r} (bytes {b.offset} "
        f"to {b.offset + b.size}) share bytes of memory {a.memory!r} at {steps}, where both "
        f"are live"
    )


def _describe(overlap: Overlap) -> str:
    ways = [f"{delta:+} in place" for delta in overlap.deltas]
    if overlap.ascending is not None:
        ways.append(f"at most {-overlap.ascending:+} ascending")
    if overlap.descending is not None:
        ways.append(f"at least {overlap.descending:+} descending")
    return ", ".join(ways)


def _fail(message: str) -> None:
    raise GraphError(f"arena plan: {message}")

"""Random problems, compared with a search that tries all layouts."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.codegen.arena import Buffer, InPlace, Memory, Problem, Span, plan, validate
from smelt.codegen.arena.conflict import make_arena
from smelt.codegen.arena.exact import ExactSearch
from smelt.codegen.arena.first_fit import FirstFit, sequences
from smelt.codegen.arena.pack import pack
from smelt.errors import GraphError

SRAM = Memory("sram")


@st.composite
def spans(draw: st.DrawFn, start: int, end: int, size: int) -> tuple[Span, ...]:
    """Draw the spans of a buffer; no spans mean that all its bytes are live all the time."""
    if size == 0 or draw(st.booleans()):
        return ()
    cuts = draw(st.sets(st.integers(start, end)))
    found: list[Span] = []
    for first, last in itertools.pairwise(sorted({start, *cuts, end})):
        low = draw(st.integers(0, size - 1))
        if first == start or last == end or draw(st.booleans()):
            found.append(Span(first, last, low, draw(st.integers(low + 1, size))))
    return tuple(found)


@st.composite
def problems(draw: st.DrawFn, largest: int, alignments: tuple[int, ...] = (4, 16)) -> Problem:
    steps = draw(st.integers(1, 8))
    buffers: list[Buffer] = []
    for i in range(draw(st.integers(1, largest))):
        start = draw(st.integers(0, steps - 1))
        end = draw(st.integers(start + 1, steps))
        alignment = draw(st.sampled_from(alignments))
        size = draw(st.integers(0, 5 * alignments[-1]))
        pinned = draw(st.integers(0, 9)) == 0 and not any(b.offset is not None for b in buffers)
        buffers.append(
            Buffer(
                name=f"t{i}",
                size=size,
                start=start,
                end=end,
                memory="sram",
                alignment=alignment,
                offset=alignment * draw(st.integers(0, 3)) if pinned else None,
                spans=draw(spans(start, end, size)),
            )
        )
    in_place = tuple(
        InPlace(x.name, y.name)
        for x, y in itertools.combinations(buffers, 2)
        if x.start < y.end and y.start < x.end and draw(st.integers(0, 3)) == 0
    )
    return Problem((SRAM,), tuple(buffers), in_place)


@pytest.mark.parametrize("seed", range(30, 40))
def test_the_bytes_that_are_enough_need_not_be_aligned(seed: int) -> None:
    """First fit does not reach the bound of some of these problems: then layouts are improved."""
    dice = random.Random(seed)
    buffers: list[Buffer] = []
    for i in range(dice.randint(10, 24)):
        start = dice.randrange(12)
        end = dice.randint(start + 1, min(12, start + 6))
        buffers.append(Buffer(f"t{i}", dice.randint(1, 200), start, end, "sram"))
    arena = make_arena(buffers, ())
    bound, first = pack(arena).lower_bound, FirstFit.of(arena)
    most = min(arena.bytes_of(first.place(order, in_place=False)) for order in sequences(arena))
    for enough in range(bound + 4, most, 5):
        assert pack(arena, enough=enough).bytes >= bound


def live_bytes(buffer: Buffer, step: int, offset: int) -> set[int]:
    """Return the addresses of a buffer's live bytes at a step."""
    if not buffer.spans:
        live = range(buffer.size) if buffer.start <= step < buffer.end else range(0)
        return {offset + byte for byte in live}
    return {
        offset + byte
        for span in buffer.spans
        if span.start <= step < span.end
        for byte in range(span.low, span.high)
    }


def may_coexist(problem: Problem, a: Buffer, a_offset: int, b: Buffer, b_offset: int) -> bool:
    """Return whether two buffers at these offsets share no live bytes, or may share them."""
    names = {a.name, b.name}
    if a_offset == b_offset and any(
        {pair.input, pair.output} == names for pair in problem.in_place
    ):
        return True
    steps = range(max(a.start, b.start), min(a.end, b.end))
    return all(
        live_bytes(a, step, a_offset).isdisjoint(live_bytes(b, step, b_offset)) for step in steps
    )


def is_legal(problem: Problem, offsets: Sequence[int]) -> bool:
    placed = zip(problem.buffers, offsets, strict=True)
    pairs = itertools.combinations(placed, 2)
    return all(
        may_coexist(problem, a, a_offset, b, b_offset) for (a, a_offset), (b, b_offset) in pairs
    )


def fits_within(problem: Problem, limit: int, offsets: tuple[int, ...] = ()) -> bool:
    """Return whether any layout that begins with `offsets` takes at most `limit` bytes."""
    if len(offsets) == len(problem.buffers):
        return True
    new = problem.buffers[len(offsets)]
    options = range(0, limit - new.size + 1, new.alignment)
    return any(
        all(
            may_coexist(problem, old, at, new, offset)
            for old, at in zip(problem.buffers, offsets, strict=False)
        )
        and fits_within(problem, limit, (*offsets, offset))
        for offset in options
        if new.offset in (None, offset)
    )


@given(problems(10))
@settings(deadline=None, max_examples=100)
def test_random_plans_are_legal_and_not_below_the_bound(problem: Problem) -> None:
    result = plan(problem)
    validate(problem, result)
    assert is_legal(problem, [p.offset for p in result.placements])
    assert result.bytes >= result.lower_bound
    ends = [p.offset + p.size for p in result.placements]
    assert max(ends) <= result.bytes < max(ends) + 16
    assert plan(problem) == result


@given(problems(4, alignments=(4,)))
@settings(deadline=None, max_examples=150)
def test_tiny_plans_are_optimal(problem: Problem) -> None:
    result = plan(problem)
    validate(problem, result)
    assert result.optimal
    assert not fits_within(problem, result.bytes - 4)


@given(problems(3))
@settings(deadline=None, max_examples=100)
def test_exact_search_and_first_fit_agree_with_trying_all_layouts(problem: Problem) -> None:
    arena = make_arena(problem.buffers, problem.in_place)
    granule = arena.granule
    least = next(limit for limit in itertools.count(0, granule) if fits_within(problem, limit))
    for limit in (least - granule, least, least + granule):
        offsets, finished = ExactSearch(arena).within(limit, 10_000)
        assert finished
        assert (offsets is not None) == (limit >= least)
        assert offsets is None or is_legal(problem, offsets)
    first_fit = FirstFit.of(arena)
    for sequence, in_place in itertools.product(sequences(arena), (False, True)):
        offsets = first_fit.place(sequence, in_place=in_place)
        assert is_legal(problem, offsets)
        assert arena.bytes_of(offsets) >= least


@given(problems(10), st.data())
@settings(deadline=None, max_examples=150)
def test_validator_agrees_with_the_definition_on_moved_buffers(
    problem: Problem, data: st.DataObject
) -> None:
    result = plan(problem)
    victim = data.draw(st.integers(0, len(problem.buffers) - 1))
    buffer = problem.buffers[victim]
    offset = buffer.alignment * data.draw(st.integers(0, 12))
    offset = offset if buffer.offset is None else buffer.offset
    moved = replace(result.placements[victim], offset=offset)
    placements = (*result.placements[:victim], moved, *result.placements[victim + 1 :])
    top = max(p.offset + p.size for p in placements)
    use = replace(result.memories[0], bytes=max(top, result.bytes), optimal=True)
    mutant = replace(result, placements=placements, memories=(use,))
    if is_legal(problem, [p.offset for p in placements]):
        validate(problem, mutant)
    else:
        with pytest.raises(GraphError, match="share bytes"):
            validate(problem, mutant)

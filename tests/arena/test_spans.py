"""Tests of buffers whose live bytes change from step to step."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from smelt.codegen.arena import (
    Buffer,
    InPlace,
    Memory,
    Plan,
    Problem,
    Span,
    plan,
    require_fit,
    validate,
)
from smelt.codegen.arena.conflict import FAR, OffsetRange, make_arena
from smelt.errors import DoesNotFit, GraphError

SRAM = Memory("sram")
ROWS = 100


def planned(problem: Problem) -> Plan:
    result = plan(problem)
    validate(problem, result)
    return result


def partial(name: str, size: int, *spans: Span, alignment: int = 16) -> Buffer:
    start, end = spans[0].start, spans[-1].end
    return Buffer(name, size, start, end, "sram", alignment, spans=spans)


def rows(name: str, width: int, *, made: int, read: int, backwards: bool = False) -> Buffer:
    """Return a buffer of 100 rows: one a step is made from step `made`, and read from `read`.

    `backwards` makes and reads the last row first.
    """
    spans: list[Span] = []
    for step in range(made, read + ROWS):
        low = width * min(max(step - read, 0), ROWS)
        high = width * min(step - made + 1, ROWS)
        if backwards:
            low, high = width * ROWS - high, width * ROWS - low
        spans.append(Span(step, step + 1, low, high))
    return partial(name, width * ROWS, *spans)


# --- the diagonal --------------------------------------------------------------------------------


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("width", [16, 24, 7])
def test_output_grows_into_the_input_that_shrinks(width: int, backwards: bool) -> None:
    x = rows("x", width, made=0, read=ROWS, backwards=backwards)
    y = rows("y", width, made=ROWS, read=2 * ROWS, backwards=backwards)
    result = planned(Problem((SRAM,), (x, y)))
    expected = -(-(ROWS + 1) * width // 16) * 16
    assert (result.bytes, result.lower_bound, result.optimal) == (expected, expected, True)
    assert (result["y"].offset > result["x"].offset) == backwards


def test_a_chain_of_diagonals_moves_down_by_a_row_each() -> None:
    buffers = tuple(rows(f"t{i}", 16, made=i * ROWS, read=(i + 1) * ROWS) for i in range(3))
    result = planned(Problem((SRAM,), buffers))
    assert (result.bytes, result.lower_bound, result.optimal) == (102 * 16, 101 * 16, True)
    assert [p.offset for p in result.placements] == [32, 16, 0]


def test_a_whole_buffer_takes_the_dead_rows() -> None:
    x = rows("x", 16, made=0, read=ROWS)
    late = Buffer("late", 16 * 90, 2 * ROWS - 10, 2 * ROWS, "sram")
    result = planned(Problem((SRAM,), (x, late)))
    assert (result.bytes, result.optimal) == (16 * ROWS, True)


MOVES: list[Callable[[int], int]] = [lambda offset: offset + 16, lambda offset: offset - 16]


@pytest.mark.parametrize(("name", "move"), [("x", MOVES[1]), ("y", MOVES[0])])
def test_validator_rejects_a_diagonal_that_is_one_granule_too_close(
    name: str, move: Callable[[int], int]
) -> None:
    x = rows("x", 16, made=0, read=ROWS)
    y = rows("y", 16, made=ROWS, read=2 * ROWS)
    problem = Problem((SRAM,), (x, y))
    legal = planned(problem)
    placements = (
        replace(p, offset=move(p.offset)) if p.name == name else p for p in legal.placements
    )
    with pytest.raises(GraphError, match=r"'x' .* and 'y' .* share bytes .* at slot 100"):
        validate(problem, replace(legal, placements=tuple(placements)))


# --- steps without live bytes --------------------------------------------------------------------


def alternating(name: str, size: int, first: int) -> Buffer:
    return partial(name, size, *(Span(step, step + 1, 0, size) for step in range(first, 20, 2)))


def test_scratch_that_is_live_in_alternating_steps_shares_bytes() -> None:
    even, odd = alternating("even", 64, 0), alternating("odd", 96, 1)
    kept = Buffer("kept", 32, 0, 20, "sram")
    result = planned(Problem((SRAM,), (even, odd, kept)))
    assert (result.bytes, result.lower_bound, result.optimal) == (128, 128, True)
    assert make_arena((even, odd, kept), ()).pair_count == 2
    assert [p.name for p in result.live("sram", 4)] == ["even", "kept"]
    assert [p.name for p in result.live("sram", 5)] == ["odd", "kept"]


def test_dead_bytes_need_room_too() -> None:
    spans = (Span(0, 1, 0, 16), Span(1, 2, 240, 256))
    result = planned(Problem((SRAM,), (partial("x", 256, *spans),)))
    assert (result.bytes, result.lower_bound, result.optimal) == (256, 256, True)


def test_in_place_pair_shares_the_bytes_that_both_have_live() -> None:
    x = Buffer("x", 64, 0, 2, "sram")
    y = partial("y", 64, Span(1, 2, 0, 48), Span(2, 3, 0, 64))
    apart = planned(Problem((SRAM,), (x, y)))
    shared = planned(Problem((SRAM,), (x, y), (InPlace("x", "y"),)))
    assert (apart.bytes, apart.lower_bound) == (112, 112)
    assert (shared.bytes, shared.lower_bound) == (64, 64)


# --- offset differences --------------------------------------------------------------------------


def ranges(a: Buffer, b: Buffer, *in_place: InPlace) -> list[OffsetRange]:
    return [found for pair in make_arena((a, b), in_place).pairs() for found in pair.ranges]


def around_8(alignment: int) -> tuple[Buffer, Buffer]:
    """Return two buffers that may only be 8 bytes apart where they cross."""
    x = partial("x", 32, Span(0, 1, 0, 8), Span(1, 2, 16, 32), alignment=alignment)
    y = partial("y", 32, Span(0, 1, 0, 32), Span(1, 2, 0, 8), alignment=alignment)
    return x, y


def test_differences_follow_from_the_spans_of_each_step() -> None:
    assert ranges(*around_8(4)) == [
        OffsetRange(-FAR, -32),
        OffsetRange(8, 8),
        OffsetRange(32, FAR),
    ]
    assert planned(Problem((SRAM,), around_8(4))).bytes == 40


def test_differences_that_are_not_aligned_are_never_used() -> None:
    assert ranges(*around_8(16)) == [OffsetRange(-FAR, -32), OffsetRange(32, FAR)]
    assert make_arena(around_8(16), ()).sharing == ()
    assert planned(Problem((SRAM,), around_8(16))).bytes == 64


def test_buffers_in_place_may_have_the_same_offset() -> None:
    x, y = Buffer("x", 32, 0, 2, "sram"), Buffer("y", 16, 1, 3, "sram")
    assert ranges(x, y) == [OffsetRange(-FAR, -16), OffsetRange(32, FAR)]
    assert ranges(x, y, InPlace("x", "y")) == [
        OffsetRange(-FAR, -16),
        OffsetRange(0, 0),
        OffsetRange(32, FAR),
    ]


def test_a_span_of_all_bytes_is_a_whole_buffer() -> None:
    whole = Buffer("x", 32, 0, 2, "sram")
    told = replace(whole, spans=(Span(0, 1, 0, 32), Span(1, 2, 0, 32)))
    other = Buffer("y", 16, 1, 3, "sram")
    assert make_arena((told, other), ()).apart == make_arena((whole, other), ()).apart == ([1], [0])


# --- messages and JSON ---------------------------------------------------------------------------


def test_does_not_fit_counts_the_live_bytes() -> None:
    x = rows("x", 16, made=0, read=ROWS)
    y = rows("y", 16, made=ROWS, read=2 * ROWS)
    problem = Problem((Memory("sram", 1600),), (x, y))
    with pytest.raises(DoesNotFit) as caught:
        require_fit(problem, planned(problem))
    assert (caught.value.needed, caught.value.available) == (1616, 1600)
    assert caught.value.largest == (("x", 1600), ("y", 16))


def test_spans_are_in_the_json_of_a_plan() -> None:
    x = partial("x", 32, Span(0, 1, 0, 32), Span(2, 3, 16, 32))
    result = planned(Problem((SRAM,), (x, Buffer("y", 16, 2, 4, "sram"))))
    first, second = json.loads(json.dumps(result.to_dict()))["map"]
    assert first["spans"] == [
        {"start": 0, "end": 1, "low": 0, "high": 32},
        {"start": 2, "end": 3, "low": 16, "high": 32},
    ]
    assert "spans" not in second

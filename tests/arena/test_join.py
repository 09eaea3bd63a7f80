"""Tests of which buffers are joined: laid out at one offset."""

from collections.abc import Sequence

import pytest

from smelt.codegen.arena import Buffer, InPlace, Span
from smelt.codegen.arena.conflict import make_arena
from smelt.codegen.arena.first_fit import FirstFit
from smelt.codegen.arena.join import join

PAIRS = (InPlace("a", "b"), InPlace("b", "c"))


def leaders(buffers: Sequence[Buffer], goal: int = 0) -> list[int]:
    arena = make_arena(buffers, PAIRS)
    return join(arena, FirstFit.of(arena).links, goal)


def chain(sizes: tuple[int, int, int], ends: tuple[int, int, int]) -> list[Buffer]:
    """Return buffers a, b and c, which begin at steps 0, 1 and 2."""
    rows = zip("abc", sizes, range(3), ends, strict=True)
    return [Buffer(name, size, start, end, "sram") for name, size, start, end in rows]


def test_a_chain_of_buffers_is_joined() -> None:
    assert leaders(chain((64, 64, 64), (2, 3, 4))) == [0, 0, 0]


@pytest.mark.parametrize(("goal", "expected"), [(127, [0, 0, 2]), (128, [0, 1, 2])])
def test_only_buffers_that_are_live_where_more_than_the_goal_is_are_joined(
    goal: int, expected: list[int]
) -> None:
    assert leaders(chain((64, 64, 32), (2, 3, 4)), goal) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"), [((64, 64, 32), [0, 0, 2]), ((16, 64, 64), [0, 1, 1])]
)
def test_of_two_pairs_the_one_that_shares_more_is_joined(
    sizes: tuple[int, int, int], expected: list[int]
) -> None:
    """Buffers a and c may not share bytes, and both last to the end."""
    assert leaders(chain(sizes, (4, 4, 4))) == expected


def test_buffers_that_may_not_have_the_same_offset_in_any_step_are_not_joined() -> None:
    """Buffer c begins below the live bytes of a, but grows over them later."""
    a = Buffer("a", 64, 0, 4, "sram", spans=(Span(0, 1, 0, 64), Span(1, 4, 48, 64)))
    b = Buffer("b", 64, 1, 4, "sram")
    c = Buffer("c", 64, 2, 4, "sram", spans=(Span(2, 3, 0, 32), Span(3, 4, 0, 64)))
    assert leaders([a, b, c]) == [0, 1, 1]
    without_growth = Buffer("c", 64, 2, 4, "sram", spans=(Span(2, 4, 0, 32),))
    assert leaders([a, b, without_growth]) == [0, 0, 0]


def test_buffers_at_fixed_offsets_are_not_joined() -> None:
    buffers = [*chain((64, 64, 64), (2, 3, 4))[:2], Buffer("c", 64, 2, 4, "sram", offset=16)]
    assert leaders(buffers) == [0, 0, 2]

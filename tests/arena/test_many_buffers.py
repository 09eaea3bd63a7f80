"""Plans of thousands of buffers, and skyline layouts of small random problems."""

import pytest
from hypothesis import given, settings

from bench.planning import PROBLEMS, banded
from smelt.codegen.arena import Problem, plan, validate
from smelt.codegen.arena.conflict import make_arena
from smelt.codegen.arena.first_fit import FirstFit
from smelt.codegen.arena.join import join
from smelt.codegen.arena.skyline import Skyline
from tests.arena.test_random_problems import is_legal, problems


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.quick(kind=("whole, 950 at once",))
def test_the_gap_of_4000_buffers_is_below_5_percent(kind: str) -> None:
    problem = PROBLEMS[kind](0)
    result = plan(problem)
    validate(problem, result)
    assert result.bytes < 1.05 * result.lower_bound


@pytest.mark.parametrize(("lifetime", "seed"), [(20, 1), (100, 1), (100, 2)])
@pytest.mark.quick(lifetime=(100,), seed=(1,))
def test_buffers_that_are_live_in_parts_are_planned_by_thousands(lifetime: int, seed: int) -> None:
    problem = banded(lifetime, seed)
    result = plan(problem)
    validate(problem, result)
    assert result.bytes < 1.05 * result.lower_bound


@given(problems(8))
@settings(deadline=None, max_examples=100)
def test_skyline_layouts_are_legal_and_get_better(problem: Problem) -> None:
    arena = make_arena(problem.buffers, problem.in_place)
    links = FirstFit.of(arena).links
    needed: list[int] = []
    for offsets in Skyline(arena, links, join(arena, links, 0)).search(0, 0):
        assert is_legal(problem, offsets)
        needed.append(max(o + b.size for o, b in zip(offsets, problem.buffers, strict=True)))
    assert needed == sorted(set(needed), reverse=True)

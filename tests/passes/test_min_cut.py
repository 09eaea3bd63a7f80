"""Minimum cuts, compared with trying all cuts."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from smelt.codegen.passes.layout.min_cut import UNCUTTABLE, CutProblem

Edges = list[tuple[int, int, int]]
VERTICES = 6
EDGES = st.lists(
    st.tuples(
        st.integers(0, VERTICES - 1),
        st.integers(0, VERTICES - 1),
        st.sampled_from([0, 1, 2, 3, 7, UNCUTTABLE]),
    ),
    max_size=14,
)


def cost(edges: Edges, sink_side: set[int]) -> int:
    return sum(c for tail, head, c in edges if tail not in sink_side and head in sink_side)


@given(edges=EDGES)
def test_the_cut_is_the_cheapest_and_smallest(edges: Edges) -> None:
    problem = CutProblem()
    for _ in range(2, VERTICES):
        problem.vertex()
    for edge in edges:
        problem.edge(*edge)
    found = problem.sink_side()
    choices = [
        {problem.SINK, *(v for v, chosen in enumerate(bits, 2) if chosen)}
        for bits in product((False, True), repeat=VERTICES - 2)
    ]
    cheapest = min(cost(edges, side) for side in choices)
    assert cost(edges, found) == cheapest
    assert all(found <= side for side in choices if cost(edges, side) == cheapest)

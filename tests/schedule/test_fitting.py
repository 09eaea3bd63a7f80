"""Kernels of whole tensors that fit: the smallest arena (`--optimize ram`), and given ones.

`tests/segments` has the tests of layers that are computed a few rows at a time.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.codegen.schedule import fitting
from smelt.errors import DoesNotFit
from smelt.ir import DType, Graph, Node
from tests.support.graphs import Member, combine, compile_graph
from tests.support.random_networks import PHASES, members
from tests.support.shrinking_network import network, with_state

pytestmark = pytest.mark.usefixtures("whole_tensors")

TARGETS = ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55", "host")


def with_least_scratch(graph: Graph, options: Options) -> Artifact:
    """Compile a graph so that every call takes the least scratch."""

    def none(found: fitting.Fitting, most: int) -> dict[Node, int]:
        return {}

    with patch.object(fitting, "_free_bytes", none):
        return compile_graph(graph, options)


def cycles(artifact: Artifact) -> int:
    return sum(step.cycles or 0 for step in artifact.schedule.calls)


def scratch(artifact: Artifact) -> list[int]:
    return [step.call.scratch_bytes for step in artifact.schedule.calls]


@pytest.mark.parametrize("target", TARGETS)
def test_layers_beside_the_largest_take_the_scratch_of_fast_kernels(target: str) -> None:
    """The first layer sets the arena, and the last one is much smaller."""
    options = Options(target, optimize="ram")
    found, least = compile_graph(network(), options), with_least_scratch(network(), options)
    fast = compile_graph(network(), Options(target))
    assert found.network.arena_bytes == least.network.arena_bytes == 2 * 24 * 24 * 24
    assert scratch(found)[0] == scratch(least)[0]
    assert scratch(found)[-1] == scratch(fast)[-1]
    assert cycles(found) <= cycles(least)
    if target.startswith("cortex"):
        assert cycles(found) < cycles(least)


@given(
    networks=st.lists(members(DType.INT8), min_size=2, max_size=4),
    target=st.sampled_from(TARGETS),
    keep_inputs=st.booleans(),
)
@settings(max_examples=15, phases=PHASES)
def test_the_arena_is_the_smallest_and_no_step_is_slower(
    networks: list[Member], target: str, keep_inputs: bool
) -> None:
    graph = combine("all", [member.graph for member in networks])
    options = Options(target, optimize="ram", keep_inputs=keep_inputs)
    found, least = compile_graph(graph, options), with_least_scratch(graph, options)
    assert found.network.arena_bytes == least.network.arena_bytes
    assert cycles(found) <= cycles(least)


@pytest.mark.parametrize("target", TARGETS)
def test_calls_take_the_least_scratch_again_if_the_plan_has_gaps(target: str) -> None:
    """Pretend that every call has more free bytes than it has."""
    options = Options(target, optimize="ram")
    least = with_least_scratch(network(), options)

    def too_many(found: fitting.Fitting, most: int) -> dict[Node, int]:
        return {call.node: most for call in found.schedule.calls}

    with patch.object(fitting, "_free_bytes", too_many):
        found = compile_graph(network(), options)
    assert found.network.arena_bytes == least.network.arena_bytes


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("below", [1, 1000, 3000])
def test_kernels_are_chosen_so_that_they_fit(target: str, below: int) -> None:
    """Take some bytes of the arena of the fastest kernels away."""
    fastest = compile_graph(network(), Options(target))
    smallest = compile_graph(network(), Options(target, optimize="ram"))
    limit = max(fastest.network.arena_bytes - below, smallest.network.arena_bytes)
    found = compile_graph(network(), Options(target, max_ram=limit))
    assert found.network.arena_bytes <= limit
    assert cycles(fastest) <= cycles(found) <= cycles(smallest)
    noted = any("the preferred kernels need an arena" in note for note in found.notes)
    assert noted == (fastest.network.arena_bytes > limit)


def test_states_count_for_the_limit() -> None:
    graph = with_state()
    found = compile_graph(graph, Options("cortex-m4"))
    states = found.network.state_bytes
    assert states == 3200
    needed = found.network.arena_bytes + states
    assert not compile_graph(graph, Options("cortex-m4", max_ram=needed)).notes
    limited = compile_graph(graph, Options("cortex-m4", max_ram=needed - 1))
    assert limited.network.arena_bytes + states < needed
    assert any("the preferred kernels need" in note for note in limited.notes)


def test_states_that_exceed_the_limit_are_refused() -> None:
    with pytest.raises(DoesNotFit, match="states take 3,200 bytes, and --max-ram allows 3,000"):
        compile_graph(with_state(), Options("cortex-m4", max_ram=3000))


def test_less_than_the_smallest_arena_is_refused() -> None:
    options = Options("cortex-m4", max_ram=27_000)
    with pytest.raises(DoesNotFit, match=r"has 27,000 bytes, 27,648 are needed.*larger --max-ram"):
        compile_graph(network(), options)

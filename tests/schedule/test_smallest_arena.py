"""`--optimize ram`: the smallest arena, and then the fastest steps that fit into it."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.api import compile as pipeline
from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.schedule import smallest_arena
from smelt.codegen.schedule.schedule import Schedule
from smelt.ir import DType, Graph
from tests.partition.test_scratch import network
from tests.support.graphs import Member, combine, compile_graph
from tests.support.random_networks import PHASES, members

TARGETS = ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55", "host")


def with_least_scratch(graph: Graph, options: Options) -> Artifact:
    """Compile a graph so that every call takes the least scratch."""

    def least(scheduled: Callable[[Partitioner], Schedule], kernels: Partitioner) -> Schedule:
        return scheduled(kernels)

    with patch.object(pipeline, "fastest_in_smallest_arena", least):
        return compile_graph(graph, options)


def cycles(artifact: Artifact) -> int:
    return sum(step.choice.taken.cycles or 0 for step in artifact.schedule.calls)


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

    def too_many(scheduled: object, plan: object) -> object:
        return {call.node: 1 << 20 for call in least.schedule.calls}

    with patch.object(smallest_arena, "_free_bytes", too_many):
        found = compile_graph(network(), options)
    assert found.network.arena_bytes == least.network.arena_bytes

"""Tests of scratch limits: the arena does not grow for the scratch of faster kernels."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from smelt.api.options import Options
from smelt.codegen.lower.kernel import DEFAULT_SCRATCH
from smelt.codegen.partition.scratch import scratch_limits
from smelt.ir import (
    Graph,
    Node,
    verify,
)
from smelt.ops.core.convolution import Conv2D
from tests.support.graphs import compile_graph
from tests.support.shrinking_network import SAME, image, network, node, with_state


def nothing(node: Node) -> int:
    return 0


def test_the_limit_is_what_the_largest_node_leaves() -> None:
    graph = network()
    first, pool, second, _ = graph.nodes
    found = scratch_limits(graph, nothing, keep_inputs=False)
    most = 2 * 24 * 24 * 24
    assert first not in found
    assert found[pool] == most - 24 * 24 * 24 - 8 * 8 * 24
    assert found[second] == most - 8 * 8 * 24 - 8 * 8 * 32


def test_kept_inputs_reduce_the_limit() -> None:
    graph = network()
    kept, free = (scratch_limits(graph, nothing, keep_inputs=keep) for keep in (True, False))
    assert kept[graph.nodes[2]] == free[graph.nodes[2]] - 24 * 24 * 24


def test_states_are_not_in_the_arena() -> None:
    graph = with_state()
    found = scratch_limits(graph, nothing, keep_inputs=False)
    assert found[graph.nodes[4]] == 24 * 24 * 24 - 12 * 12 * 12 - 20 * 20 * 8


def test_nodes_with_a_small_limit_are_left_out() -> None:
    x, y, z = image("x", 8, 8, 32), image("y", 8, 8, 32), image("z", 8, 8, 32)
    nodes = (node(Conv2D(padding=SAME), x, y), node(Conv2D(padding=SAME), y, z))
    graph = verify(Graph("net", (x,), (z,), nodes), "building")
    assert not scratch_limits(graph, nothing, keep_inputs=False)


@pytest.mark.parametrize("keep", [False, True])
def test_the_arena_does_not_grow(keep: bool) -> None:
    """The second convolution takes what its limit allows, which exceeds `DEFAULT_SCRATCH`."""
    with patch("smelt.api.compile.can_have_segments", return_value=False):
        artifact = compile_graph(network(), Options("cortex-m3", keep_inputs=keep))
    calls = [step.call for step in artifact.schedule.calls if step.call]
    assert calls[2].scratch_bytes > DEFAULT_SCRATCH
    assert artifact.plan.use("arena").bytes <= 2 * 24 * 24 * 24 + DEFAULT_SCRATCH

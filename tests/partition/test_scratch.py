"""Tests of scratch limits: the arena does not grow for the scratch of faster kernels."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.api.options import Options
from smelt.codegen.lower.kernel import DEFAULT_SCRATCH
from smelt.codegen.partition.scratch import scratch_limits
from smelt.ir import (
    DType,
    Graph,
    Node,
    Op,
    Origin,
    Quant,
    Rounding,
    State,
    TensorType,
    Value,
    verify,
)
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.pool import Pool2D
from smelt.ops.tensor.reshape import Reshape
from tests.support.graphs import compile_graph

QUANT = Quant.per_tensor(0.05)
SAME = ((1, 1), (1, 1))


def image(name: str, *shape: int) -> Value:
    return Value(name, TensorType((1, *shape), DType.INT8, QUANT))


def node(op: Op, source: Value, target: Value) -> Node:
    inputs: tuple[Value | None, ...] = (source,)
    if isinstance(op, Conv2D):
        shape = (target.type.shape[3], 3, 3, source.type.shape[3])
        weights = np.random.default_rng(1).integers(-60, 61, shape).astype(np.int8)
        scale = Quant((0.002,) * shape[0], (0,) * shape[0], 0)
        inputs = (source, Value.constant(f"{target.name} weights", weights, scale), None)
    return Node(op, inputs, (target,), Origin(op.name, 0, target.name), Rounding.TFLM)


def network() -> Graph:
    """Return a network that makes a large image small and flattens it."""
    x, a, b = image("x", 24, 24, 24), image("a", 24, 24, 24), image("b", 8, 8, 24)
    c, d = image("c", 8, 8, 32), image("d", 2048)
    nodes = (
        node(Conv2D(padding=SAME), x, a),
        node(Pool2D("max", (3, 3), (3, 3)), a, b),
        node(Conv2D(padding=SAME), b, c),
        node(Reshape((1, 2048)), c, d),
    )
    return verify(Graph("net", (x,), (d,), nodes), "building")


def test_the_limit_is_what_the_largest_node_leaves() -> None:
    graph = network()
    first, pool, second, _ = graph.nodes
    found = scratch_limits(graph, keep_inputs=False)
    most = 2 * 24 * 24 * 24
    assert first not in found
    assert found[pool] == most - 24 * 24 * 24 - 8 * 8 * 24
    assert found[second] == most - 8 * 8 * 24 - 8 * 8 * 32


def test_kept_inputs_reduce_the_limit() -> None:
    graph = network()
    kept, free = (scratch_limits(graph, keep_inputs=keep) for keep in (True, False))
    assert kept[graph.nodes[2]] == free[graph.nodes[2]] - 24 * 24 * 24


def test_states_are_not_in_the_arena() -> None:
    x, y, z = image("x", 24, 24, 24), image("y", 24, 24, 24), image("z", 12, 12, 12)
    before, after = (Value(name, image("", 20, 20, 8).type) for name in ("before", "after"))
    seen, kept = image("seen", 20, 20, 8), image("kept", 20, 20, 8)
    nodes = (
        node(Conv2D(padding=SAME), x, y),
        node(Reshape((1, 20, 20, 8)), before, seen),
        node(Pool2D("max", (1, 1)), seen, kept),
        node(Reshape((1, 20, 20, 8)), kept, after),
        node(Conv2D((2, 2), padding=((0, 1), (0, 1))), y, z),
    )
    state = State(before, after, np.zeros((1, 20, 20, 8), np.int8))
    graph = verify(Graph("net", (x,), (z,), nodes, (state,)), "building")
    found = scratch_limits(graph, keep_inputs=False)
    assert found[nodes[4]] == 24 * 24 * 24 - 12 * 12 * 12 - 20 * 20 * 8


def test_nodes_with_a_small_limit_are_left_out() -> None:
    x, y, z = image("x", 8, 8, 32), image("y", 8, 8, 32), image("z", 8, 8, 32)
    nodes = (node(Conv2D(padding=SAME), x, y), node(Conv2D(padding=SAME), y, z))
    graph = verify(Graph("net", (x,), (z,), nodes), "building")
    assert not scratch_limits(graph, keep_inputs=False)


@pytest.mark.parametrize("keep", [False, True])
def test_the_arena_does_not_grow(keep: bool) -> None:
    """The second convolution takes what its limit allows, which exceeds `DEFAULT_SCRATCH`."""
    artifact = compile_graph(network(), Options("cortex-m3", keep_inputs=keep))
    calls = [step.call for step in artifact.schedule.calls if step.call]
    assert calls[2].scratch_bytes > DEFAULT_SCRATCH
    assert artifact.plan.use("arena").bytes <= 2 * 24 * 24 * 24 + DEFAULT_SCRATCH

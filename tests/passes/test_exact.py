"""Integer networks compute the same after each pass."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from smelt.codegen.passes import run_passes
from smelt.frontend import load
from smelt.ir import DType, Graph, evaluate
from smelt.samples import Sample, random_samples
from tests.support.graphs import Member, assert_same
from tests.support.random_networks import PHASES, members
from tests.support.shared import Network, networks


def extremes(graph: Graph) -> list[Sample]:
    """Return inputs of the smallest number, the largest number, and both alternating."""
    found: list[Sample] = []
    for pattern in ((0,), (1,), (0, 1)):
        ends = [[v.type.dtype.limits[i] for i in pattern] for v in graph.inputs]
        found.append(
            tuple(
                np.resize(np.array(end, v.type.dtype.numpy), v.type.shape)
                for end, v in zip(ends, graph.inputs, strict=True)
            )
        )
    return found


def check(graph: Graph, samples: list[Sample]) -> None:
    """Assert that outputs after each pass equal those of the imported graph."""
    expected = [evaluate(graph, sample).outputs for sample in samples]
    last = [graph]

    def compare(name: str, changed: Graph) -> None:
        if changed.nodes != last[0].nodes:
            found = [evaluate(changed, sample).outputs for sample in samples]
            assert_same(found, expected, f"after {name}")
        last[0] = changed

    run_passes(graph, observe=compare)


@given(network=members(DType.INT8))
@settings(max_examples=60, phases=PHASES, deadline=None)
def test_passes_keep_random_networks_exact(network: Member) -> None:
    check(network.graph, [*network.samples, *extremes(network.graph)])


@networks("mlperf_tiny/*_int8", "tflm/*_int8")
def test_passes_keep_networks_exact(network: Network) -> None:
    graph = load(network.model).graph
    check(graph, [*random_samples(graph, 2, seed=3), *extremes(graph)])

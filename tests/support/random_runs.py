"""Kernel calls for random nodes, as runs for `tests/support/guarded.py`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from smelt.codegen.lower.backend import Backend
from smelt.codegen.lower.kernel import Refusal, Request
from smelt.ir import Graph, evaluate
from smelt.targets import get
from tests.support.guarded import Run
from tests.support.kernels_host import Entry
from tests.support.library_nodes import samples_of


def runs_of(
    backend: Backend, target: str, graphs: Iterable[Graph], rng: np.random.Generator
) -> list[Run]:
    """Return a run for each call that kernels offer for each node, shared bodies included.

    Args:
        backend: the kernels.
        target: target of the generated code.
        graphs: graphs with one node each.
        rng: random generator for the inputs.
    """
    described, runs = get(target), list[Run]()
    for i, graph in enumerate(graphs):
        node, samples = graph.nodes[0], samples_of(graph, rng)
        offers = backend.offers(node, Request(described))
        expected = [evaluate(graph, sample).outputs[0] for sample in samples]
        calls = () if isinstance(offers, Refusal) else offers.calls
        shared = [call.shared.call for call in calls if call.shared is not None]
        for call in (*calls, *shared):
            runs.append(Run(f"{i}: {node.op} as {call.form}", Entry(node, call), samples, expected))
    return runs

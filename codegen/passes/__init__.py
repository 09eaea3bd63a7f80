"""The passes over a graph, in order. Each is a function `Graph -> Graph` that keeps every bit."""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.passes.drop import drop_dead_nodes, drop_identities
from smelt.codegen.passes.fold import fold_constants
from smelt.codegen.passes.materialize import materialize_results
from smelt.ir import Graph, verify

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (
    fold_constants,
    drop_identities,
    drop_dead_nodes,
    materialize_results,
)


def run_passes(
    graph: Graph,
    passes: tuple[Pass, ...] = PASSES,
    observe: Callable[[str, Graph], None] | None = None,
) -> Graph:
    """Run the passes in order, verifying after each one.

    Args:
        graph: what the frontend made.
        passes: the passes to run.
        observe: called with each pass's name and result, for `--dump-after`.
    """
    verify(graph, "import")
    for transform in passes:
        graph = verify(transform(graph), transform.__name__)
        if observe is not None:
            observe(transform.__name__, graph)
    return graph

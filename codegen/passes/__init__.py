"""The graph passes, in the order in which they run.

Each pass is a function that takes a graph and a `PassContext` and returns a graph. Integer results
keep every bit. Float results may round differently where a pass merges operators.
May import `ops` and `ir`; `codegen.partition`, `codegen.segments`, `codegen.schedule`,
`codegen.backends`, `api`, `proof`, `cli` and `bench` may import it.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.passes.channels.constant_channels import drop_channels
from smelt.codegen.passes.cleanup.common_subexpressions import (
    share_common_nodes,
    simplify_arithmetic,
)
from smelt.codegen.passes.cleanup.constant_folding import fold_constants
from smelt.codegen.passes.cleanup.dead_nodes import drop_dead_nodes, drop_identities
from smelt.codegen.passes.cleanup.materialize import materialize_results
from smelt.codegen.passes.context import DEFAULT, Pass, PassContext
from smelt.codegen.passes.fusion.activations import fuse_activations
from smelt.codegen.passes.fusion.channel_scales import fold_scales
from smelt.codegen.passes.fusion.fully_connected import use_dense_layers
from smelt.codegen.passes.fusion.normalizations import recognize_normalizations
from smelt.codegen.passes.fusion.padding import fold_pads
from smelt.codegen.passes.fusion.patterns import recognize_functions
from smelt.codegen.passes.layout.reshapes import merge_reshapes, sink_reshapes
from smelt.codegen.passes.layout.transposes import cancel_transposes
from smelt.codegen.passes.quantized.function_chains import merge_functions
from smelt.codegen.passes.quantized.integer_arithmetic import use_integer_arithmetic
from smelt.codegen.passes.run_time_rows import bind_lengths
from smelt.codegen.passes.subgraphs import everywhere
from smelt.ir import Graph, verify
from smelt.ir.budget import limited

PASSES: tuple[Pass, ...] = (
    # Runs before constant folding, which would turn integer weights into dequantized floats.
    use_integer_arithmetic,
    fold_constants,
    drop_identities,
    share_common_nodes,
    simplify_arithmetic,
    recognize_functions,
    recognize_normalizations,
    use_dense_layers,
    # Moves per-channel constants to the last axis, next to their layer, where later passes fold
    # them.
    cancel_transposes,
    sink_reshapes,
    fold_pads,
    fold_scales,
    fuse_activations,
    merge_functions,
    drop_channels,
    merge_reshapes,
    drop_dead_nodes,
    bind_lengths,
    materialize_results,
)


def run_passes(
    graph: Graph,
    passes: tuple[Pass, ...] = PASSES,
    observe: Callable[[str, Graph], None] | None = None,
    context: PassContext = DEFAULT,
) -> Graph:
    """Run the passes in order and verify the graph after each one.

    Each pass also runs on the graphs inside operators (`If`, `Loop`, `While`).

    Args:
        graph: The graph from the frontend.
        passes: The passes to run.
        observe: Called with the name and the result of each pass, for `--dump-after`.
        context: Passed to every pass.
    """
    verify(graph, "import")
    constants = sum(value.type.bytes for value in graph.values() if value.is_constant)
    for transform in passes:
        with limited(constants):
            graph = verify(everywhere(transform, context)(graph), transform.__name__)
        if observe is not None:
            observe(transform.__name__, graph)
    return graph


__all__ = ["DEFAULT", "PASSES", "Pass", "PassContext", "run_passes"]

"""Many networks in one firmware: compiling and starting a simulator costs more than they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from smelt.api.artefact import Artefact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.frontend import Imported
from smelt.ir import Array, Graph, Node, Value, verify
from smelt.ir.text import print_graph
from smelt.samples import Sample
from tests.semihosted import outputs_of

SETUPS = {
    "host": Options(),
    "m0": Options(board="mps2-an385", target="cortex-m0"),
    "m3": Options(board="mps2-an385"),
    "m4": Options(board="mps2-an386"),
    "m7": Options(board="mps2-an500"),
    "m33": Options(board="mps2-an505"),
    "m55": Options(board="mps3-an547"),
    "vulkan": Options(target="vulkan", backends=("vulkan", "c")),
}
"""Where generated code must run, by the core; on a GPU, all that it serves."""
TWINS = {
    f"host as {core}": Options(board="host", target=f"cortex-{core}")
    for core in ("m0", "m3", "m4", "m55")
}
"""Where the code of each core runs in its plain-C form."""
LIKE_M4 = ("m7", "m33")
"""Cores that take the M4's kernels: two networks run on them, all else in the long tests."""
SIMULATED = tuple(setup for setup in SETUPS if setup not in ("host", "vulkan"))
TOLERANCE = 1e-5
"""Largest difference of a float output, as a part of the output's range."""


@dataclass(frozen=True, repr=False)
class Member:
    """A network and what to feed it; members that are run together have equally many samples."""

    graph: Graph
    samples: Sequence[Sample]

    def __repr__(self) -> str:
        """The graph alone, which is what one wants to read when a test fails."""
        return print_graph(self.graph, {})


Outputs = list[tuple[Array, ...]]
"""Per sample, one array per output."""


def combine(name: str, graphs: Sequence[Graph]) -> Graph:
    """All graphs side by side as one, which has the inputs and outputs of all of them in order."""
    parts = [_renamed(graph, f"{index}:") for index, graph in enumerate(graphs)]
    return verify(
        Graph(
            name,
            tuple(value for part in parts for value in part.inputs),
            tuple(value for part in parts for value in part.outputs),
            tuple(node for part in parts for node in part.nodes),
            tuple(state for part in parts for state in part.states),
        ),
        "combining",
    )


def compile_graph(graph: Graph, options: Options | None = None) -> Artefact:
    """Compile a graph that no file holds."""
    return compile_model(Imported(graph), options)


def run_together(members: Sequence[Member], options: Options, name: str = "all") -> list[Outputs]:
    """Run all members as one network, on the host or the simulator of the options' board.

    Returns:
        By member and sample, its outputs.
    """
    artefact = _held(compile_graph(combine(name, [m.graph for m in members]), options))
    samples = [
        tuple(array for member_sample in column for array in member_sample)
        for column in zip(*(m.samples for m in members), strict=True)
    ]
    results = outputs_of(artefact, samples)
    found: list[Outputs] = []
    start = 0
    for member in members:
        stop = start + len(member.graph.outputs)
        found.append([outputs[start:stop] for outputs in results])
        start = stop
    return found


def _held(artefact: Artefact) -> Artefact:
    """For a GPU, as if it could do no more than each must."""
    files = {
        name: f"#define SMELT_VULKAN_MINIMA\n{text}"
        for name, text in artefact.project.files.items()
        if name.startswith("smelt_vulkan") and name.endswith(".c")
    }
    project = artefact.project
    return replace(artefact, project=replace(project, files={**project.files, **files}))


def assert_same(found: Outputs, expected: Outputs, what: str, tolerance: float = TOLERANCE) -> None:
    """Integers are equal in every element, floats differ by a part of the output's range at most.

    The range of a float output is that of all samples together, zero included.
    """
    for index, (ours, theirs) in enumerate(
        zip(zip(*found, strict=True), zip(*expected, strict=True), strict=True)
    ):
        where = f"{what}, output {index}"
        ours_all, wanted = np.stack(ours), np.stack(theirs)
        assert ours_all.dtype == wanted.dtype, where
        if wanted.dtype.kind != "f":
            np.testing.assert_array_equal(ours_all, wanted, where)
            continue
        finite = wanted[np.isfinite(wanted)]
        allowed = tolerance * float(finite.max(initial=0.0) - finite.min(initial=0.0))
        np.testing.assert_allclose(ours_all, wanted, rtol=0, atol=allowed, err_msg=where)


def _renamed(graph: Graph, prefix: str) -> Graph:
    """The graph with a prefix before the name of every value."""
    new: dict[Value, Value] = {v: replace(v, name=prefix + v.name) for v in graph.values()}

    def rename(node: Node) -> Node:
        inputs = tuple(None if v is None else new[v] for v in node.inputs)
        return replace(node, inputs=inputs, outputs=tuple(new[v] for v in node.outputs))

    return Graph(
        graph.name,
        tuple(new[v] for v in graph.inputs),
        tuple(new[v] for v in graph.outputs),
        tuple(map(rename, graph.nodes)),
        tuple(replace(s, before=new[s.before], after=new[s.after]) for s in graph.states),
    )

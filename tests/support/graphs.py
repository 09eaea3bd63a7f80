"""Many networks in one firmware, because compiling and starting a simulator is slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bench.combined import Member, SampleOutputs, combine, run_combined
from bench.cores import CORES
from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.frontend import Imported
from smelt.ir import Graph
from smelt.samples import Sample
from smelt.targets import get
from tests.support.semihosted import outputs_of

__all__ = [
    "LIKE_OTHERS",
    "OWN_KERNELS",
    "SETUPS",
    "SIMULATED",
    "TOLERANCE",
    "TWINS",
    "Member",
    "SampleOutputs",
    "assert_same",
    "combine",
    "compile_graph",
    "run_together",
]

SETUPS = {
    "host": Options(),
    **{core: Options(target, board) for core, (board, target) in CORES.items()},
    "vulkan": Options(target="vulkan", backends=("vulkan", "c")),
}
"""Setups in which generated code must run, by core; a GPU computes every layer that it serves."""
SIMULATED = tuple(CORES)
_FIRST: dict[tuple[str, ...], str] = {}
for _core, (_, _target) in CORES.items():
    _FIRST.setdefault(get(_target).backends, _core)
OWN_KERNELS = tuple(_FIRST.values())
"""The smallest of the cores that have the same backends."""
LIKE_OTHERS = tuple(core for core in SIMULATED if core not in OWN_KERNELS)
"""The other cores: two networks run on them in the quick tier, the rest in the slow tests."""
TWINS = {f"host as {core}": Options(CORES[core][1], "host") for core in OWN_KERNELS}
"""Setups that run the code of each core in its plain-C form."""
TOLERANCE = 1e-5
"""Largest difference of a float output, as a fraction of the output's range."""


def compile_graph(graph: Graph, options: Options | None = None) -> Artifact:
    """Compile a graph that is in no file."""
    return compile_model(Imported(graph), options)


def run_together(
    members: Sequence[Member], options: Options, name: str = "all"
) -> list[SampleOutputs]:
    """Run all members as one network, on the host or the simulator of the options' board.

    Returns:
        By member and sample, its outputs.
    """

    def run(graph: Graph, samples: Sequence[Sample]) -> SampleOutputs:
        return outputs_of(_held(compile_graph(graph, options)), samples)

    return run_combined(members, run, name)


def _held(artifact: Artifact) -> Artifact:
    """Return a GPU setup that uses no optional device features."""
    files = {
        name: f"#define SMELT_VULKAN_MINIMA\n{text}"
        for name, text in artifact.project.files.items()
        if name.startswith("smelt_vulkan") and name.endswith(".c")
    }
    project = artifact.project
    return replace(artifact, project=replace(project, files={**project.files, **files}))


def assert_same(
    found: SampleOutputs, expected: SampleOutputs, what: str, tolerance: float = TOLERANCE
) -> None:
    """Assert that integers are equal in every element, and floats within a fraction of the range.

    The range of a float output covers all samples and zero.
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

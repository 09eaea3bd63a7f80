"""The CMSIS-NN folder for tests that build the library, and graphs that our kernels for it serve.

Only this module reads the environment variable CMSIS_NN_DIR for tests: the folder of CMSIS-NN 7. A
test that needs the folder skips with that reason if it is absent.
"""

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.cores import CORES
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.backends.cmsis_nn.buffers import variant_of
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.kernel import Refusal, Request
from smelt.frontend import Imported
from smelt.ir import Graph
from smelt.ops.core.convolution import Conv2D
from smelt.targets import Target, get
from tests.support.graphs import SETUPS, SIMULATED
from tests.support.kernels_host import Entry
from tests.support.library_nodes import data, products, random_graph

API = Path(__file__).parent / "cmsis_nn_api"
"""Our own declarations, used to compile the calls if the library is absent."""
HEADER = "arm_nnfunctions.h"
TARGETS = {
    "plain": get("cortex-m3"),
    "dsp": get("cortex-m4"),
    "mve": get("cortex-m55"),
    "host": replace(get("cortex-m4"), cross="", arch_flags=()),
}
"""A target for each variant of the library. Compiled for this computer, each is plain C."""
OURS = backend("cmsis_nn")
EACH_CORE = [
    pytest.param(s, marks=[pytest.mark.qemu, *([] if s in ("m4", "m55") else [pytest.mark.slow])])
    for s in SIMULATED
]


def library() -> Path:
    """Return the folder of CMSIS-NN, or skip the running test if it is absent."""
    found = os.environ.get("CMSIS_NN_DIR", "")
    if not found or not (Path(found) / "Include" / HEADER).exists():
        pytest.skip("no CMSIS-NN: set CMSIS_NN_DIR to its folder")
    return Path(found)


def options(setup: str) -> Options:
    """Return a setup in which only the library may serve layers, whether or not it is present."""
    return replace(SETUPS[setup], backends=("cmsis_nn",), fallback=False)


def target_of(setup: str) -> Target:
    """Return a target with the library's variant for a core."""
    return TARGETS[variant_of(get(CORES[setup][1]))]


def is_served(graph: Graph, target: Target) -> bool:
    """Return whether the library serves every node of a graph."""
    return not any(isinstance(OURS.find(node, Request(target)), Refusal) for node in graph.nodes)


def entry_of(graph: Graph, target: Target) -> Entry:
    """Return the call for a graph's single node, which the library must serve."""
    (node,) = graph.nodes
    call = OURS.find(node, Request(target))
    assert not isinstance(call, Refusal), call
    return Entry(node, call)


def random_graphs(seed: int, count: int, target: Target) -> list[Graph]:
    """Return random graphs of one node that the library serves."""
    rng, found = np.random.default_rng(seed), list[Graph]()
    while len(found) < count:
        graph = random_graph(rng)
        if is_served(graph, target):
            found.append(graph)
    return found


def simple() -> Graph:
    """Return a convolution without bias that every core serves and that needs working memory."""
    rng = np.random.default_rng(0)
    x = data("x", (1, 4, 4, 3), rng)
    return products(Conv2D(), x, (6, 3, 3, 3), 0, rng, bias=False)


def archive(setup: str, folder: Path) -> Path:
    """Build the library for a core, with the Makefile of a network that calls it."""
    compile_model(Imported(simple()), options(setup)).write(folder)
    command = ["make", "library", f"CMSIS_NN_DIR={library()}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "build/libcmsis-nn.a"


def host_objects(folder: Path, *flags: str) -> list[str]:
    """Compile the library's 8-bit functions for this computer."""
    source = library() / "Source"
    found = [*sorted(source.glob("*/*_s8*.c")), *(source / "NNSupportFunctions").glob("arm_q7*.c")]
    files = [file for file in found if not re.search("LSTM|SVDF|svdf|lstm", str(file))]
    folder.mkdir()
    command = ["gcc", "-O1", "-w", *flags, f"-I{library() / 'Include'}", "-c", *map(str, files)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return sorted(map(str, folder.glob("*.o")))

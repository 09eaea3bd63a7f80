"""Times of networks with block sizes from `smelt tune`, and with those that the profile selects.

Both builds run all layers that the GPU serves on the GPU, so that only the block sizes differ.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

from bench.vulkan_net import build_library
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.frontend import Imported
from smelt.proof.tune import tune
from smelt.samples import random_samples

COLUMNS = ("network", "profile", "ms", "tuned ms", "ratio", "other blocks", "tuning s")

ROUNDS = 31
ROUND_SECONDS = 0.05


def tuned_row(
    imported: Imported, name: str, gpu: str | None, folder: Path, compiler: str
) -> tuple[object, ...]:
    """Tune a network and return its row of the table.

    Args:
        imported: The network.
        name: The network's name, a C identifier.
        gpu: The profile with which tuning begins; None for the target's own.
        folder: The folder for projects.
        compiler: Name of the C compiler.
    """
    own = Options(target="vulkan", gpu=gpu, backends=("vulkan", "c"), name=name)
    start = time.perf_counter()
    found = tune(imported, own, rounds=20)
    tuning = found.tuning
    seconds = time.perf_counter() - start
    setups = own, replace(own, gpu=None, tuning=tuning, name=f"{name}_tuned")
    artifacts = [compile_model(imported, setup) for setup in setups]
    (sample,) = random_samples(artifacts[0].graph, 1, 0)
    engines = [build_library(artifact, sample, folder, compiler) for artifact in artifacts]
    count = max(1, round(ROUND_SECONDS / (engines[0].seconds(3) / 3)))
    rounds = [[engine.seconds(count) / count for engine in engines] for _ in range(ROUNDS)]
    before, after = (statistics.median(column) for column in zip(*rounds, strict=True))
    return (
        name,
        tuning.profile,
        f"{before * 1e3:.2f}",
        f"{after * 1e3:.2f}",
        f"{statistics.median(b / a for a, b in rounds):.2f}",
        f"{len(tuning.blocks)} of {len(found.layers)}",
        f"{seconds:.0f}",
    )

"""Run networks on this computer under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from smelt.api.artifact import Artifact
from smelt.boards import compile_project, open_device
from smelt.samples import Sample
from tests.support.graphs import SampleOutputs
from tests.support.projects import SANITIZERS


def run_sanitized(artifact: Artifact, samples: Sequence[Sample], folder: Path) -> SampleOutputs:
    """Build a network with both sanitizers, run it and return its outputs."""
    artifact.with_firmware().write(folder)
    elf = compile_project(
        folder, artifact.platform, extra_cflags=SANITIZERS, extra_ldflags=SANITIZERS
    )
    outputs: SampleOutputs = []
    with open_device(elf.path, "host") as device:
        for sample in samples:
            answers, _ = device.run([array.tobytes() for array in sample])
            values = artifact.graph.outputs
            outputs.append(
                tuple(
                    np.frombuffer(data, v.type.dtype.numpy).reshape(v.type.shape)
                    for data, v in zip(answers, values, strict=True)
                )
            )
    return outputs

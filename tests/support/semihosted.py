"""Run networks on simulated Cortex-M cores with data passed by semihosting.

The firmware is the product's except for the serial line, which takes longer to simulate than many
networks. The serial line has its own tests.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from smelt.api.artifact import Artifact
from smelt.boards.simulate import EMULATORS
from smelt.ir import Array
from smelt.ops.run_time_lengths import cut, find_marks, sizes_of
from smelt.proof.rig import built
from smelt.proof.run import device_inputs, run
from smelt.samples import Sample

_SERVED = "cortexm"
"""The kind of core, as boards name it."""
_TIMEOUT_S = 900
_FILES = {
    "firmware/wire.c": (Path(__file__).parent / "firmware" / "semihosted.c").read_text("utf-8"),
}


def outputs_of(artifact: Artifact, samples: Sequence[Sample]) -> list[tuple[Array, ...]]:
    """Return the network's outputs for each sample, on the host or the simulator of its board."""
    board, graph = artifact.board, artifact.graph
    if board is None or board.qemu is None or board.startup != _SERVED:
        return list(run(artifact, samples).outputs)
    project = artifact.project
    assert project.files.keys() >= _FILES.keys()
    other = replace(artifact, project=replace(project, files={**project.files, **_FILES}))
    sizes = [sizes_of(graph, sample) for sample in samples]
    with built(other) as elf, tempfile.TemporaryDirectory() as folder:
        parts = [np.array([len(samples), len(graph.lengths)], np.uint32).tobytes()]
        for sample, known in zip(samples, sizes, strict=True):
            lengths = [known[length.name] for length in graph.lengths]
            parts.append(np.array(lengths, np.uint32).tobytes())
            parts += device_inputs(graph, sample)
        (Path(folder) / "in.bin").write_bytes(b"".join(parts))
        ran = subprocess.run(
            [EMULATORS[_SERVED], "-machine", board.qemu.machine, *board.qemu.arguments,
             "-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot",
             "-semihosting-config", "enable=on,target=native", "-kernel", str(elf.path)],
            cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=_TIMEOUT_S,
        )  # fmt: skip
        written = Path(folder) / "out.bin"
        data = written.read_bytes() if written.exists() else b""
    marks = find_marks(graph)
    types = [value.type for value in graph.outputs]
    bytes_each = sum(type_.bytes for type_ in types)
    assert len(data) == bytes_each * len(samples), ran.stdout + ran.stderr
    found: list[tuple[Array, ...]] = []
    position = 0
    for known in sizes:
        tensors: list[Array] = []
        for value in graph.outputs:
            array = np.frombuffer(data, value.type.dtype.numpy, value.type.size, position)
            tensors.append(cut(value, array.reshape(value.type.shape), marks, known))
            position += value.type.bytes
        found.append(tuple(tensors))
    return found

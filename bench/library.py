"""Load a generated network into this process, to measure the time of many inferences."""

from __future__ import annotations

import ctypes
import subprocess
import time
from pathlib import Path

import numpy as np

from smelt.api.artifact import Artifact
from smelt.ir import Array, Value
from smelt.samples import Sample

DRIVER = """
#include <string.h>
#include "NAME.h"

static uint64_t arena[(MACRO_ARENA_BYTES + 63) / 8 + 8];
static MACRO_t network;

int driver_start(void) {
    NAME_memory_t memory;
    memset(&memory, 0, sizeof memory);
    memory.arena = (void *)(((uintptr_t)arena + 63u) / 64u * 64u);
    return (int)NAME_init(&network, &memory);
}

/* Write the inputs before each inference, because inferences may overwrite them. */
int driver_infer(const void *const *inputs, const uint32_t *bytes, int repeats) {
    int status = 0;
    for (int i = 0; i < repeats; ++i) {
        for (int input = 0; input < MACRO_INPUT_COUNT; ++input) {
            memcpy(NAME_input(&network, input), inputs[input], bytes[input]);
        }
        status |= (int)NAME_invoke(&network);
    }
    return status;
}

const void *driver_output(int index) {
    return NAME_output(&network, index);
}
"""


class MeasuredLibrary:
    """A loaded network that computes one sample repeatedly."""

    def __init__(self, path: Path, sample: Sample, outputs: tuple[Value, ...]) -> None:
        self._code = ctypes.CDLL(str(path))
        self._code.driver_output.restype = ctypes.c_void_p
        self._values = outputs
        self._sample = [np.ascontiguousarray(x) for x in sample]
        addresses = [x.ctypes.data for x in self._sample]
        self._inputs = (ctypes.c_void_p * len(addresses))(*addresses)
        self._bytes = (ctypes.c_uint32 * len(addresses))(*(x.nbytes for x in self._sample))
        if self._code.driver_start() != 0:
            raise RuntimeError(f"{path}: the network does not start")

    def seconds(self, repeats: int) -> float:
        """Return the seconds of `repeats` inferences."""
        start = time.perf_counter()
        if self._code.driver_infer(self._inputs, self._bytes, repeats) != 0:
            raise RuntimeError("an inference failed")
        return time.perf_counter() - start

    def outputs(self) -> list[Array]:
        """Return the outputs of one inference."""
        self.seconds(1)
        found: list[Array] = []
        for index, value in enumerate(self._values):
            data = ctypes.string_at(self._code.driver_output(index), value.type.bytes)
            found.append(np.frombuffer(data, value.type.dtype.numpy).reshape(value.type.shape))
        return found


def build_library(
    artifact: Artifact, sample: Sample, folder: Path, compiler: str
) -> MeasuredLibrary:
    """Compile a network for the host with the flags of its project, and load it.

    Args:
        artifact: A network without states, compiled for the host.
        sample: Its inputs.
        folder: The folder for the project.
        compiler: Name of the C compiler.
    """
    name = artifact.network.name
    artifact.write(folder / name)
    text = DRIVER.replace("MACRO_t", f"{name}_t").replace("MACRO", artifact.network.macro)
    (folder / name / "driver.c").write_text(text.replace("NAME", name))
    flags = artifact.platform.target.compile_flags(artifact.options.optimize)
    sources = ["driver.c", *artifact.network.sources]
    command = [compiler, *flags, "-fPIC", "-shared", *sources, "-lm", "-o", "library.so"]
    subprocess.run(command, cwd=folder / name, check=True)
    return MeasuredLibrary(folder / name / "library.so", sample, artifact.graph.outputs)

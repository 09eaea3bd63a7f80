"""Run many compiled networks in one program, each in its own process.

A crash or hang is therefore attributed to one network, and the others still run.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smelt.api.artifact import Artifact
from smelt.ir import Array
from smelt.samples import Sample
from tests.differential.builds import BASE_FLAGS, Build

Outputs = list[tuple[Array, ...]]
"""Per sample, one array per output."""
SECONDS = 60
"""Processor time after which a network counts as hanging."""
_GUARD = 64
"""Bytes behind each memory; the network must not write them."""

_MAIN = r"""
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
%(includes)s

static uint8_t *memory_of(size_t bytes, size_t alignment) {
    void *memory = NULL;
    if (posix_memalign(&memory, alignment, bytes + %(guard)d)) {
        exit(90);
    }
    memset(memory, 0x5A, bytes + %(guard)d);
    return memory;
}

static void check_guard(const uint8_t *memory, size_t bytes) {
    for (size_t i = 0; i < %(guard)d; ++i) {
        if (memory[bytes + i] != 0x5A) {
            exit(91);
        }
    }
}

static void need(int holds) {
    if (!holds) {
        exit(92);
    }
}

%(functions)s

static const struct { const char *name; void (*run)(FILE *, FILE *); } networks[] = {
%(table)s
};

int main(void) {
    const struct rlimit limit = {%(seconds)d, %(seconds)d};
    for (size_t i = 0; i < sizeof networks / sizeof networks[0]; ++i) {
        int status = 0;
        const pid_t child = fork();
        if (child == 0) {
            char path[256];
            FILE *in, *out;
            setrlimit(RLIMIT_CPU, &limit);
            snprintf(path, sizeof path, "%%s.in", networks[i].name);
            in = fopen(path, "rb");
            snprintf(path, sizeof path, "%%s.out", networks[i].name);
            out = fopen(path, "wb");
            need(in && out);
            networks[i].run(in, out);
            need(!fclose(out));
            _exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child) {
            return 1;
        }
        status = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
        printf("%%s %%d\n", networks[i].name, status);
    }
    return 0;
}
"""
_STATUS = {
    90: "is out of memory",
    91: "writes behind its memory",
    92: "returns an error, or its samples cannot be read or written",
    93: "overwrites its inputs, though asked to keep them",
}


@dataclass(frozen=True)
class Failure:
    """The reason why a network has no outputs."""

    what: str


@dataclass(frozen=True)
class Compiled:
    """A compiled network with its samples; its sources are in `folder`."""

    artifact: Artifact
    samples: Sequence[Sample]
    folder: Path

    @property
    def name(self) -> str:
        return self.artifact.network.name

    @staticmethod
    def of(artifact: Artifact, samples: Sequence[Sample], folder: Path) -> Compiled:
        """Write the sources of a network and the bytes of its samples into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        name = artifact.network.name
        for path, text in artifact.project.files.items():
            if path.startswith(name):
                (folder / path).write_text(text)
        data = b"".join(array.tobytes() for sample in samples for array in sample)
        (folder / f"{name}.in").write_bytes(data)
        return Compiled(artifact, samples, folder)

    def function(self) -> str:
        """Return the C function that runs all samples of this network."""
        net = self.artifact.network
        memories = [("arena", net.arena_bytes)]
        if net.has_state:
            memories.append(("state", net.state_bytes))
        made = "".join(
            f"    uint8_t *const {m} = memory_of({size}, {max(net.alignment, 8)});\n"
            for m, size in memories
        )
        given = "".join(
            f"    static uint8_t given{i}[{t.bytes}];\n" for i, t in enumerate(net.inputs)
        )
        reads = "".join(
            f"        need(fread(given{i}, 1, {t.bytes}, in) == {t.bytes});\n"
            f"        memcpy({net.name}_input(&context, {i}), given{i}, {t.bytes});\n"
            for i, t in enumerate(net.inputs)
        )
        kept = "".join(
            f"        if (memcmp({net.name}_input(&context, {i}), given{i}, {t.bytes})) {{\n"
            "            exit(93);\n        }\n"
            for i, t in enumerate(net.inputs)
            if net.keep_inputs
        )
        writes = "".join(
            f"        need(fwrite({net.name}_output(&context, {i}), 1, {t.bytes}, out)"
            f" == {t.bytes});\n"
            for i, t in enumerate(net.outputs)
        )
        checks = "".join(f"        check_guard({m}, {size});\n" for m, size in memories)
        return (
            f"static void run_{net.name}(FILE *in, FILE *out) {{\n"
            f"    static {net.name}_t context;\n{given}{made}"
            f"    const {net.name}_memory_t memory = {{{', '.join(m for m, _ in memories)}}};\n"
            f"    need(!{net.name}_init(&context, &memory));\n"
            f"    for (int sample = 0; sample < {len(self.samples)}; ++sample) {{\n"
            f"{reads}        need(!{net.name}_invoke(&context));\n"
            f"{writes}{checks}{kept}    }}\n}}\n"
        )

    def outputs(self, path: Path) -> Outputs:
        """Read the outputs that the program wrote."""
        data = path.read_bytes()
        types = [value.type for value in self.artifact.graph.outputs]
        found, position = Outputs(), 0
        for _ in self.samples:
            arrays = list[Array]()
            for type_ in types:
                array = np.frombuffer(data, type_.dtype.numpy, type_.size, position)
                arrays.append(array.reshape(type_.shape))
                position += type_.bytes
            found.append(tuple(arrays))
        return found


def run_host(
    networks: Sequence[Compiled], build: Build, folder: Path
) -> Mapping[str, Outputs | Failure]:
    """Compile the networks with one compiler and run them; return outputs or failures by name."""
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Outputs | Failure] = {}
    built, objects = list[Compiled](), list[Path]()
    for network in networks:
        made = _objects(network, build, folder)
        if isinstance(made, Failure):
            results[network.name] = made
        else:
            built.append(network)
            objects += made
    if built:
        statuses = _run(built, objects, build, folder)
        for network in built:
            results[network.name] = _result(network, statuses[network.name], folder)
    return results


def _objects(network: Compiled, build: Build, folder: Path) -> list[Path] | Failure:
    """Compile a network's object files; those of its weights are shared by all builds."""
    objects = list[Path]()
    for here in (network.folder, folder):
        names = [s for s in network.artifact.network.sources if s.endswith(".c")]
        names = [s for s in names if s.endswith("_weights.c") == (here == network.folder)]
        made = [here / f"{Path(s).stem}.o" for s in names]
        objects += made
        if here == network.folder and all(path.exists() for path in made):
            continue
        command = [*build.command, *BASE_FLAGS, "-c", *(str(network.folder / s) for s in names)]
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
        if done.returncode:
            return Failure(f"does not compile: {done.stderr.strip()[:2000]}")
    return objects


def _run(
    networks: Sequence[Compiled], objects: Sequence[Path], build: Build, folder: Path
) -> dict[str, int]:
    """Return each network's exit status, or the negated number of the signal that ended it."""
    main = folder / "main.c"
    text = _MAIN % {
        "guard": _GUARD,
        "seconds": SECONDS,
        "includes": "\n".join(f'#include "{n.folder / n.name}.h"' for n in networks),
        "functions": "\n".join(n.function() for n in networks),
        "table": ",\n".join(f'    {{"{n.name}", run_{n.name}}}' for n in networks),
    }
    main.write_text(text)
    program = folder / "program"
    command = [build.command[0], "-O0", "-std=c99", str(main), *map(str, objects), "-lm", "-o"]
    subprocess.run([*command, str(program)], capture_output=True, text=True, check=True)
    for network in networks:
        (folder / f"{network.name}.in").unlink(missing_ok=True)
        (folder / f"{network.name}.in").symlink_to(network.folder / f"{network.name}.in")
    ran = subprocess.run([str(program)], cwd=folder, capture_output=True, text=True, check=True)
    return {name: int(status) for name, status in map(str.split, ran.stdout.splitlines())}


def _result(network: Compiled, status: int, folder: Path) -> Outputs | Failure:
    if status == 0:
        return network.outputs(folder / f"{network.name}.out")
    if status == -signal.SIGXCPU or status == -signal.SIGKILL:
        return Failure(f"does not end within {SECONDS} s")
    if status < 0:
        return Failure(f"ends with {signal.Signals(-status).name}")
    return Failure(_STATUS.get(status, f"ends with status {status}"))

"""Programs of networks on a GPU: loaded into this process, or started as a new one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.library import DRIVER, MeasuredLibrary
from smelt.api.artifact import Artifact
from smelt.samples import Sample

CACHE_FILE, DRIVER_CACHE = "SMELT_BENCH_CACHE", "SMELT_BENCH_DRIVER_CACHE"
"""Environment variables of a program: its cache file, and the folder of Mesa's own cache."""

OPEN = """
#include <string.h>
#include "NAME.h"

static NAME_gpu_t gpu;
static NAME_t network;

int driver_start(void) {
    static smelt_vulkan_cache_t cache;
    const smelt_vulkan_options_t options = {SMELT_VULKAN_ANY_DEVICE, 0, CACHE, &cache, FOLDER};
    const NAME_memory_t memory = {&gpu};
    return NAME_gpu_open(&gpu, &options) != 0 || NAME_init(&network, &memory) != MACRO_OK;
}
"""

FIRST = """
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(void) {
    const double start = now();
    if (driver_start() != 0 || NAME_invoke(&network) != MACRO_OK) {
        fprintf(stderr, "%s\\n", gpu.vulkan.message);
        return 1;
    }
    printf("%.6f\\n", now() - start);
    NAME_gpu_close(&gpu);
    return 0;
}
"""

_INFER = DRIVER[DRIVER.index("/* Write the inputs") :]


def build_library(
    artifact: Artifact, sample: Sample, folder: Path, compiler: str
) -> MeasuredLibrary:
    """Compile a network for a GPU with the flags of its project, and open it.

    Args:
        artifact: A network compiled for target vulkan.
        sample: Its inputs.
        folder: The folder for the project.
        compiler: Name of the C compiler.
    """
    place = _write(artifact, folder, OPEN + _INFER, "driver.c")
    _compile(artifact, place, compiler, ("-fPIC", "-shared"), "driver.c", "library.so")
    return MeasuredLibrary(place / "library.so", sample, artifact.graph.outputs)


def build_program(artifact: Artifact, folder: Path, compiler: str) -> Path:
    """Build a program that opens a GPU, runs one inference and prints the seconds of both."""
    place = _write(artifact, folder, OPEN + FIRST, "first.c")
    flags = ("-Wl,--gc-sections", "-s")
    _compile(artifact, place, compiler, flags, "first.c", "first")
    return place / "first"


def first_seconds(program: Path, environment: Mapping[str, str]) -> float:
    """Run the program of `build_program` and return the seconds that it prints."""
    done = subprocess.run(
        [str(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def _write(artifact: Artifact, folder: Path, text: str, file: str) -> Path:
    name = artifact.network.name
    if not (folder / name).exists():
        artifact.write(folder / name)
    for old, new in (
        ("MACRO", artifact.network.macro),
        ("NAME", name),
        ("CACHE", f'getenv("{CACHE_FILE}")'),
        ("FOLDER", f'getenv("{DRIVER_CACHE}")'),
    ):
        text = text.replace(old, new)
    (folder / name / file).write_text("#include <stdlib.h>\n" + text)
    return folder / name


def _compile(
    artifact: Artifact, place: Path, compiler: str, flags: tuple[str, ...], own: str, output: str
) -> None:
    target = artifact.platform.target.compile_flags(artifact.options.optimize)
    target = tuple("-std=c11" if flag == "-std=c99" else flag for flag in target)
    sources = [own, *artifact.network.sources]
    command = [compiler, *target, *flags, *sources, "-lvulkan", "-lm", "-o", output]
    subprocess.run(command, cwd=place, check=True)

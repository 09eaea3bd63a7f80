"""Code for RV32IMAC: by semihosting with the C library's startup, and on boards."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from shutil import which

import numpy as np
import pytest

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.errors import ConfigError
from smelt.ir import Array, evaluate
from smelt.proof.profile import profile_model
from smelt.proof.run import run
from smelt.samples import Sample, random_samples
from tests.support.kernels_host import WARNINGS
from tests.support.projects import digits, images, must
from tests.support.shared import Network, networks
from tests.support.tflite_networks import DIGITS

BOARDS = ("virt-riscv32", "sifive_e")
COMPILER, SIMULATOR = "riscv64-unknown-elf-gcc", "qemu-system-riscv32"
PICOLIBC = Path("/usr/lib/picolibc/riscv64-unknown-elf")
MEMORY = {
    "__flash": 0x8000_0000,
    "__flash_size": 0x40_0000,
    "__ram": 0x8040_0000,
    "__ram_size": 0x40_0000,
}

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.skipif(
        which(COMPILER) is None or which(SIMULATOR) is None or not PICOLIBC.exists(),
        reason=f"{COMPILER}, {SIMULATOR} or picolibc is not installed",
    ),
]

MAIN = """
#include <stdio.h>
#include <string.h>
#include "NAME.h"

static _Alignas(16) uint8_t arena[MACRO_ARENA_BYTES];
static const uint8_t samples[COUNT][SIZE] = { DATA };

int main(void) {
    NAME_t net;
    NAME_memory_t memory;
    memset(&memory, 0, sizeof memory);
    memory.arena = arena;
    if (NAME_init(&net, &memory) != 0) {
        return 1;
    }
    for (int i = 0; i < COUNT; ++i) {
        memcpy(NAME_input(&net, 0), samples[i], SIZE);
        if (NAME_invoke(&net) != 0) {
            return 1;
        }
        const uint8_t *const output = NAME_output(&net, 0);
        for (int k = 0; k < OUTPUT; ++k) {
            printf("%02x", output[k]);
        }
        printf("\\n");
    }
    return 0;
}
"""


def run_riscv(artifact: Artifact, samples: Sequence[Sample], folder: Path) -> list[Array]:
    """Return the first output of each sample."""
    artifact.write(folder)
    (value,), name = artifact.graph.outputs, artifact.network.name
    rows = (f"{{{','.join(map(str, sample[0].tobytes()))}}}" for sample in samples)
    text = MAIN.replace("NAME", name).replace("MACRO", artifact.network.macro)
    text = text.replace("COUNT", str(len(samples))).replace("DATA", ",".join(rows))
    text = text.replace("SIZE", str(samples[0][0].nbytes))
    (folder / "driver.c").write_text(text.replace("OUTPUT", str(value.type.bytes)))
    target = artifact.platform.target
    flags = [*target.arch_flags, *target.compile_flags(artifact.options.optimize), *WARNINGS]
    libc = ["--specs=picolibc.specs", "--oslib=semihost", "--crt0=semihost"]
    place = [f"-Wl,--defsym={symbol}={value:#x}" for symbol, value in MEMORY.items()]
    sources = ["driver.c", *artifact.network.sources]
    command = [COMPILER, *flags, *libc, *sources, *place, "-o", "net.elf"]
    subprocess.run(command, cwd=folder, check=True)
    machine = ["-machine", "virt", "-bios", "none", "-semihosting", "-display", "none"]
    done = subprocess.run(
        [SIMULATOR, *machine, "-monitor", "none", "-kernel", "net.elf"],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    return [
        np.frombuffer(bytes.fromhex(line), value.type.dtype.numpy).reshape(value.type.shape)
        for line in done.stdout.split()
    ]


def check(model: Path, folder: Path) -> Artifact:
    artifact = compile_model(model, Options(target="rv32imac"))
    samples = random_samples(artifact.graph, 3, seed=2)
    found = run_riscv(artifact, samples, folder / "project")
    for output, sample in zip(found, samples, strict=True):
        np.testing.assert_array_equal(output, evaluate(artifact.graph, sample).outputs[0])
    return artifact


def test_digits(tmp_path: Path) -> None:
    artifact = check(DIGITS / "digits_int8.tflite", tmp_path)
    assert {"armv6m", "c"} >= {step.backend for step in artifact.schedule.calls}
    assert "armv6m" in {step.backend for step in artifact.schedule.calls}


@pytest.mark.quick(every=2)
@pytest.mark.parametrize("optimize", ["size", "ram"])
def test_a_board_runs_small_code(optimize: str) -> None:
    options = Options(board="sifive_e", optimize="size" if optimize == "size" else "ram")
    inputs, expected = images(2)
    outputs = run(digits(options), [(image,) for image in inputs]).outputs
    np.testing.assert_array_equal([output for (output,) in outputs], expected)


def test_instructions_are_exact() -> None:
    """The simulated core's counter equals the simulator's own clock."""
    inputs, _ = images(1)
    runs = [run(digits(Options(board=board)), [(inputs[0],)]) for board in BOARDS]
    first, second = (done.report["inference"]["instructions"] for done in runs)
    assert first == second > 10_000


def test_a_profile_by_layer_is_refused() -> None:
    artifact = digits(Options(board="virt-riscv32"))
    sample = (images(1)[0][0],)
    with pytest.raises(ConfigError, match="with a Cortex-M, not 'virt-riscv32'"):
        profile_model(artifact, sample)


@pytest.mark.thorough
def test_a_library_finds_the_c_library(tmp_path: Path) -> None:
    digits(Options(target="rv32imac")).write(tmp_path / "made")
    must("make", cwd=tmp_path / "made")
    must("cmake", "-B", "build-cmake", cwd=tmp_path / "made")
    must("cmake", "--build", "build-cmake", cwd=tmp_path / "made")
    assert (tmp_path / "made/build/libdigits_int8_net.a").stat().st_size > 0
    assert (tmp_path / "made/build-cmake/libdigits_int8_net.a").stat().st_size > 0


@pytest.mark.quick(every=3)
@networks("mlperf_tiny/kws_int8", "mlperf_tiny/vww_int8", "mlperf_tiny/ad_int8")
def test_networks(network: Network, tmp_path: Path) -> None:
    check(network.model, tmp_path)

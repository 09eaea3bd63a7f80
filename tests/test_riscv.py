"""Code for RV32IMAC, which has no board yet, on QEMU's `virt` machine by semihosting."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from shutil import which

import numpy as np
import pytest

from smelt.ir import Array, evaluate
from smelt.pipeline import Artefact, Options, compile_model
from smelt.samples import Sample, random_samples
from tests.kernels_host import WARNINGS
from tests.shared import Network, networks
from tests.tflite_networks import DIGITS

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


def run_riscv(artefact: Artefact, samples: Sequence[Sample], folder: Path) -> list[Array]:
    """The first output of each sample."""
    artefact.write(folder)
    (value,), name = artefact.graph.outputs, artefact.network.name
    rows = (f"{{{','.join(map(str, sample[0].tobytes()))}}}" for sample in samples)
    text = MAIN.replace("NAME", name).replace("MACRO", artefact.network.macro)
    text = text.replace("COUNT", str(len(samples))).replace("DATA", ",".join(rows))
    text = text.replace("SIZE", str(samples[0][0].nbytes))
    (folder / "driver.c").write_text(text.replace("OUTPUT", str(value.type.bytes)))
    target = artefact.platform.target
    flags = [*target.arch_flags, *target.compile_flags(artefact.options.optimize), *WARNINGS]
    libc = ["--specs=picolibc.specs", "--oslib=semihost", "--crt0=semihost"]
    place = [f"-Wl,--defsym={symbol}={value:#x}" for symbol, value in MEMORY.items()]
    sources = ["driver.c", *artefact.network.sources]
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
        timeout=120,
    )
    return [
        np.frombuffer(bytes.fromhex(line), value.type.dtype.numpy).reshape(value.type.shape)
        for line in done.stdout.split()
    ]


def check(model: Path, folder: Path) -> Artefact:
    artefact = compile_model(model, Options(target="rv32imac"))
    samples = random_samples(artefact.graph, 3, seed=2)
    found = run_riscv(artefact, samples, folder / "project")
    for output, sample in zip(found, samples, strict=True):
        np.testing.assert_array_equal(output, evaluate(artefact.graph, sample).outputs[0])
    return artefact


def test_digits(tmp_path: Path) -> None:
    artefact = check(DIGITS / "digits_int8.tflite", tmp_path)
    assert {"cortexm", "c"} >= {step.backend for step in artefact.schedule.steps}
    assert "cortexm" in {step.backend for step in artefact.schedule.steps}


@networks("mlperf_tiny/kws_int8", "mlperf_tiny/vww_int8", "mlperf_tiny/ad_int8")
def test_networks(network: Network, tmp_path: Path) -> None:
    check(network.model, tmp_path)

"""The builds of a network: Smelt's target and options, and the C compiler with its flags."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

from smelt.api.options import Options
from smelt.targets import Optimize
from tests.conftest import QEMU_TOOLS
from tests.support.graphs import SETUPS, TWINS
from tests.support.kernels_host import WARNINGS

OPTIMIZES: tuple[Optimize, ...] = get_args(Optimize)


@dataclass(frozen=True)
class Build:
    """A target for Smelt, and a compiler with flags for the generated code.

    Attributes:
        name: its name on the command line.
        core: Smelt's target: `host` or a Cortex-M core.
        command: compiler and flags; empty for simulators, whose builds are the product's own.
    """

    name: str
    core: str
    command: tuple[str, ...] = ()

    @property
    def simulated(self) -> bool:
        """Return whether the build is firmware that runs under QEMU."""
        return not self.command

    def options(self, optimize: Optimize, name: str | None = None) -> Options:
        """Return the options for Smelt."""
        if self.simulated:
            board = SETUPS[self.core]
            return Options(board.target, board.board, optimize, name)
        twin = Options() if self.core == "host" else TWINS[f"host as {self.core}"]
        return Options(twin.target, twin.board, optimize, name)

    def missing(self) -> str:
        """Return what this computer lacks for the build; empty if nothing."""
        if self.simulated:
            return ", ".join(tool for tool in QEMU_TOOLS if shutil.which(tool) is None)
        if shutil.which(self.command[0]) is None:
            return self.command[0]
        level = next((f for f in self.command if f.startswith("-march=")), "").partition("=")[2]
        return "" if not level or level in levels() else f"a processor of {level}"


def _march(level: str) -> str:
    return f"-march=x86-64-{level}"


BUILDS = {
    build.name: build
    for build in (
        *(Build(f"gcc{level}", "host", ("gcc", level)) for level in ("-O0", "-O2", "-O3", "-Os")),
        *(Build(f"clang{level}", "host", ("clang", level)) for level in ("-O2", "-Os")),
        *(Build(f"gcc-{v}", "host", ("gcc", "-O2", _march(v))) for v in ("v2", "v3", "v4")),
        Build("clang-v4", "host", ("clang", "-O2", _march("v4"))),
        *(Build(f"{core}-gcc", core, ("gcc", "-O2")) for core in ("m0", "m4", "m55")),
        *(Build(f"{core}-clang", core, ("clang", "-O2")) for core in ("m0", "m4", "m55")),
        *(Build(f"{core}-qemu", core) for core in ("m0", "m4", "m55")),
    )
}
"""All builds by name. All except the simulated ones run on this computer."""
BASE_FLAGS = ("-std=c99", "-ffp-contract=off", *WARNINGS)
"""Flags of the generated Makefile, except the optimization level."""

_PROBE = """
#include <stdio.h>
int main(void) {
    if (__builtin_cpu_supports("x86-64-v2")) puts("x86-64-v2");
    if (__builtin_cpu_supports("x86-64-v3")) puts("x86-64-v3");
    if (__builtin_cpu_supports("x86-64-v4")) puts("x86-64-v4");
    return 0;
}
"""


@cache
def levels() -> frozenset[str]:
    """Return the x86-64 levels of this computer's processor; none on other processors."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "probe"
        compiled = subprocess.run(
            ["gcc", "-x", "c", "-", "-o", str(program)],
            input=_PROBE, text=True, capture_output=True, check=False,
        )  # fmt: skip
        if compiled.returncode:
            return frozenset()
        ran = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    return frozenset(ran.stdout.split())


def available(names: Sequence[str]) -> tuple[list[Build], list[str]]:
    """Return the builds that can be made and run here, and why the others cannot."""
    builds, reasons = list[Build](), list[str]()
    for name in names:
        missing = BUILDS[name].missing()
        if missing:
            reasons.append(f"{name}: there is no {missing}")
        else:
            builds.append(BUILDS[name])
    return builds, reasons

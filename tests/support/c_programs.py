"""C programs that use the networks of projects, compiled and run under sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

from smelt.ir import Array
from tests.support.projects import SANITIZERS, must, network_sources

HARNESS = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#define CHECK(condition)                                  \\
    if (!(condition)) {                                   \\
        printf("line %d: %s\\n", __LINE__, #condition); \\
        return 1;                                         \\
    }
#define ALIGNED __attribute__((aligned(64)))
"""


def c_array(name: str, array: Array) -> str:
    kind = {"f4": "float", "i1": "int8_t"}[array.dtype.str[1:]]
    text = ", ".join(map(repr, array.reshape(-1).tolist()))
    return f"static const {kind} {name}[{array.size}] = {{{text}}};\n"


def run_c(folder: Path, source: str, projects: Sequence[Path], flags: Sequence[str] = ()) -> None:
    """Compile and run a program with the networks of some projects; fail if it returns an error."""
    program = folder / "program.c"
    program.write_text(HARNESS + dedent(source))
    networks_ = [str(path) for project in projects for path in network_sources(project)]
    includes = [f"-I{project}" for project in projects]
    sanitizers = SANITIZERS.split()
    command = ["gcc", "-std=c99", *sanitizers, *flags, *includes, str(program), *networks_]
    must(*command, "-lm", "-o", str(folder / "program"))
    done = subprocess.run([folder / "program"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

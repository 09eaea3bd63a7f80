"""Compilers and flags that generated networks are compiled with."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.projects import must

COMPILERS = ("gcc", "clang", *(f"gcc-{n}" for n in (11, 12, 13, 14)),
             *(f"clang-{n}" for n in range(14, 20)), "zig")  # fmt: skip
"""Names of programs; `zig` is the clang of the Python package `ziglang`."""
STANDARDS = {
    "c99": ("-std=c99",),
    "c11": ("-std=c11",),
    "c17": ("-std=c17",),
    "c++17": ("-x", "c++", "-std=c++17"),
}
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion")
EVERYTHING = (
    "-Weverything",
    "-Werror",
    "-Wno-unknown-warning-option",
    "-Wno-unsafe-buffer-usage",
    "-Wno-declaration-after-statement",
    "-Wno-cast-align",
    "-Wno-float-equal",
    "-Wno-unused-macros",
    "-Wno-padded",
)
"""All warnings of clang except those that `docs/generated-code.md` excludes, with reasons."""
NOT_FOR_CPP = (
    "-Wno-old-style-cast",
    "-Wno-zero-as-null-pointer-constant",
    "-Wno-c++98-compat-pedantic",
)
"""C++ warnings that text which must also be C cannot avoid."""
NO_GNU_C = ("-U__GNUC__", "-fno-gnu-inline-asm")
"""Make clang pretend to be a compiler without GNU C: assembly is then an error."""
_STRING = """
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t count);
void *memmove(void *to, const void *from, size_t count);
void *memset(void *to, int value, size_t count);
"""


def compiler(name: str) -> list[str]:
    """Return the command of a compiler of `COMPILERS`; skip the test if it is not installed."""
    if name == "zig":
        if importlib.util.find_spec("ziglang") is None:
            pytest.skip("the Python package ziglang is not installed")
        return [sys.executable, "-m", "ziglang", "cc"]
    if shutil.which(name) is None:
        pytest.skip(f"not on PATH: {name}")
    return [name]


def require_cpp(command: Sequence[str]) -> None:
    """Skip the test if a compiler is installed without its C++ part."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "empty.cpp")
        empty.touch()
        call = [*command, "-c", str(empty), "-o", "/dev/null"]
        done = subprocess.run(call, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{command[0]} cannot compile C++ here")


def newest_clang() -> list[str]:
    """Return the command of the newest installed clang; skip the test if there is none."""
    names = [*(f"clang-{n}" for n in range(19, 13, -1)), "clang"]
    found = next((name for name in names if shutil.which(name)), None)
    if found is None:
        pytest.skip("not on PATH: clang")
    return [found]


def bare_library(folder: Path) -> list[str]:
    """Write the C library's header that integer networks include; return the flags that find it.

    Clang for a core without an operating system brings none.
    """
    folder.mkdir()
    (folder / "string.h").write_text(_STRING)
    return ["-nostdlibinc", "-isystem", str(folder)]


def compile_all(command: Sequence[str], project: Path) -> None:
    """Compile every C file of a project's network, and fail the test at the first message."""
    sources = sorted(project.glob("*.c"))
    assert sources
    for source in sources:
        must(*command, "-O1", f"-I{project}", "-c", str(source), "-o", "/dev/null")

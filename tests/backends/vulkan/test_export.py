"""Exports of GPU networks: built with the README's commands, run, and compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from smelt.codegen.emit.export import formats
from smelt.errors import ConfigError
from tests.support.export_tools import WARNINGS, block, cmake, exported, known, need, project
from tests.support.projects import must
from tests.support.vulkan_tools import ON_GPU, program_of, requires_vulkan

pytestmark = requires_vulkan

OPTIONS = replace(ON_GPU, backends=("vulkan", "c"))
NAMES = pytest.mark.parametrize("name", ["digits_int8", "counter"])
"""One of the networks has state."""


@pytest.mark.quick(every=2)
@NAMES
def test_cmake(name: str, tmp_path: Path) -> None:
    need("cmake")
    artifact = exported(name, "cmake", tmp_path / name, OPTIONS)
    assert program_of(artifact) is not None
    (tmp_path / "CMakeLists.txt").write_text(block(tmp_path / name / "README.md", "cmake"))
    cmake(tmp_path, tmp_path / "build", f"-DCMAKE_C_FLAGS={' '.join(WARNINGS[:3])}")
    known(name).answers(tmp_path / "build/program")


@pytest.mark.quick(every=2)
@NAMES
def test_make(name: str, tmp_path: Path) -> None:
    exported(name, "make", tmp_path / name, OPTIONS)
    makefile = block(tmp_path / name / "README.md", "make")
    (tmp_path / "Makefile").write_text(f"CFLAGS = {' '.join(WARNINGS)}\n{makefile}")
    must("make", cwd=tmp_path)
    known(name).answers(tmp_path / "program")


@pytest.mark.thorough
def test_an_installed_library_can_be_linked(tmp_path: Path) -> None:
    need("cmake")
    exported("digits_int8", "cmake", tmp_path / "library", OPTIONS)
    cmake(tmp_path / "library", tmp_path / "build")
    must("cmake", "--install", str(tmp_path / "build"), "--prefix", str(tmp_path / "prefix"))
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.14)\nproject(program C)\n"
        "find_package(digits_int8_net 1.0.0 REQUIRED)\nadd_executable(program main.c)\n"
        "target_link_libraries(program PRIVATE digits_int8_net::digits_int8_net)\n"
    )
    cmake(tmp_path, tmp_path / "own", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    known("digits_int8").answers(tmp_path / "own/program")


@pytest.mark.parametrize("format_", sorted(set(formats()) - {"cmake", "make"}))
def test_formats_that_cannot_link_the_loader_are_refused(format_: str) -> None:
    artifact = known("digits_int8").compile(OPTIONS)
    with pytest.raises(ConfigError, match=r"it runs on a GPU.*--format cmake, make supports it"):
        project(artifact, format_)


@pytest.mark.parametrize("cpu_fallback", [False, True])
def test_readmes_say_who_owns_the_memory(cpu_fallback: bool, tmp_path: Path) -> None:
    """READMEs say whose memory the arena is, and close devices that failed to open."""
    options = replace(OPTIONS, cpu_fallback=cpu_fallback)
    artifact = exported("digits_int8", "make", tmp_path / "own", options)
    texts = [(tmp_path / "own/README.md").read_text(), artifact.project.files["README.md"]]
    for text in texts:
        start, _, rest = text.partition("int start(void) {")[2].partition("int predict(void) {")
        assert "digits_int8_net_gpu_close(&gpu);" in start
        assert "each with its own `digits_int8_net_gpu_t`" in rest
    exported_readme, header = texts[0], artifact.project.files["digits_int8_net.h"]
    assert "Only the driver uses a heap." in exported_readme
    assert ("the\ncaller provides the arena" in exported_readme) == cpu_fallback
    assert "Memory that the caller provides" not in header
    assert ("the caller provides none" in header) != cpu_fallback

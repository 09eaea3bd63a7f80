"""Exports for CMake, Make and single files, and properties of all formats: built, run, compared.

Expected outputs (`tests/support/export_tools.py`) are from LiteRT, TFLite Micro and arithmetic.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from smelt.api.options import Options
from smelt.codegen.emit import weights
from tests.emit.test_interface import delay_line, swap
from tests.schedule.test_lengths import SUMMARY, parse
from tests.support.cmsis_nn import API
from tests.support.export_tools import (
    COMPILERS,
    CROSS,
    EACH,
    HERE,
    M4,
    WARNINGS,
    block,
    cmake,
    compiles,
    compiles_main,
    export,
    exported,
    known,
    need,
    pack_command,
    runs,
)
from tests.support.graphs import combine, compile_graph
from tests.support.projects import counter, digits, must


@pytest.mark.quick(every=2)
@EACH
def test_cmake_library_works_as_a_subdirectory(name: str, tmp_path: Path) -> None:
    """Build the `CMakeLists.txt` of the README with compiler warnings as errors."""
    need("cmake")
    net = exported(name, "cmake", tmp_path / name).network
    (tmp_path / "CMakeLists.txt").write_text(block(tmp_path / name / "README.md", "cmake"))
    flags = f"-DCMAKE_C_FLAGS={' '.join(WARNINGS[:3])}"
    cmake(tmp_path, tmp_path / "build", flags, "-DCMAKE_BUILD_TYPE=Debug")
    known(name).answers(tmp_path / "build/program")
    log = (tmp_path / "build" / net.title / f"lib{net.name}.a").read_bytes()
    assert log.startswith(b"!<arch>")


@pytest.mark.quick(every=2)
@pytest.mark.parametrize("way", ["find_package", "FetchContent"])
def test_cmake_library_works_when_installed_or_fetched(way: str, tmp_path: Path) -> None:
    need("cmake")
    name, library = "digits_int8", tmp_path / "a library"
    exported(name, "cmake", library)
    find = f"find_package({name}_net 1.0.0 REQUIRED)"
    if way == "FetchContent":
        find = (
            f'include(FetchContent)\nFetchContent_Declare({name} SOURCE_DIR "{library}")\n'
            f"FetchContent_MakeAvailable({name})"
        )
    else:
        cmake(library, tmp_path / "build")
        must("cmake", "--install", str(tmp_path / "build"), "--prefix", str(tmp_path / "prefix"))
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "main.c").rename(project / "main.c")
    (project / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.14)\nproject(program C)\n{find}\n"
        "add_executable(program main.c)\n"
        f"target_link_libraries(program PRIVATE {name}_net::{name}_net)\n"
    )
    cmake(project, project / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    known(name).answers(project / "build/program")


@pytest.mark.quick(every=2)
@EACH
def test_make_library_works_in_a_project(name: str, tmp_path: Path) -> None:
    """Build the Makefile of the README; the library does not change its default target."""
    exported(name, "make", tmp_path / name)
    makefile = block(tmp_path / name / "README.md", "make")
    (tmp_path / "Makefile").write_text(f"CFLAGS = {' '.join(WARNINGS)}\n{makefile}")
    must("make", cwd=tmp_path)
    known(name).answers(tmp_path / "program")
    again = subprocess.check_output(["make"], cwd=tmp_path, text=True)
    assert "up to date" in again


@pytest.mark.qemu
def test_make_and_cmake_build_assembly_kernels_for_cortex_m(tmp_path: Path) -> None:
    """Build the exported folders alone."""
    exported("digits_int8", "make", tmp_path / "make", Options(target="cortex-m4"))
    must("make", cwd=tmp_path / "make")
    exported("digits_int8", "cmake", tmp_path / "cmake", Options(target="cortex-m4"))
    cmake(
        tmp_path / "cmake",
        tmp_path / "build",
        f"-DCMAKE_C_COMPILER={CROSS}",
        f"-DCMAKE_C_FLAGS={' '.join(M4)}",
        "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
        "-DCMAKE_SYSTEM_NAME=Generic",
    )
    archives = ["make/build/digits_int8_net/libdigits_int8_net.a", "build/libdigits_int8_net.a"]
    for archive in archives:
        code = subprocess.check_output(
            ["arm-none-eabi-objdump", "-d", str(tmp_path / archive)], text=True
        )
        assert "smlad" in code


@pytest.mark.quick(every=5)
@EACH
@COMPILERS
@pytest.mark.parametrize("language", ["c99", "c++17"])
def test_single_file_works_in_c_and_cpp(
    name: str, compiler: str, language: str, tmp_path: Path
) -> None:
    """One file has the implementation, in C or C++; `main.c` calls it."""
    need(compiler)
    net = exported(name, "single-file", tmp_path / "lib").network
    (tmp_path / "network.c").write_text(block(tmp_path / "lib/README.md", "c"))
    driver = {"gcc": "g++", "clang": "clang++"}[compiler] if "++" in language else compiler
    kind = ("-x", "c++") if "++" in language else ()
    command = [driver, *kind, f"-std={language}", "-O2", *WARNINGS, f"-I{tmp_path / 'lib'}"]
    sources = [tmp_path / "network.c"]
    objects = compiles(command, sources, tmp_path)
    caller = [tmp_path / "main.c"]
    objects += compiles(["gcc", "-std=c99", *WARNINGS, f"-I{tmp_path / 'lib'}"], caller, tmp_path)
    runs(objects, known(name), tmp_path, driver)
    assert f"{net.name}.h" in (tmp_path / "lib/README.md").read_text()


@pytest.mark.qemu
@pytest.mark.parametrize("name", ["digits_int8", "digits_float32"])
@pytest.mark.parametrize("format_", ["arduino", "cmsis-pack", "single-file"])
def test_pragmas_replace_flags_against_fused_products(
    name: str, format_: str, tmp_path: Path
) -> None:
    """If a format cannot set flags, pragmas keep the compiler from fusing products and sums."""
    integer = name == "digits_int8"
    exported(name, format_, tmp_path / "lib", Options(target="cortex-m4" if integer else "host"))
    source = tmp_path / f"lib/src/{name}_net_kernels.c"
    kind: tuple[str, ...] = ()
    if format_ == "single-file":
        source, kind = (
            tmp_path / f"lib/{name}_net.h",
            (f"-D{name.upper()}_NET_IMPLEMENTATION", "-xc"),
        )
    command = [CROSS, "-std=gnu11", "-O2", *M4, *kind, f"-I{tmp_path / 'lib/include'}", "-S"]
    code = subprocess.check_output([*command, str(source), "-o", "-"], text=True)
    assert len(re.findall("vmul.f32|smlad", code)) > 10
    assert "vfma" not in code
    assert ("fp-contract" in source.read_text()) == (not integer)


@pytest.mark.quick(every=5)
@pytest.mark.qemu
@pytest.mark.parametrize("format_", ["arduino", "cmsis-pack", "single-file", "make", "cmake"])
@pytest.mark.parametrize("target", ["cortex-m0", "cortex-m4", "cortex-m55"])
def test_exports_compile_for_every_core(format_: str, target: str, tmp_path: Path) -> None:
    """Code with assembly compiles in each format as GNU C11, which vendors' builds use."""
    artifact = exported("digits_int8", format_, tmp_path / "lib", Options(target=target))
    sources = sorted(path for path in (tmp_path / "lib").rglob("digits_int8*.c"))
    if format_ == "single-file":
        (tmp_path / "network.c").write_text(block(tmp_path / "lib/README.md", "c"))
        sources = [tmp_path / "network.c"]
    include = [f"-I{path.parent}" for path in (tmp_path / "lib").rglob("*.h")]
    flags = ["-std=gnu11", "-Os", *WARNINGS[:3], *artifact.platform.target.arch_flags, *include]
    compiles([CROSS, *flags], sources, tmp_path)


@pytest.mark.parametrize("format_", ["cmake", "make", "arduino", "zephyr", "platformio"])
def test_weights_in_a_binary_file_are_linked(
    format_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "BINARY_FROM", 0)
    name = "digits_int8"
    exported(name, format_, tmp_path / name)
    if format_ == "cmake":
        (tmp_path / "CMakeLists.txt").write_text(block(tmp_path / name / "README.md", "cmake"))
        cmake(tmp_path, tmp_path / "build")
        known(name).answers(tmp_path / "build/program")
    elif format_ == "make":
        (tmp_path / "Makefile").write_text(block(tmp_path / name / "README.md", "make"))
        must("make", cwd=tmp_path)
        known(name).answers(tmp_path / "program")
    elif format_ == "zephyr":
        sample = tmp_path / name / f"samples/{name}/src/main.c"
        settings = {"MODULE": tmp_path / name, "APP": tmp_path / "main.c", "SAMPLE": sample}
        options = [f"-D{key}={value}" for key, value in settings.items()]
        cmake(
            HERE / "zephyr", tmp_path / "build", *options, "-DCONFIG=CONFIG_SMELT_DIGITS_INT8_NET"
        )
        known(name).answers(tmp_path / "build/app")
    else:
        source = tmp_path / name / "src"
        command = ["gcc", f"-I{source}"]
        objects = compiles(command, sorted(source.glob("*.[cS]")), tmp_path)
        runs([*objects, compiles_main(tmp_path, f"{name}/src")], known(name), tmp_path)


@pytest.mark.qemu
@pytest.mark.parametrize("format_", ["cmake", "make", "single-file", "cmsis-pack"])
def test_calls_of_cmsis_nn_compile_or_name_the_missing_library(
    format_: str, tmp_path: Path
) -> None:
    """Our declarations replace the library; without them, the build names what is missing."""
    artifact = digits(Options(target="cortex-m4", backends=("cmsis_nn",)))
    export(artifact, format_, tmp_path / "lib")
    text = (tmp_path / "lib/README.md").read_text()
    assert "CMSIS-NN" in text
    library = tmp_path / "library/Include"
    shutil.copytree(API, library)
    if format_ == "make":
        refused = subprocess.run(["make"], cwd=tmp_path / "lib", capture_output=True, check=False)
        assert b"CMSIS_NN_DIR" in refused.stderr
        must("make", f"CMSIS_NN_DIR={library.parent}", cwd=tmp_path / "lib")
    elif format_ == "cmake":
        cross = ["-DCMAKE_SYSTEM_NAME=Generic", f"-DCMAKE_C_COMPILER={CROSS}"]
        cross += [f"-DCMAKE_C_FLAGS={' '.join(M4)}"]
        cross += ["-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY"]
        alone = ["cmake", "-S", tmp_path / "lib", "-B", tmp_path / "alone", *cross]
        refused = subprocess.run(alone, capture_output=True, check=False)
        assert b"add_subdirectory(CMSIS-NN) first" in refused.stderr
        (tmp_path / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.13)\nproject(program C)\n"
            "add_library(cmsis-nn INTERFACE)\n"
            "target_include_directories(cmsis-nn INTERFACE library/Include)\n"
            "add_subdirectory(lib)\n"
        )
        cmake(tmp_path, tmp_path / "build", *cross)
    elif format_ == "single-file":
        (tmp_path / "network.c").write_text(block(tmp_path / "lib/README.md", "c"))
        command = [CROSS, *M4, f"-I{tmp_path / 'lib'}", f"-I{library}"]
        compiles(command, [tmp_path / "network.c"], tmp_path)
    else:
        command, sources = pack_command(tmp_path / "lib", CROSS, *M4, f"-I{library}")
        compiles(command, sources, tmp_path)


def test_readme_programs_compile(tmp_path: Path) -> None:
    """The example in every README is a complete program."""
    for format_ in (
        "cmake",
        "make",
        "arduino",
        "platformio",
        "zephyr",
        "cmsis-pack",
        "single-file",
    ):
        for name in ("digits_int8", "counter"):
            folder = tmp_path / format_ / name
            exported(name, format_, folder)
            text = (folder / "README.md").read_text()
            source = tmp_path / "example.c"
            source.write_text(text.split("## Call it\n\n```c\n", 1)[1].split("```", 1)[0])
            include = {f"-I{path.parent}" for path in folder.rglob(f"{name}_net*.h")}
            compiles(["gcc", "-std=c99", *WARNINGS, *include], [source], tmp_path)


def test_examples_have_every_input_and_output(tmp_path: Path) -> None:
    """The networks have inputs of several types, state, and a length known at run time."""
    growing = parse(SUMMARY)
    graphs = combine("several", [counter(), delay_line(2, forwards=True), swap()])
    for artifact in map(compile_graph, (graphs, growing)):
        net = artifact.network
        for format_, path, command in EXAMPLES:
            folder = tmp_path / net.title / format_
            export(artifact, format_, folder)
            source = tmp_path / f"{net.title}_{format_}{Path(path).suffix}"
            source.write_text((folder / path.replace("NAME", net.title)).read_text())
            include = [f"-I{path.parent}" for path in folder.rglob(f"{net.name}.h")]
            compiles([*command, *WARNINGS[:3], *include], [source], tmp_path)
            for index in range(len(artifact.network.inputs)):
                assert f"{net.name}_input(&network, {index})" in source.read_text()


CORE = HERE / "arduino/smelt/mbed/cores/host"
EXAMPLES = [
    ("arduino", "examples/NAME/NAME.ino", ["g++", "-xc++", "-include", str(CORE / "Arduino.h")]),
    ("platformio", "examples/NAME/src/main.cpp", ["g++"]),
    ("zephyr", "samples/NAME/src/main.c", ["gcc", "-std=gnu99", f"-I{HERE / 'zephyr/include'}"]),
]


def test_a_single_header_may_be_included_twice(tmp_path: Path) -> None:
    exported("digits_int8", "single-file", tmp_path / "lib")
    source = tmp_path / "twice.c"
    source.write_text(
        "#define DIGITS_INT8_NET_IMPLEMENTATION\n" + 2 * '#include "digits_int8_net.h"\n'
    )
    need("gcc")
    must(
        "gcc",
        "-std=c99",
        "-Wall",
        "-Werror",
        f"-I{tmp_path / 'lib'}",
        "-c",
        "twice.c",
        cwd=tmp_path,
    )

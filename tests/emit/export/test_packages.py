"""Exports for Arduino, PlatformIO, Zephyr and CMSIS-Pack: built, run, compared.

Expected outputs (`tests/support/export_tools.py`) are from LiteRT, TFLite Micro and arithmetic.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest

from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.codegen.emit import weights
from tests.support.export_tools import (
    COMPILERS,
    EACH,
    HERE,
    KNOWN,
    WARNINGS,
    cmake,
    compiles,
    compiles_main,
    exported,
    known,
    need,
    pack_command,
    prints_zeros,
    runs,
)
from tests.support.projects import must

CORE = HERE / "arduino/smelt/mbed/cores/host"


def output(*command: str | Path) -> str:
    """Return what a program prints."""
    return subprocess.check_output(command, text=True, timeout=600)


def unit_of(artifact: Artifact) -> float:
    """Return the factor of outputs in the sample for Zephyr, which prints integers."""
    return 1e6 if artifact.network.outputs[0].dtype == "float32" else 1


@pytest.mark.quick(every=4)
@EACH
@COMPILERS
def test_arduino_sources_work_as_c_and_cpp(name: str, compiler: str, tmp_path: Path) -> None:
    need(compiler)
    exported(name, "arduino", tmp_path / "lib")
    include, main = f"-I{tmp_path / 'lib/src'}", compiles_main(tmp_path, "lib/src")
    flags = ["-Os", *WARNINGS, include]
    sources = sorted((tmp_path / "lib/src").rglob("*.c"))
    objects = compiles([compiler, "-std=c99", *flags], sources, tmp_path)
    runs([*objects, main], known(name), tmp_path)
    renamed = [Path(shutil.copy(path, tmp_path / f"{path.stem}.cpp")) for path in sources]
    plus = {"gcc": "g++", "clang": "clang++"}[compiler]
    objects = compiles([plus, "-std=c++17", *flags], renamed, tmp_path)
    runs([*objects, main], known(name), tmp_path, plus)


@EACH
def test_arduino_sketch_prints_outputs_for_zeros(name: str, tmp_path: Path) -> None:
    artifact = exported(name, "arduino", tmp_path / "lib")
    sketch = tmp_path / "sketch.cpp"
    text = (tmp_path / f"lib/examples/{name}/{name}.ino").read_text()
    sketch.write_text(f"#include <Arduino.h>\n{text}")
    include = [f"-I{CORE}", f"-I{tmp_path / 'lib/src'}"]
    objects = compiles(
        ["g++", "-std=gnu++11", *WARNINGS[:3], *include], [sketch, CORE / "core.cpp"], tmp_path
    )
    objects += compiles(
        ["gcc", "-std=gnu11", *include], sorted((tmp_path / "lib/src").rglob("*.c")), tmp_path
    )
    must("g++", *map(str, objects), "-lm", "-o", str(tmp_path / "sketch"))
    prints_zeros(artifact, output(tmp_path / "sketch"))


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("board", ["host", pytest.param("m4", marks=pytest.mark.qemu)])
def test_arduino_cli_builds_library_and_sketch(
    board: str, binary: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arduino's own tool finds and builds both without warnings."""
    need("arduino-builder")
    hints = Path("/usr/share/arduino-builder/platform.txt")
    if not hints.is_file():
        pytest.skip(f"arduino-builder is installed without {hints}")
    if binary:
        monkeypatch.setattr(weights, "BINARY_FROM", 0)
    artifact = exported("digits_int8", "arduino", tmp_path / "libs/d", Options(target="cortex-m4"))
    hardware, build, tools = (tmp_path / part for part in ("hardware", "build", "tools"))
    shutil.copytree(HERE / "arduino", hardware)
    shutil.copy(hints, hardware)
    build.mkdir()
    tools.mkdir()
    folders = ["-hardware", hardware, "-tools", tools, "-libraries", tmp_path / "libs"]
    where = ["-build-path", build, "-fqbn", f"smelt:mbed:{board}", "-warnings", "all"]
    sketch = tmp_path / "libs/d/examples/digits_int8/digits_int8.ino"
    must("arduino-builder", "-compile", *map(str, [*folders, *where, sketch]))
    if board == "host":
        prints_zeros(artifact, output(build / "digits_int8.ino.elf"))


@EACH
def test_platformio_library_and_example_work(name: str, tmp_path: Path) -> None:
    """They are compiled with the flags of the manifest, as PlatformIO does."""
    artifact = exported(name, "platformio", tmp_path / "lib")
    manifest = json.loads((tmp_path / "lib/library.json").read_text())
    include = f"-I{tmp_path / 'lib/src'}"
    flags = [*manifest["build"]["flags"], *WARNINGS[:3], include]
    objects = compiles(["gcc", *flags], sorted((tmp_path / "lib/src").rglob("*.c")), tmp_path)
    runs([*objects, compiles_main(tmp_path, "lib/src")], known(name), tmp_path)
    example = [tmp_path / f"lib/examples/{name}/src/main.cpp"]
    objects += compiles(["g++", *WARNINGS, include], example, tmp_path)
    must("g++", *map(str, objects), "-lm", "-o", str(tmp_path / "example"))
    prints_zeros(artifact, output(tmp_path / "example"))
    include_core = ["g++", "-DARDUINO=10819", *WARNINGS[:3], f"-I{CORE}", include]
    compiles(include_core, example, tmp_path)


@pytest.mark.slow
def test_platformio_builds_the_example(tmp_path: Path) -> None:
    """Use PlatformIO itself, if it and its platform `native` are installed."""
    need("pio")
    artifact = exported("digits_int8", "platformio", tmp_path / "lib")
    example = tmp_path / "lib/examples/digits_int8"
    done = subprocess.run(
        ["pio", "run", "-e", "native", "-d", example], capture_output=True, text=True, check=False
    )
    if re.search("UnknownPackage|InternetConnection|HTTPClient", done.stdout + done.stderr):
        pytest.skip("PlatformIO cannot install its platform `native` here")
    assert done.returncode == 0, done.stdout + done.stderr
    prints_zeros(artifact, output(example / ".pio/build/native/program"))


@pytest.mark.quick(every=3)
@pytest.mark.parametrize(
    ("name", "target"), [*((name, "host") for name in KNOWN), ("digits_int8", "cortex-m3")]
)
def test_zephyr_module_works_in_a_stand_in_for_zephyr(
    name: str, target: str, tmp_path: Path
) -> None:
    """Its `CMakeLists.txt` runs with substitutes for the functions of Zephyr that it calls."""
    need("cmake")
    options = Options(target=target, board="host" if target != "host" else None)
    artifact = exported(name, "zephyr", tmp_path / "module", options)
    sample = tmp_path / f"module/samples/{name}"
    option = (sample / "prj.conf").read_text().split("\n")[1].removesuffix("=y")
    assert f"config {option.removeprefix('CONFIG_')}\n" in (tmp_path / "module/Kconfig").read_text()
    files = {"APP": tmp_path / "main.c", "SAMPLE": sample / "src/main.c"}
    settings = {"MODULE": tmp_path / "module", "CONFIG": option, **files}
    build = tmp_path / "build"
    cmake(HERE / "zephyr", build, *(f"-D{key}={value}" for key, value in settings.items()))
    known(name).answers(build / "app")
    prints_zeros(artifact, output(build / "sample"), unit_of(artifact))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits_int8", "digits_float32"])
def test_zephyr_builds_the_sample(name: str, tmp_path: Path) -> None:
    """Use Zephyr itself, in a west workspace, for its board that is simulated by this computer."""
    need("cmake", "west")
    base = os.environ.get("ZEPHYR_BASE")
    if base is None:
        pytest.skip("no Zephyr: set ZEPHYR_BASE to its folder")
    artifact = exported(name, "zephyr", tmp_path / "module")
    old = (Path(base) / "boards/posix/native_sim/native_sim_64.yaml").exists()
    board = "native_sim_64" if old else "native_sim/native/64"
    sample = tmp_path / f"module/samples/{name}"
    must("west", "build", "-d", str(tmp_path / "build"), "-b", board, str(sample), cwd=Path(base))
    lines = output(tmp_path / "build/zephyr/zephyr.exe", "-stop_at=1").splitlines()
    (line,) = (a for a, b in pairwise(lines) if b.startswith(f"{name}: "))
    prints_zeros(artifact, line, unit_of(artifact))


@EACH
def test_cmsis_pack_component_works(name: str, tmp_path: Path) -> None:
    """Compile the files in the archive, not those of the folder."""
    exported(name, "cmsis-pack", tmp_path / "lib")
    with zipfile.ZipFile(tmp_path / f"lib/Smelt.{name}.1.0.0.pack") as archive:
        archive.extractall(tmp_path / "pack")
    command, sources = pack_command(tmp_path / "pack", "gcc", "-std=c99", "-O2", *WARNINGS)
    objects = compiles(command, sources, tmp_path)
    runs([*objects, compiles_main(tmp_path, "pack/include")], known(name), tmp_path)
    template = tmp_path / f"pack/template/{name}_net_example.c"
    compiles(["gcc", *WARNINGS[:3], f"-I{tmp_path / 'pack/include'}"], [template], tmp_path)

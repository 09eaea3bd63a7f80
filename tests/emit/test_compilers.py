"""Generated networks compile without a warning in several compilers, as C and as C++.

`docs/generated-code.md` lists the compilers that these tests were run with.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.ir import DType
from smelt.ops.case import build
from smelt.ops.core.fully_connected import CASES as DENSE
from smelt.ops.core.quantize import CASES as QUANTIZE
from smelt.ops.core.softmax import CASES as SOFTMAX
from smelt.ops.sequence.lstm import CASES as LSTM
from smelt.ops.tensor.roi_align import CASES as ROI_ALIGN
from smelt.targets import get
from tests.support.compilers import (
    COMPILERS,
    EVERYTHING,
    NO_GNU_C,
    NOT_FOR_CPP,
    STANDARDS,
    WARNINGS,
    bare_library,
    compile_all,
    compiler,
    newest_clang,
    require_cpp,
)
from tests.support.export_tools import known, need, program
from tests.support.graphs import compile_graph
from tests.support.projects import digits, must

CORES = ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m23", "cortex-m55")


def _dense_int16() -> Artifact:
    case = next(case for case in DENSE if DType.INT16 in case.dtypes)
    return compile_graph(build(case, DType.INT16))


def _softmax_float64() -> Artifact:
    case = next(case for case in SOFTMAX if DType.FLOAT64 in case.dtypes)
    return compile_graph(build(case, DType.FLOAT64))


NETWORKS: dict[str, Callable[[], Artifact]] = {
    "int8": digits,
    **{core: lambda core=core: digits(Options(target=core)) for core in CORES},
    "float32": lambda: digits(model="digits_float32"),
    "float64": _softmax_float64,
    "int16": _dense_int16,
    "quantize": lambda: compile_graph(build(QUANTIZE[0], DType.FLOAT32)),
    "roi_align": lambda: compile_graph(build(ROI_ALIGN[0], DType.FLOAT32)),
    "lstm": lambda: compile_graph(build(LSTM[0], DType.INT8)),
    "lstm with states": lambda: compile_graph(build(LSTM[3], DType.INT8)),
}
"""Networks to compile; code for another core is in its plain-C form."""


@pytest.mark.quick(network=("cortex-m4",), standard=("c99", "c++17"))
@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", COMPILERS)
def test_compiles_without_a_warning(name: str, network: str, standard: str, tmp_path: Path) -> None:
    command = compiler(name)
    if standard == "c++17":
        require_cpp(command)
    NETWORKS[network]().write(tmp_path / "project")
    compile_all([*command, *STANDARDS[standard], *WARNINGS], tmp_path / "project")


@pytest.mark.quick(network=("cortex-m4", "float32", "quantize"), standard=("c99",))
@pytest.mark.parametrize("standard", ["c99", "c++17"])
@pytest.mark.parametrize("network", NETWORKS)
def test_clang_has_nearly_no_warning(network: str, standard: str, tmp_path: Path) -> None:
    command = [*newest_clang(), *STANDARDS[standard], *EVERYTHING]
    if standard == "c++17":
        command += NOT_FOR_CPP
    NETWORKS[network]().write(tmp_path / "project")
    compile_all(command, tmp_path / "project")


@pytest.mark.quick(core=("cortex-m4",), gnu=(False,))
@pytest.mark.parametrize("gnu", [True, False], ids=["assembly", "plain"])
@pytest.mark.parametrize("core", CORES)
def test_clang_compiles_for_a_core_with_and_without_gnu_c(
    core: str, gnu: bool, tmp_path: Path
) -> None:
    """A compiler that does not define `__GNUC__` must get no assembly, even for Arm."""
    library = bare_library(tmp_path / "include")
    machine = [flag for flag in get(core).arch_flags if flag.startswith(("-mcpu", "-mthumb"))]
    command = [*newest_clang(), "--target=arm-none-eabi", *machine, *library]
    command += [*STANDARDS["c99"], *WARNINGS, *(() if gnu else NO_GNU_C)]
    digits(Options(target=core)).write(tmp_path / "project")
    compile_all(command, tmp_path / "project")


@pytest.mark.parametrize("core", ["cortex-m0", "cortex-m4"])
def test_zig_compiles_for_a_core(core: str, tmp_path: Path) -> None:
    library = bare_library(tmp_path / "include")
    machine = ["-target", "thumb-freestanding-eabi", f"-mcpu={core.replace('-', '_')}"]
    digits(Options(target=core)).write(tmp_path / "project")
    command = [*compiler("zig"), *machine, *library, *STANDARDS["c99"], *WARNINGS]
    compile_all(command, tmp_path / "project")


@pytest.mark.quick(target=("cortex-m4",))
@pytest.mark.parametrize("target", ["host", *CORES])
def test_tiny_c_computes_the_same(target: str, tmp_path: Path) -> None:
    """Tiny C is neither gcc nor clang, and does not define `__GNUC__`."""
    need("tcc")
    artifact = digits(Options(target=target))
    artifact.write(tmp_path)
    (tmp_path / "main.c").write_text(program(artifact))
    sources = sorted(str(path) for path in tmp_path.glob("*.c"))
    must("tcc", "-Wall", "-Werror", f"-I{tmp_path}", *sources, "-o", str(tmp_path / "program"))
    known("digits_int8").answers(tmp_path / "program")

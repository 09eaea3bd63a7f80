"""Calls of CMSIS-NN: our declarations, refusals, and projects that call it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.api.compile import compile_model
from smelt.boards import compile_project
from smelt.cli.options import BuildGroup
from smelt.codegen.backends.cmsis_nn.single_row import gathers_rows
from smelt.codegen.lower.kernel import Refusal, Request, Scratch
from smelt.codegen.lower.window import Window
from smelt.errors import ConfigError, ToolError, UnsupportedError
from smelt.frontend import Imported
from smelt.ir import Graph, Quant, Value, evaluate
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.softmax import Softmax
from smelt.ops.core.unary import Unary
from smelt.proof.run import run
from smelt.samples import random_samples
from tests.support.cmsis_nn import (
    API,
    HEADER,
    OURS,
    TARGETS,
    entry_of,
    library,
    options,
    random_graphs,
    simple,
)
from tests.support.graphs import SETUPS
from tests.support.kernels_host import SANITIZERS, Run, check_on_host, compile_c, source_of
from tests.support.library_nodes import data, graph_of, products, samples_of

COMPILERS = {
    "gcc": ("gcc", "-std=c99"),
    "clang": ("clang", "-std=c99"),
    "g++": ("g++", "-xc++", "-std=c++17"),
    "arm-none-eabi-gcc": ("arm-none-eabi-gcc", "-std=c99", "-mcpu=cortex-m4", "-mthumb"),
}


@pytest.mark.quick(compiler=("gcc",))
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("variant", TARGETS)
def test_calls_compile_against_the_declarations(
    compiler: str, variant: str, tmp_path: Path
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    target = TARGETS[variant]
    text = source_of([entry_of(graph, target) for graph in random_graphs(3, 60, target)])
    assert f"#include <{HEADER}>" in text
    (tmp_path / "calls.c").write_text(text)
    command = (*COMPILERS[compiler], "-c", f"-I{API}", "-o", str(tmp_path / "calls.o"))
    compile_c(tmp_path / "calls.c", command)


def test_called_functions_equal_declared_functions() -> None:
    declared = set(re.findall(r"\b(arm_\w+_s8\w*)\(", (API / HEADER).read_text()))
    called = {
        name
        for target in TARGETS.values()
        for graph in random_graphs(4, 200, target)
        for name in re.findall(r"arm_\w+_s8\w*", entry_of(graph, target).call.summary)
    }
    assert called == declared


def test_declarations_agree_with_the_library(tmp_path: Path) -> None:
    """Structures have the same members at the same offsets, and functions the same types."""
    include = library() / "Include"
    types = (API / "arm_nn_types.h").read_text()
    lines: list[str] = []
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", types, re.DOTALL):
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [
            f'printf("{member} %zu %zu\\n", offsetof({name}, {member}), '
            f"sizeof((({name} *)0)->{member}));"
            for member in re.findall(r"(\w+);", body)
        ]
    assert len(lines) > 40
    includes = "".join(f"#include <{h}>\n" for h in ("stddef.h", "stdio.h", HEADER))
    program, layout = tmp_path / "layout", tmp_path / "layout.c"
    layout.write_text(includes + "int main(void) {\n" + "\n".join(lines) + "\n}\n")
    said: list[bytes] = []
    for folder in (API, include):
        compile_c(layout, ("gcc", "-std=c99", f"-I{folder}", "-o", str(program)))
        said.append(subprocess.run([program], capture_output=True, check=True).stdout)
    assert said[0] == said[1]
    # A second declaration with another type is an error.
    _, functions, _ = re.split(r"/\* (?:end of )?functions \*/", (API / HEADER).read_text())
    (tmp_path / "both.c").write_text(f"#include <{HEADER}>\n{functions}")
    compile_c(tmp_path / "both.c", ("gcc", "-std=c99", f"-I{include}", "-fsyntax-only"))


def test_calls_mean_what_the_reference_computes(tmp_path: Path) -> None:
    """Calls run against functions written by the library's documentation, without the library."""
    known = set(re.findall(r"\b(arm_\w+_s8\w*)[()]", (API / "stand_in.c").read_text()))
    rng, target = np.random.default_rng(1), TARGETS["host"]
    runs: list[Run] = []
    for graph in random_graphs(11, 240, target):
        (node,), entry = graph.nodes, entry_of(graph, target)
        if known.issuperset(re.findall(r"arm_\w+_s8\w*", entry.call.summary)):
            samples = samples_of(graph, rng)
            expected = [evaluate(graph, sample).outputs[0] for sample in samples]
            runs.append(Run(f"{node.op} by {entry.call.summary}", entry, samples, expected))
    assert {run.entry.call.form for run in runs} >= {
        *("cmsis_nn_convolve", "cmsis_nn_convolve_1x1", "cmsis_nn_convolve_groups"),
        *("cmsis_nn_depthwise", "cmsis_nn_depthwise_opt", "cmsis_nn_dense", "cmsis_nn_matmul"),
        *("cmsis_nn_max_pool", "cmsis_nn_average_pool", "cmsis_nn_add", "cmsis_nn_mul"),
    }
    check_on_host(runs, tmp_path, (*SANITIZERS, f"-I{API}", str(API / "stand_in.c")))


def _relu6() -> Graph:
    rng = np.random.default_rng(1)
    return graph_of(Unary("relu6"), [data("x", (4,), rng)], Quant.per_tensor(0.5, 0))


def _refusals() -> dict[str, Graph]:
    """Return graphs that are not served, by the text of the refusal."""
    rng = np.random.default_rng(2)
    image, wide = data("x", (1, 3, 3, 4), rng), data("x", (1, 300), rng)
    weights = data("w", (4, 4), rng)
    bias = Value.constant("b", np.zeros(4, np.int32))
    graph = products(Conv2D(), image, (2, 1, 1, 4), 0, rng)
    y = graph.outputs[0]
    fine = replace(y, type=replace(y.type, quant=Quant.per_tensor(1e-8, 0)))
    node = replace(graph.nodes[0], outputs=(fine,))
    softmax = Quant.per_tensor(1 / 256, -128)
    return {
        "arm_relu6_s8 clamps stored numbers to 0 and 6, whatever the scale and": _relu6(),
        "at most 255 elements": graph_of(Softmax(), [wide], softmax),
        "adds no bias": graph_of(
            FullyConnected(), [data("x", (2, 4), rng), weights, bias], softmax
        ),
        "shifts sums to the left": replace(graph, outputs=(fine,), nodes=(node,)),
    }


@pytest.mark.parametrize("variant", TARGETS)
@pytest.mark.parametrize("reason", _refusals())
def test_inexact_layers_are_refused_in_one_sentence(reason: str, variant: str) -> None:
    answer = OURS.find(_refusals()[reason].nodes[0], Request(TARGETS[variant]))
    assert isinstance(answer, Refusal)
    assert reason in answer.reason
    assert re.fullmatch(r"[^.]*(\.\d+)?[^.]*\.", answer.reason), answer


def test_a_refused_layer_goes_to_the_fallback_or_is_an_error() -> None:
    preferring = replace(options("m4"), fallback=True)
    layers: Any = compile_model(Imported(_relu6()), preferring).report["layers"]
    (layer,) = layers
    assert layer["backend"] == "c"
    assert "arm_relu6_s8" in layer["why"]
    with pytest.raises(UnsupportedError, match="arm_relu6_s8"):
        compile_model(Imported(_relu6()), options("m4"))


@pytest.mark.parametrize(
    ("stride", "padding", "right"),
    [(1, (1, 1), True), (1, (0, 0), True), (3, (1, 1), False), (1, (2, 0), False)],
)
def test_rows_are_served_if_the_library_pads_them_correctly(
    stride: int, padding: tuple[int, int], right: bool
) -> None:
    window = Window(
        kernel=(1, 3),
        stride=(1, stride),
        padding=((0, 0), padding),
        dilation=(1, 1),
        size=(1, 12),
        depth=4,
        outputs=8,
    )
    assert gathers_rows(window, 4) is right


def test_scratch_is_planned() -> None:
    graph = simple()
    call = entry_of(graph, TARGETS["dsp"]).call
    sizes = [operand.count for operand in call.operands if isinstance(operand, Scratch)]
    # Two windows of 27 elements, each padded to a multiple of four, in 16 bits.
    assert sizes == [2 * 28 * 2]
    placed = compile_model(Imported(graph), options("m4")).plan.placements
    assert any(placement.size >= 112 for placement in placed)


def test_a_missing_library_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    artifact = compile_model(Imported(simple()), options("m4"))
    for variable in ("", str(tmp_path)):
        monkeypatch.setenv("CMSIS_NN_DIR", variable)
        with pytest.raises(ConfigError, match=r"calls CMSIS-NN.*--cmsis-nn"):
            run(artifact, random_samples(artifact.graph, 1, 0))


@pytest.mark.qemu
def test_make_names_the_missing_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CMSIS_NN_DIR", raising=False)
    artifact = compile_model(Imported(simple()), options("m4"))
    artifact.write(tmp_path / "project")
    with pytest.raises(ToolError, match=r"CMSIS_NN_DIR=\.\.\."):
        compile_project(tmp_path / "project", artifact.platform)


def test_only_projects_that_call_the_library_name_it(tmp_path: Path) -> None:
    compile_model(Imported(simple()), SETUPS["m4"]).write(tmp_path / "ours")
    compile_model(Imported(simple()), options("m4")).write(tmp_path / "theirs")
    for name in ("Makefile", "CMakeLists.txt", "README.md"):
        assert "CMSIS" not in (tmp_path / "ours" / name).read_text()
        assert "CMSIS" in (tmp_path / "theirs" / name).read_text()
    assert "GIT_TAG v7.0.0" in (tmp_path / "theirs/CMakeLists.txt").read_text()


@pytest.mark.qemu
@pytest.mark.parametrize("variable", ["CMSIS_NN_DIR", "FETCHCONTENT_SOURCE_DIR_CMSIS_NN"])
def test_cmake_builds_it(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the library's folder, and with the folder that CMake's FetchContent is redirected to."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    folder = library()
    monkeypatch.delenv("CMSIS_NN_DIR", raising=False)
    named = replace(options("m4"), name="net")
    compile_model(Imported(simple()), named).write(tmp_path / "project")
    for command in (
        ["cmake", "-B", "build", f"-D{variable}={folder}"],
        ["cmake", "--build", "build", "-j2"],
    ):
        done = subprocess.run(
            command, cwd=tmp_path / "project", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "project/build/net.elf").exists()


def test_the_library_folder_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Include/arm_nnfunctions\.h is missing"):
        BuildGroup(cmsis_nn=tmp_path).build_options()
    (tmp_path / "Include").mkdir()
    (tmp_path / "Include" / HEADER).touch()
    assert BuildGroup(cmsis_nn=tmp_path).build_options().cmsis_nn == tmp_path

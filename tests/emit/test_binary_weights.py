"""Weights of large networks, which are in a binary file that an assembler file includes."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.boards import compile_project, open_device
from smelt.codegen.emit import weights
from smelt.codegen.emit.network import render_network
from smelt.errors import ModelError
from smelt.ir import Graph, Node, Origin, Value
from smelt.ops.core.binary import Binary
from smelt.proof.run import run
from tests.support.graphs import compile_graph
from tests.support.projects import DIGITS_MODELS, VECTOR, counter, digits, images, must

BOARD = pytest.param("mps2-an386", marks=pytest.mark.qemu)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every network a large one."""
    monkeypatch.setattr(weights, "BINARY_FROM", 0)


def both_forms(
    monkeypatch: pytest.MonkeyPatch, options: Options | None = None, model: str = "digits_int8"
) -> tuple[Artifact, Artifact]:
    """Return the example network with its weights as C text, and in a binary file."""
    text = digits(options, model)
    monkeypatch.setattr(weights, "BINARY_FROM", 0)
    return text, digits(options, model)


def symbols(file: Path, nm: str = "nm") -> dict[str, str]:
    """Return the symbols that an object defines, with their sizes by name."""
    listing = subprocess.check_output([nm, "-P", "--defined-only", str(file)], text=True)
    return {line.split()[0]: line.split()[3] for line in listing.splitlines()}


def assert_program_is_correct(elf: Path, artifact: Artifact) -> None:
    """Assert that the example network's program returns the right output."""
    inputs, expected = images(1)
    hash_ = artifact.network.hash
    with open_device(elf, artifact.on, artifact.board, expected_hash=hash_) as device:
        (answer,), _ = device.run([inputs[0].tobytes()])
    assert answer == expected[0].tobytes()


def test_small_networks_keep_readable_arrays(tmp_path: Path) -> None:
    digits().write(tmp_path / "project")
    assert (tmp_path / "project/digits_int8_net_weights.c").is_file()
    assert not [*(tmp_path / "project").glob("*.S"), *(tmp_path / "project").glob("*.bin")]


@pytest.mark.usefixtures("large")
def test_the_threshold_counts_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(array.nbytes for array in digits().schedule.constants.values())
    for threshold, name in ((size, "digits_int8_net_weights.bin"), (size + 1, "")):
        monkeypatch.setattr(weights, "BINARY_FROM", threshold)
        assert digits().network.weights_binary == name


@pytest.mark.quick(compiler=("gcc",), every=2)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("model", DIGITS_MODELS)
def test_make_builds_the_same_network(
    model: str, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    monkeypatch.setenv("CC", compiler)
    objects: list[dict[str, str]] = []
    outputs: list[bytes] = []
    network_bytes: list[int] = []
    for index, artifact in enumerate(both_forms(monkeypatch, model=model)):
        folder = tmp_path / str(index)
        artifact.with_firmware().write(folder)
        elf = compile_project(folder, artifact.platform)
        objects.append(symbols(folder / f"build/{model}_net_weights.o"))
        network_bytes.append(elf.flash_network.total)
        sample = np.linspace(-100, 100, artifact.graph.inputs[0].type.size)
        typed = sample.astype(artifact.graph.inputs[0].type.dtype.numpy)
        hash_ = artifact.network.hash
        with open_device(elf.path, "host", None, expected_hash=hash_) as device:
            (answer,), _ = device.run([typed.tobytes()])
        outputs.append(answer)
    assert objects[0] == objects[1]
    assert outputs[0] == outputs[1]
    assert abs(network_bytes[0] - network_bytes[1]) < 64 * len(objects[0])  # alignment


@pytest.mark.usefixtures("large")
def test_states_start_from_the_binary_file() -> None:
    one = np.ones(4, np.float32)
    results = run(compile_graph(counter()), [(one,), (one,)]).outputs
    np.testing.assert_array_equal([y for (y,) in results], [[4, 6, 8, 10], [6, 8, 10, 12]])


@pytest.mark.quick(tool=("cmake",), board=("None",))
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("tool", ["make", "cmake"])
@pytest.mark.parametrize("board", [None, BOARD])
def test_projects_build_from_another_folder(tool: str, board: str | None, tmp_path: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}")
    artifact = digits(Options(board=board))
    project, build = tmp_path / "a project", tmp_path / "elsewhere"
    artifact.with_firmware().write(project)
    if tool == "make":
        must("make", "-j2", f"BUILD={build}", cwd=project)
    else:
        must("cmake", "-S", str(project), "-B", str(build), cwd=tmp_path)
        must("cmake", "--build", str(build), "-j2", cwd=tmp_path)
    elf = build / "digits_int8.elf"
    assert_program_is_correct(elf, artifact)
    if board is not None:
        listing = subprocess.check_output(["arm-none-eabi-readelf", "-SW", str(elf)], text=True)
        (line,) = (line for line in listing.splitlines() if ".smelt_weights" in line)
        size = sum(array.nbytes for array in artifact.schedule.constants.values())
        assert int(line.split("PROGBITS")[1].split()[2], 16) >= size


@pytest.mark.qemu
@pytest.mark.usefixtures("large")
def test_a_library_without_board_contains_the_weights(tmp_path: Path) -> None:
    artifact = digits(Options(target="cortex-m0"))
    artifact.with_firmware().write(tmp_path / "project")
    must("make", cwd=tmp_path / "project")
    archive = tmp_path / "project/build/digits_int8_net_weights.o"
    assert symbols(archive, "arm-none-eabi-nm").keys() == artifact.schedule.constants.keys()


@pytest.mark.quick(tool=("make",))
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("tool", ["make", "cmake"])
def test_a_changed_binary_file_is_built_again(tool: str, tmp_path: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}")
    digits().write(tmp_path)
    build = (("make", "library"),)
    if tool == "cmake":
        build = (("cmake", "-B", "build"), ("cmake", "--build", "build"))
    for _ in range(2):
        for command in build:
            must(*command, cwd=tmp_path)
        contents = (tmp_path / "digits_int8_net_weights.bin").read_bytes()
        assert contents[-64:] in (tmp_path / "build/libdigits_int8_net.a").read_bytes()
        (tmp_path / "digits_int8_net_weights.bin").write_bytes(contents[::-1])


@pytest.mark.usefixtures("large")
def test_the_binary_file_is_reproducible_and_in_the_readme(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        digits().write(tmp_path / folder)
    for name in ("digits_int8_net_weights.S", "digits_int8_net_weights.bin"):
        one, two = ((tmp_path / folder / name).read_bytes() for folder in ("one", "two"))
        assert one == two
    text = (tmp_path / "one/digits_int8_net_weights.S").read_text()
    assert text.startswith("/* SPDX-License-Identifier: MIT-0 - generated by Smelt")
    assert "digits_int8_net_weights.bin" in (tmp_path / "one/README.md").read_text()


@pytest.mark.usefixtures("large")
def test_the_section_of_the_weights_can_be_chosen(tmp_path: Path) -> None:
    digits().write(tmp_path)
    must("make", "library", "EXTRA_CFLAGS=-DSMELT_WEIGHTS_SECTION_NAME=.far", cwd=tmp_path)
    command = ["readelf", "-SW", str(tmp_path / "build/digits_int8_net_weights.o")]
    assert " .far " in subprocess.check_output(command, text=True)


@pytest.mark.parametrize("threshold", [0, 1 << 20])
def test_nan_is_refused(threshold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "BINARY_FROM", threshold)
    x, y = Value("x", VECTOR), Value("y", VECTOR)
    k = Value.constant("k", np.array([1, 2, np.nan, 4], np.float32))
    node = Node(Binary("mul"), (x, k), (y,), Origin("MUL", 0))
    with pytest.raises(ModelError, match="a NaN cannot be written"):
        compile_graph(Graph("scaled", (x,), (y,), (node,)))


@pytest.mark.usefixtures("large")
def test_an_empty_constant_takes_one_element(tmp_path: Path) -> None:
    """C has no arrays without elements."""
    artifact = digits()
    empty = {"nothing": np.zeros((0, 3), np.int32), "five": np.full((), 5, np.float64)}
    comments = dict.fromkeys(empty, "a test")
    schedule = replace(artifact.schedule, constants=empty, constant_comments=comments)
    network = replace(artifact.network, constants=weights.constants_of(schedule, {}))
    files = render_network(network, schedule).texts
    (tmp_path / "x.S").write_text(files["digits_int8_net_weights.S"])
    stored = weights.binary(schedule)
    (tmp_path / network.weights_binary).write_bytes(b"".join(a.tobytes() for a in stored))
    must("gcc", "-c", "x.S", "-o", "x.o", cwd=tmp_path)
    sizes = {name: int(size, 16) for name, size in symbols(tmp_path / "x.o").items()}
    assert sizes == {"nothing": 4, "five": 8}
    assert "int32_t nothing[1];" in files["digits_int8_net_kernels.h"]


@pytest.mark.slow
def test_light_models_of_the_backend_suite_build() -> None:
    """They are AlexNet, DenseNet, ResNet-50, VGG-19 and others: up to 144 million parameters."""
    from bench.conformance import judge
    from bench.onnx_suite import cases

    verdicts = {v.name: (v.status, v.reason) for v in judge(cases(["light"]))}
    assert verdicts == dict.fromkeys(verdicts, ("passed", ""))
    assert len(verdicts) == 9

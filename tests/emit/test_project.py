"""The C project: it compiles without warnings, is reproducible, and is written atomically."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.api.report import BuildLimits
from smelt.boards import compile_project, open_device
from smelt.codegen.emit import network as network_module
from smelt.codegen.emit.destination import REPORT
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render_c
from smelt.errors import ConfigError, DoesNotFit, SmeltError
from smelt.ir import Graph, Node, Origin, Value
from smelt.ops.core.binary import Binary
from smelt.proof.run import run, write_project
from tests.support.graphs import compile_graph
from tests.support.projects import (
    DIGITS_MODELS,
    VECTOR,
    counter,
    digits,
    images,
    must,
    network_sources,
    unary_chain,
)
from tests.support.shared import ROOT
from tests.support.tflite_networks import DIGITS

COMPILERS = {
    "gcc": ("gcc", "-std=c99"),
    "clang": ("clang", "-std=c99"),
    "g++": ("g++", "-x", "c++", "-std=c++17"),
    "clang++": ("clang++", "-x", "c++", "-std=c++17"),
}
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion")


# --- compilers ---------------------------------------------------------------------------------


@pytest.mark.quick(compiler=("gcc",), model=("counter", "digits_int8"))
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("model", [*DIGITS_MODELS, "counter", "chain"])
def test_compiles_without_a_warning(model: str, compiler: str, tmp_path: Path) -> None:
    """Compile the network as C and C++ and the firmware as C, with and without step callback."""
    if shutil.which(COMPILERS[compiler][0]) is None:
        pytest.skip(f"no {compiler}")
    hand_made = {"counter": counter, "chain": unary_chain}
    graph = hand_made.get(model)
    artifact = digits(model=model) if graph is None else compile_graph(graph())
    artifact.with_firmware().write(tmp_path / "project")
    files = network_sources(tmp_path / "project")
    if "++" not in compiler:
        files += [tmp_path / "project/main.c", *(tmp_path / "project/firmware").glob("*.c")]
    for defines in ([], ["-DSMELT_STEP_CALLBACK"]):
        for file in files:
            command = [*COMPILERS[compiler], *WARNINGS, *defines, "-c", str(file)]
            command += [f"-I{tmp_path}/project", f"-I{tmp_path}/project/firmware"]
            must(*command, "-o", "/dev/null")


@pytest.mark.quick(every=3)
@pytest.mark.parametrize(
    "options",
    [
        Options(board="host"),
        Options(),
        pytest.param(Options(target="cortex-m0"), marks=pytest.mark.qemu),
        pytest.param(Options(board="mps2-an386"), marks=pytest.mark.qemu),
    ],
    ids=["host", "library", "library for a core", "board"],
)
def test_cmake_builds_it(options: Options, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    artifact = digits(options)
    artifact.write(tmp_path / "project")
    for command in (["-B", "build"], ["--build", "build", "-j2"]):
        must("cmake", *command, cwd=tmp_path / "project")
    assert (tmp_path / "project/build/libdigits_int8_net.a").is_file()
    elf = tmp_path / "project/build/digits_int8.elf"
    assert elf.is_file() == artifact.has_firmware
    if elf.is_file():
        inputs, expected = images(1)
        hash_ = artifact.network.hash
        with open_device(elf, artifact.on, artifact.board, expected_hash=hash_) as device:
            (answer,), _ = device.run([inputs[0].tobytes()])
        assert answer == expected[0].tobytes()


@pytest.mark.parametrize("target", ["host", "cortex-m4", "vulkan"])
def test_only_projects_for_a_board_have_firmware(target: str, tmp_path: Path) -> None:
    artifact = digits(Options(target=target))
    artifact.write(tmp_path / "library")
    own = network_module.render_network(artifact.network, artifact.schedule)
    paths = tree(tmp_path / "library").keys() - own.texts.keys()
    assert paths - {"toolchain.cmake"} == {"CMakeLists.txt", "Makefile", "README.md", REPORT}
    assert not [name for name, text in artifact.project.files.items() if "firmware" in text]
    with_board = digits(Options(target=target, board="host")).project.files
    assert {"main.c", "firmware/wire.c"} <= with_board.keys()
    assert not [name for name in with_board if "mlperf" in name]


def test_the_kernels_of_digits_are_short() -> None:
    """Nine layers on a Cortex-M4 take at most 1,100 lines, comments and plain C included."""
    files = digits(Options(target="cortex-m4")).project.files
    assert files["digits_int8_net_kernels.c"].count("\n") <= 1100


@pytest.mark.qemu
def test_compiling_a_library_measures_it(tmp_path: Path) -> None:
    """Its objects contain weights and code, so its flash can be measured without a board."""
    artifact = digits(Options(target="cortex-m4"))
    report = write_project(artifact, tmp_path / "out", compile_=True)
    flash = report["flash"]
    assert artifact.network.weights_bytes < flash["network"] < 30_000
    assert flash["elf"] is None
    with pytest.raises(DoesNotFit, match=r"flash: .* bytes, the limit is 1,000"):
        write_project(artifact, tmp_path / "more", limits=BuildLimits(flash=1000))
    with pytest.raises(ConfigError, match="only a library that cannot be linked"):
        write_project(artifact, tmp_path / "more", limits=BuildLimits(stack=1000))


@pytest.mark.qemu
def test_make_builds_a_library_without_a_board(tmp_path: Path) -> None:
    digits(Options(target="cortex-m4")).write(tmp_path / "project")
    subprocess.run(["make"], cwd=tmp_path / "project", capture_output=True, check=True)
    archive = tmp_path / "project/build/libdigits_int8_net.a"
    command = ["arm-none-eabi-readelf", "-A", str(archive)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Tag_CPU_arch: v7E-M" in listing


@pytest.mark.parametrize("model", [*DIGITS_MODELS, "counter"])
def test_network_has_no_heap_and_no_writable_data(model: str, tmp_path: Path) -> None:
    artifact = compile_graph(counter()) if model == "counter" else digits(model=model)
    artifact.with_firmware().write(tmp_path / "project")
    compile_project(tmp_path / "project", artifact.platform, trace=True)
    symbols: dict[str, set[str]] = {}
    for source in artifact.network.sources:
        command = ["nm", "-P", str(tmp_path / "project/build" / Path(source).with_suffix(".o"))]
        for line in subprocess.check_output(command, text=True).splitlines():
            name, kind = line.split()[:2]
            symbols.setdefault(kind, set()).add(name)
    prefix = artifact.network.name
    assert f"{prefix}_invoke" in symbols["T"]
    assert not symbols.keys() & set("bBdDcCsSgG")
    undefined = {name for name in symbols["U"] if not name.startswith(f"{prefix}_")}
    libc = {"memcpy", "memmove", "memset", "exp", "expf"}
    toolchain = {"_GLOBAL_OFFSET_TABLE_", "__cpu_model", "__cpu_indicator_init"}
    assert undefined <= libc | toolchain


def test_every_file_begins_with_its_license(tmp_path: Path) -> None:
    digits(Options(board="mps2-an386")).write(tmp_path / "project")
    files = list((tmp_path / "project").rglob("*.[ch]"))
    assert len(files) > 10
    for path in files:
        first = path.read_text().splitlines()[0]
        assert first.startswith("/* SPDX-License-Identifier: MIT-0 - generated by Smelt"), path


# --- reproducibility -----------------------------------------------------------------------------


def test_same_model_and_options_give_the_same_bytes(tmp_path: Path) -> None:
    trees: list[dict[str, bytes]] = []
    for index, seed in enumerate(("1", "77")):
        folder = tmp_path / f"somewhere{index}"
        shutil.copytree(DIGITS, folder / "models", ignore=shutil.ignore_patterns("*.py"))
        model = folder / "models/digits_int8.tflite"
        command = [sys.executable, "-m", "smelt.cli.app", "build", str(model)]
        command += ["-o", str(folder / "out"), "--board", "mps2-an386", "--quiet"]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
        trees.append(tree(folder / "out"))
    assert trees[0] == trees[1]
    assert not [name for name, data in trees[0].items() if bytes(tmp_path) in data]


def tree(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files by path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "other",
    [
        Options(optimize="size"),
        Options(keep_inputs=True),
        Options(target="cortex-m4"),
        Options(board="mps2-an386"),
    ],
    ids=["optimize", "keep_inputs", "target", "board"],
)
def test_networks_with_other_files_have_another_hash(other: Options) -> None:
    assert digits().network.hash == digits().network.hash
    assert digits().network.hash != digits(other).network.hash


@pytest.mark.parametrize(
    ("template", "file"),
    [("header.h.j2", "digits_int8_net.h"), ("kernels.c.j2", "digits_int8_net_kernels.c")],
)
def test_the_hash_changes_with_the_text_of_a_template(
    template: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of Smelt with another template makes another network."""
    artifact = digits()

    def edited(path: str, parameters: Parameters) -> str:
        text = render_c(path, parameters)
        return f"{text}/* edited */\n" if path.endswith(template) else text

    monkeypatch.setattr(network_module, "render_c", edited)
    other = network_module.render_network(artifact.network, artifact.schedule)
    changed = {name for name, text in other.texts.items() if text != artifact.project.files[name]}
    assert changed == {file, "digits_int8_net.h"}
    assert other.network.hash != artifact.network.hash


def test_options_that_change_no_file_keep_the_hash() -> None:
    artifact = digits()
    other = digits(Options(backends=("c",)))
    assert other.project.files == artifact.project.files
    assert other.network.hash == artifact.network.hash


def test_the_hash_depends_on_the_weights() -> None:
    hashes = {compile_graph(graph).network.hash for graph in (scaled(0.5), scaled(0.25))}
    assert len(hashes) == 2


def scaled(factor: float) -> Graph:
    x, y = Value("x", VECTOR), Value("y", VECTOR)
    k = Value.constant("k", np.full(4, factor, np.float32))
    return Graph("scaled", (x,), (y,), (Node(Binary("mul"), (x, k), (y,), Origin("MUL", 0)),))


# --- writing -------------------------------------------------------------------------------------


def test_nothing_is_written_when_the_compiler_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(SmeltError, match=r"make in .* failed"):
        write_project(digits(), tmp_path / "out", compile_=True)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_lost_when_a_replacement_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(digits(), tmp_path / "out")
    before = tree(tmp_path / "out")
    monkeypatch.setenv("CC", "false")
    with pytest.raises(SmeltError):
        write_project(digits(Options(optimize="size")), tmp_path / "out", force=True, compile_=True)
    assert tree(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_output_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    for force in (False, True):
        with pytest.raises(ConfigError, match="not a folder"):
            write_project(digits(), tmp_path / "out", force=force)
    assert (tmp_path / "out").read_text() == "mine"
    with pytest.raises(ConfigError, match="cannot write"):
        write_project(digits(), tmp_path / "out" / "below")


def test_the_folder_has_usual_permissions(tmp_path: Path) -> None:
    """It must not keep those of a temporary folder, which only its owner can enter."""
    (tmp_path / "plain").mkdir()
    write_project(digits(), tmp_path / "deep" / "out")
    assert (tmp_path / "deep/out").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("name", ["_x", "__time", "1st", "a-b", "a b", ""])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        digits(Options(name=name))


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("1st-net", "network_1st_net"),
        ("_x", "network_x_net"),
        ("ümlaut", "network_mlaut_net"),
        ("日本", "network_net"),
        ("my net", "my_net"),
    ],
)
def test_any_file_name_gives_a_valid_network_name(file: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{file}.tflite"
    path.write_bytes((DIGITS / "digits_int8.tflite").read_bytes())
    assert compile_model(path).network.name == name


def test_all_global_names_begin_with_the_name_of_the_network(tmp_path: Path) -> None:
    artifact = digits(Options(name="kitchen_Scale2"))
    artifact.with_firmware().write(tmp_path / "project")
    compile_project(tmp_path / "project", artifact.platform)
    assert (tmp_path / "project/build/kitchen_Scale2.elf").is_file()
    assert (
        "KITCHEN_SCALE2_NET_ARENA_BYTES" in (tmp_path / "project/kitchen_Scale2_net.h").read_text()
    )
    library = tmp_path / "project/build/libkitchen_Scale2_net.a"
    subprocess.run(["make", "library"], cwd=library.parent.parent, check=True, capture_output=True)
    listing = subprocess.check_output(["nm", "-P", "--defined-only", str(library)], text=True)
    names = [line.split()[0] for line in listing.splitlines() if " T " in line or " R " in line]
    assert names
    assert all(name.startswith("kitchen_Scale2_net_") for name in names)


# --- report.json ---------------------------------------------------------------------------------


def test_report_before_compiling(tmp_path: Path) -> None:
    artifact = digits(Options(board="mps2-an386", optimize="size"))
    write_project(artifact, tmp_path / "out")
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report.pop("files") == sorted(tree(tmp_path / "out"))
    assert report == json.loads(json.dumps(artifact.report))
    assert (report["target"], report["board"], report["optimize"]) == (
        "cortex-m4",
        "mps2-an386",
        "size",
    )
    network = report["network"]
    assert (network["name"], network["hash"]) == ("digits_int8", artifact.network.hash)
    assert network["macs"] == 102_912
    assert network["inputs"][0]["shape"] == [1, 8, 8, 1]
    assert network["inputs"][0]["dtype"] == "int8"
    assert report["flash"] == {"network": None, "elf": None}
    assert set(report["inference"].values()) == {None}
    check_arena(report["arena"], artifact)
    check_layers(report["layers"])


def check_arena(described: Mapping[str, object], artifact: Artifact) -> None:
    bytes_, bound = described["bytes"], described["lower_bound"]
    assert isinstance(bytes_, int)
    assert isinstance(bound, int)
    assert 0 < bound <= bytes_ == artifact.network.arena_bytes
    assert described["proved_smallest"] is True
    assert described["schedules"] == {"searched": 1, "smallest": bytes_}
    certificate = "proved smallest for this schedule; no other was searched"
    assert described["certificate"] == certificate
    placed = described["map"]
    assert isinstance(placed, list)
    assert max(p["offset"] + p["size"] for p in placed) <= bytes_


def test_reports_say_which_bounds_the_arena_meets() -> None:
    """The smallest arena is that of several schedules; its certificate never claims more."""
    arena = digits(Options(target="cortex-m4", optimize="ram")).report["arena"]
    assert isinstance(arena, Mapping)
    searched = arena["schedules"]["searched"]
    assert searched > 1
    assert arena["schedules"]["smallest"] == arena["bytes"]
    of_schedule = "proved smallest for this schedule" if arena["proved_smallest"] else "more than"
    assert of_schedule in arena["certificate"]
    assert arena["certificate"].endswith(f", the smallest of {searched} searched")


def check_layers(layers: Sequence[Mapping[str, object]]) -> None:
    kinds = ["Conv2D", "DepthwiseConv2D", "Conv2D", "Conv2D", "Conv2D", "Binary(add)"]
    kinds += ["Pool2D(average)", "FullyConnected", "Softmax"]
    assert [layer["op"] for layer in layers] == kinds
    assert sum(int(str(layer["macs"])) for layer in layers) == 102_912
    for step, layer in enumerate(layers):
        assert layer["step"] == step
        assert layer["backend"] in ("dsp", "c")
        assert str(layer["kernel"]).startswith("digits_int8_")
        assert "#" in str(layer["origin"])
        assert layer["name"]
        assert isinstance(layer["why"], str)


@pytest.mark.qemu
def test_report_after_compiling(tmp_path: Path) -> None:
    """The network's flash is at least its weights, and less than the whole firmware."""
    artifact = digits(Options(board="mps2-an386"))
    write_project(artifact, tmp_path / "out", compile_=True)
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert (tmp_path / "out/build/digits_int8.elf").is_file()
    flash = report["flash"]
    assert report["weights"]["bytes"] < flash["network"] < flash["elf"] < 100_000
    bound = report["inference"].pop("stack_bound")
    assert bound["path"][0]["function"] == f"{artifact.network.name}_invoke"
    assert sum(frame["bytes"] for frame in bound["path"]) == bound["bytes"] < 1000
    assert bound["interrupts"] > 0
    assert bound["reason"] == ""
    assert set(report["inference"].values()) == {None}


@pytest.mark.qemu
def test_report_after_a_run() -> None:
    artifact = digits(Options(board="mps2-an386"))
    inputs, _ = images(1)
    inference = run(artifact, [(inputs[0],)]).report["inference"]
    # Each multiply-accumulate takes at least one instruction on a core without SIMD kernels.
    assert 102_912 < inference["instructions"] < 50 * 102_912
    assert 0 < inference["stack"] < 4096

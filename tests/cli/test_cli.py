"""Tests of the command line: what each command prints and writes, and its errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt import __version__
from smelt.boards import available, computers
from smelt.codegen.passes import PASSES
from smelt.frontend import load
from smelt.ir.archive import save
from smelt.ir.text import parse_graph, print_graph
from tests.support import onnx_networks as onnx
from tests.support.cli_runner import Ran, Smelt
from tests.support.cli_runner import smelt as smelt
from tests.support.shared import ROOT
from tests.support.tflite_networks import DIGITS

MODEL = str(DIGITS / "digits_int8.tflite")
FLOAT = str(DIGITS / "digits_float32.tflite")
DRQ = str(DIGITS / "digits_drq.tflite")
DATA = DIGITS / "digits_test.npz"


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Return a file of four images, as a user would store them."""
    path = tmp_path / "in.npz"
    with np.load(DATA) as data:
        np.savez(path, input_0=data["input_0"][:4])
    return path


def expected(count: int = 4) -> np.ndarray[Any, Any]:
    with np.load(DATA) as data:
        return data["tflite_reference_0"][:count]


def files() -> list[str]:
    """Return the names in the current folder."""
    return sorted(path.name for path in Path.cwd().iterdir())


def refused(ran: Ran, kind: str, *words: str) -> None:
    """Assert that the command failed with its own message, and wrote nothing into its folder."""
    assert ran.code == 1, ran
    assert ran.err.startswith(f"{kind}: ") or f"\n{kind}: " in ran.err, ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    for word in words:
        assert word in ran.err
    assert files() == []


# --- build -----------------------------------------------------------------------------------


def test_build_writes_a_project(smelt: Smelt) -> None:
    ran = smelt("build", MODEL, "-o", "out")
    assert ran.code == 0
    assert "wrote out" in ran.out
    assert "102,912 MACs" in ran.out
    assert files() == ["out"]
    assert {"digits_int8_net.c", "digits_int8_net.h", "report.json", "Makefile", "README.md"} <= {
        path.name for path in Path("out").iterdir()
    }


def test_build_needs_no_compiler(smelt: Smelt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert smelt("build", MODEL, "-o", "out", "--board", "mps2-an386").code == 0
    failed = smelt("build", MODEL, "-o", "more", "--compile")
    assert failed.code == 1
    assert "ToolError: 'make' is not installed, or not on PATH: apt-get install make" in failed.err
    assert files() == ["out"]


def test_build_json_is_the_report(smelt: Smelt) -> None:
    ran = smelt("build", MODEL, "-o", "out", "--json", "--compile", "--name", "net")
    assert ran.code == 0
    assert ran.json == json.loads(Path("out/report.json").read_text())
    assert ran.json["network"]["name"] == "net"
    assert ran.json["flash"]["network"] > 0
    assert Path("out/build/libnet_net.a").is_file()


def test_the_mlperf_protocol_is_built_only_if_requested(smelt: Smelt) -> None:
    ran = smelt("build", MODEL, "-o", "more", "--protocol", "mlperf")
    refused(ran, "ConfigError", "--protocol mlperf needs --board")
    ran = smelt("build", MODEL, "-o", "more", "--protocol", "mlperf", "--board", "mps2-an386")
    refused(ran, "ConfigError", "no MLPerf Tiny benchmark has an input of")
    assert smelt("build", MODEL, "-o", "out", "--board", "mps2-an386").code == 0
    assert not Path("out/firmware/mlperf.c").exists()


def test_build_quiet_prints_nothing(smelt: Smelt) -> None:
    ran = smelt("build", DRQ, "-o", "out", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_build_prints_notes_about_the_import(smelt: Smelt) -> None:
    """Notes go to standard error, so that standard output is valid JSON."""
    ran = smelt("build", DRQ, "-o", "out")
    assert "note: " in ran.err
    assert "dynamic-range" in ran.err


def test_build_does_not_overwrite(smelt: Smelt) -> None:
    assert smelt("build", MODEL, "-o", "out").code == 0
    ran = smelt("build", FLOAT, "-o", "out")
    assert ran.code == 1
    assert "ConfigError: 'out' exists and is not empty; --force replaces the files" in ran.err
    assert not Path("out/digits_float32_net.c").exists()
    assert smelt("build", FLOAT, "-o", "out", "--force").code == 0
    assert Path("out/digits_float32_net.c").exists()
    assert not Path("out/digits_int8_net.c").exists()
    assert files() == ["out"]


def test_an_archive_gives_the_same_code(smelt: Smelt, tmp_path: Path) -> None:
    save(load(MODEL).graph, tmp_path / "net.smelt")
    for model, out in ((MODEL, "a"), (tmp_path / "net.smelt", "b")):
        assert smelt("build", model, "-o", out).code == 0
    for path in Path("a").glob("*.[ch]"):
        assert path.read_bytes() == (Path("b") / path.name).read_bytes()


@pytest.mark.quick(every=4)
@pytest.mark.parametrize("name", [transform.__name__ for transform in PASSES])
def test_dump_after_prints_the_graph(smelt: Smelt, name: str) -> None:
    ran = smelt("build", FLOAT, "-o", "out", "--dump-after", name, "--quiet")
    assert ran.code == 0
    assert ran.out.startswith("smelt-ir 1\n")
    assert "Conv2D(" in ran.out


def test_builds_above_a_limit_are_refused(smelt: Smelt) -> None:
    limits = ("--max-arena", "100000", "--max-flash", "100000")
    assert smelt("build", MODEL, "-o", "out", *limits).code == 0
    assert json.loads(Path("out/report.json").read_text())["flash"]["network"] > 0
    for option, word, goal in (("--max-arena", "arena", "ram"), ("--max-flash", "flash", "size")):
        ran = smelt("build", MODEL, "-o", "small", option, "100")
        assert ran.code == 1
        assert f"Try --optimize {goal}" in ran.err
        ran = smelt("build", MODEL, "-o", "small", option, "100", "--optimize", goal)
        assert "Use a smaller network, or raise the limit" in ran.err
        assert "DoesNotFit: " in ran.err
        assert word in ran.err
        assert "the limit is 100" in ran.err
    assert files() == ["out"]


def test_kernels_are_chosen_for_the_ram(smelt: Smelt) -> None:
    target = ("--target", "cortex-m4")
    ran = smelt("build", MODEL, "-o", "out", *target, "--max-ram", "2700")
    assert json.loads(Path("out/report.json").read_text())["arena"]["bytes"] <= 2700
    assert "note: the preferred kernels need an arena of 2,784 bytes" in ran.err
    ran = smelt("build", MODEL, "-o", "small", *target, "--max-ram", "500")
    assert ran.code == 1
    assert "memory 'arena' has 500 bytes" in ran.err
    assert files() == ["out"]


# --- run -------------------------------------------------------------------------------------


def test_run_writes_outputs_and_a_report(smelt: Smelt, inputs: Path) -> None:
    ran = smelt("run", MODEL, "--inputs", inputs, "-o", "out.npz", "--json", "report.json")
    assert ran.code == 0
    with np.load("out.npz") as outputs:
        np.testing.assert_array_equal(outputs["output_0"], expected())
    report = json.loads(Path("report.json").read_text())
    assert report["flash"]["elf"] > report["flash"]["network"] > 0
    assert report["inference"]["instructions"] is None
    assert files() == ["out.npz", "report.json"]
    assert "output_0" in ran.out


@pytest.mark.qemu
def test_run_on_a_board(smelt: Smelt, inputs: Path) -> None:
    arguments = ("--board", "mps2-an386", "-o", "out.npz", "--json", "report.json", "-q")
    ran = smelt("run", MODEL, "--inputs", inputs, *arguments)
    assert (ran.code, ran.out) == (0, "")
    with np.load("out.npz") as outputs:
        np.testing.assert_array_equal(outputs["output_0"], expected())
    assert json.loads(Path("report.json").read_text())["inference"]["instructions"] > 100_000


def test_run_without_a_sample_axis(smelt: Smelt, tmp_path: Path) -> None:
    with np.load(DATA) as data:
        np.savez(tmp_path / "one.npz", input=data["input_0"][0])
    name = load(MODEL).graph.inputs[0].name
    with np.load(tmp_path / "one.npz") as one:
        np.savez(tmp_path / "named.npz", **{name: one["input"]})
    ran = smelt("run", MODEL, "--inputs", tmp_path / "named.npz", "-o", "out.npz")
    assert ran.code == 0, ran.err
    with np.load("out.npz") as outputs:
        np.testing.assert_array_equal(outputs["output_0"], expected(1)[0])


def test_run_quantizes_and_dequantizes(smelt: Smelt, tmp_path: Path) -> None:
    with np.load(DATA) as data:
        images, labels = data["images"][:8].reshape(8, 1, 8, 8, 1), data["labels"][:8]
        np.savez(tmp_path / "real.npz", input_0=images)
    ran = smelt("run", MODEL, "--inputs", tmp_path / "real.npz", "-o", "out.npz", "--dequantize")
    assert ran.code == 0
    with np.load("out.npz") as outputs:
        found = outputs["output_0"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.sum(axis=2), 1, atol=0.02)
    np.testing.assert_array_equal(found.argmax(axis=2).reshape(-1), labels)
    np.testing.assert_allclose(found, (expected(8).astype(np.float32) + 128) / 256, atol=1e-6)


# --- verify and profile ----------------------------------------------------------------------


def test_verify_prints_and_reports_the_verdict(smelt: Smelt) -> None:
    needless = smelt("verify", MODEL, "--any-build")
    refused(
        needless, "ConfigError", "--any-build is for a device that was flashed earlier, at --on"
    )
    ran = smelt("verify", MODEL, "--samples", "3", "--json", "report.json")
    assert ran.code == 0
    verdict = r"bit-exact, 3 samples; [\d,]{5,} bytes of code and constants equal the build"
    pattern = rf"this computer: ({verdict})\n"
    match = re.fullmatch(pattern, ran.out)
    assert match, ran.out
    verification = json.loads(Path("report.json").read_text())["verification"]
    assert verification["passed"]
    assert verification["message"] == match[1]
    assert verification["memory"]["bytes"] > 20_000
    assert verification["memory"]["arrays"] > 5
    assert verification["memory"]["why_not"] is None


@pytest.mark.parametrize("option", ["--on", "--board", "--target", "--boards", "--meter"])
def test_empty_options_are_refused(smelt: Smelt, option: str) -> None:
    ran = smelt("verify", MODEL, option, "")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"ConfigError: {option} is empty: ")


@pytest.mark.qemu
def test_verify_names_the_device(smelt: Smelt) -> None:
    for options in ((), ("--on", "qemu")):
        ran = smelt("verify", MODEL, "--board", "mps2-an386", "--samples", "1", *options)
        assert ran.out.startswith("mps2-an386 in QEMU: bit-exact, 1 sample; "), ran.err


def test_verify_compares_with_expected_outputs(smelt: Smelt, inputs: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "right.npz", output_0=expected())
    arguments = ("verify", MODEL, "--inputs", inputs, "--expect")
    said = smelt(*arguments, tmp_path / "right.npz").out
    assert said.startswith("this computer: bit-exact, 4 samples; ")
    wrong = expected().copy()
    wrong[2, 0, 7] ^= 1
    np.savez(tmp_path / "wrong.npz", output_0=wrong)
    ran = smelt(*arguments, tmp_path / "wrong.npz")
    refused(
        ran,
        "VerifyError",
        "sample 2",
        "differs from --expect: 1 of 10 elements differ, at most by 1.",
    )


@pytest.mark.qemu
def test_profile_counts_instructions(smelt: Smelt) -> None:
    ran = smelt("profile", MODEL, "--board", "mps2-an386", "--json")
    assert ran.code == 0
    assert ran.json["inference"]["instructions"] > 100_000
    assert ran.json["inference"]["stack"] > 0
    again = smelt("profile", MODEL, "--board", "mps2-an386")
    found = re.search(r"inference +([\d,]+) instructions", again.out)
    assert found is not None
    # The timer counts in ticks of 40 instructions; each of the two results may be off by one.
    assert abs(int(found[1].replace(",", "")) - ran.json["inference"]["instructions"]) <= 80


# --- inspect, ops, boards, targets -----------------------------------------------------------


def test_inspect_describes_a_network(smelt: Smelt) -> None:
    ran = smelt("inspect", MODEL)
    assert ran.code == 0
    for text in ("i8[1,8,8,1]", "DepthwiseConv2D", "102,912 multiply-accumulates"):
        assert text in ran.out
    described = smelt("inspect", MODEL, "--json").json
    assert described["macs"] == 102_912
    assert described["inputs"][0]["shape"] == [1, 8, 8, 1]
    assert sum(layer["MACs"] for layer in described["layers"]) == 102_912


def test_inspect_prints_text_that_can_be_parsed(smelt: Smelt) -> None:
    ran = smelt("inspect", MODEL, "--ir")
    store: dict[str, Any] = {}
    graph = load(MODEL).graph
    print_graph(graph, store)
    assert len(parse_graph(ran.out, store).nodes) == len(graph.nodes)


@pytest.mark.thorough
def test_ops_lists_operators_and_backends(smelt: Smelt) -> None:
    tables = smelt("ops", "--json").json
    imported = {row["operator"] for row in tables["imported"]}
    assert {"CONV_2D", "SOFTMAX", "RESIZE_BILINEAR"} <= imported
    served = {row["operator"]: row for row in tables["served"]}
    assert served["Conv2D"]["c"] == "yes"
    assert all(row["c"].startswith("yes") for row in served.values())
    table = smelt("ops")
    assert "CONV_2D" in table.out
    assert smelt("ops", "--markdown").out.startswith("# Supported operators\n")


def test_boards_and_targets_are_listed(smelt: Smelt) -> None:
    boards = smelt("boards", "--json").json
    assert [row["board"] for row in boards] == [*available(), *computers()]
    targets = {row["target"]: row for row in smelt("targets", "--json").json}
    assert {"host", "cortex-m0", "cortex-m55"} <= targets.keys()
    assert "mps2-an386" in targets["cortex-m4"]["boards"]
    for row in boards:
        assert row["target"] in targets
        assert row["board"] in smelt("boards").out
    assert "Armv6-M" in smelt("targets").out


def test_version_and_help(smelt: Smelt) -> None:
    assert smelt("--version").out == f"smelt {__version__}\n"
    for command in ("build", "run", "verify", "profile", "inspect", "ops", "boards", "targets"):
        ran = smelt(command, "--help")
        assert ran.code == 0
        assert "Usage" in ran.out
    assert "smelt verify model.tflite" in smelt("verify", "--help").out


def test_the_package_is_executable() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "smelt.cli.app", "inspect", "nothing.tflite"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("ModelError: nothing.tflite: cannot be read")
    assert done.stdout == ""


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["build", "run", "verify", "profile", "inspect"])
def test_missing_and_broken_models_are_refused(
    smelt: Smelt, command: str, inputs: Path, tmp_path: Path
) -> None:
    own: dict[str, tuple[str | Path, ...]] = {
        "build": ("-o", "out"),
        "run": ("--inputs", inputs, "-o", "out.npz"),
    }
    broken = tmp_path / "broken.tflite"
    broken.write_bytes(Path(MODEL).read_bytes()[:500])
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    for model in (tmp_path / "nothing.tflite", broken, picture, tmp_path):
        refused(smelt(command, model, *own.get(command, ())), "ModelError", model.name)


def test_open_dimensions_of_onnx_are_named(smelt: Smelt, tmp_path: Path) -> None:
    relu = onnx.node("Relu", "x", "y")
    proto = onnx.model(onnx.graph([relu], {"x": ["batch", 3]}, "y"))
    path = tmp_path / "open.onnx"
    path.write_bytes(proto.SerializeToString())
    refused(smelt("build", path, "-o", "out"), "UnsupportedError", "'batch'", "--dim batch=1")
    refused(smelt("inspect", path, "--dim", "batch"), "ConfigError", "batch=1")
    refused(smelt("inspect", path, "--shape", "x"), "ConfigError", "--shape x")
    refused(smelt("inspect", path, "--value", "x=many"), "ConfigError", "--value x=many")
    assert "f32[2,3]" in smelt("inspect", path, "--dim", "batch=2").out
    both = ("--shape", "x=4x3", "--dim", "batch=2")
    refused(smelt("inspect", path, *both), "ConfigError", "as 'batch'", "size 4")
    refused(smelt("inspect", path, "--dim", "batch=2", *both), "ConfigError", "--dim", "twice")
    layout = ("--dim", "batch=2", "--input-layout", "nhwc")
    refused(smelt("inspect", path, *layout), "ConfigError", "nhwc", "f32[2,3]")


@pytest.mark.parametrize(
    "options",
    [
        ("--dim", "n=1", "--dim", "n=1"),
        ("--shape", "n=1", "--shape", "n=2"),
        ("--value", "n=1", "--value", "n=2"),
    ],
)
def test_an_input_option_cannot_be_given_twice(smelt: Smelt, options: tuple[str, ...]) -> None:
    refused(smelt("inspect", MODEL, *options), "ConfigError", options[0], "twice for 'n'")


def test_a_bool_value_is_given_as_words_or_digits(smelt: Smelt, tmp_path: Path) -> None:
    nodes = [onnx.node("Where", "c x z", "y")]
    inputs = [onnx.tensor_info("c", [2], "b"), *(onnx.tensor_info(n, [2]) for n in "xz")]
    path = tmp_path / "where.onnx"
    path.write_bytes(onnx.model(onnx.graph(nodes, inputs, "y")).SerializeToString())
    texts = [
        smelt("inspect", path, "--ir", "--value", f"c={words}").out
        for words in ("true,false", "True,False", "1,0", "false,true")
    ]
    assert texts[0] == texts[1] == texts[2] != texts[3]
    refused(smelt("inspect", path, "--value", "c=2"), "ConfigError", "bool")
    refused(smelt("inspect", path, "--value", "x=true"), "ConfigError", "float32")
    refused(smelt("inspect", path, "--value", "c=yes"), "ConfigError", "flag=true")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--board", "mps2-an38"), ("'mps2-an38'", "mps2-an386")),
        (("--target", "cortex-m9"), ("'cortex-m9'", "cortex-m0")),
        (("--board", "mps2-an385", "--target", "cortex-m4"), ("cortex-m4", "mps2-an385")),
        (("--name", "1st"), ("'1st'", "--name")),
        (("--name", "_main"), ("'_main'", "underscore", "--name")),
        (("--dump-after", "nothing"), ("'nothing'", "fold_constants")),
        (("--max-ram", "many"), ("many", "32K")),
        (("--max-ram", "-1"), ("-1", "32K")),
        (("--plugin", "nothing.py"), ("nothing.py",)),
    ],
)
def test_wrong_options_are_refused(
    smelt: Smelt, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refused(smelt("build", MODEL, "-o", "out", *options), "ConfigError", *words)


@pytest.mark.parametrize(
    "arguments",
    [
        ("build", MODEL),
        ("build", MODEL, "-o", "out", "--optimize", "beauty"),
        ("build", MODEL, "-o", "out", "--max-arena", "many"),
        ("verify", MODEL, "--samples", "0"),
        ("verify", MODEL, "--seed", "-1"),
        ("profile", MODEL, "--seed", "-1"),
        ("polish", MODEL),
    ],
)
def test_wrong_usage_is_explained(smelt: Smelt, arguments: tuple[str, ...]) -> None:
    ran = smelt(*arguments)
    assert ran.code == 2
    assert "Value error" not in ran.err
    assert "Usage" in ran.err
    assert files() == []


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"other": np.zeros((1, 8, 8, 1), np.int8)}, ("no array for input", "'input_0'", "other")),
        ({"input_0": np.zeros((1, 8, 9, 1), np.int8)}, ("[1, 8, 9, 1]", "[1, 8, 8, 1]")),
        ({"input_0": np.full((1, 8, 8, 1), 300, np.int32)}, ("300",)),
        ({"input_0": np.full((1, 8, 8, 1), np.nan, np.float32)}, ("NaN",)),
        ({}, ("Given: none",)),
    ],
)
def test_wrong_inputs_are_refused(
    smelt: Smelt, tmp_path: Path, arrays: dict[str, Any], words: tuple[str, ...]
) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    for command in (("run", "-o", "out.npz", "--json", "report.json"), ("verify",)):
        name, *rest = command
        ran = smelt(name, MODEL, "--inputs", tmp_path / "in.npz", *rest)
        refused(ran, "ConfigError", *words)


def test_missing_and_broken_inputs_are_refused(smelt: Smelt, inputs: Path, tmp_path: Path) -> None:
    ran = smelt("run", MODEL, "--inputs", tmp_path / "nothing.npz")
    refused(ran, "ConfigError", "nothing.npz' does not exist")
    inputs.write_bytes(inputs.read_bytes()[:200])
    refused(smelt("run", MODEL, "--inputs", inputs), "ConfigError", "not a readable .npz")


def test_wrong_expectations_are_refused(smelt: Smelt, inputs: Path, tmp_path: Path) -> None:
    path = tmp_path / "expect.npz"
    refused(smelt("verify", MODEL, "--expect", path), "ConfigError", "--expect needs --inputs")
    cases: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"output_1": expected()}, ("no array for output", "output_0")),
        (
            {"output_0": expected(3)},
            ("expected outputs are given for 3 samples, but inputs for 4 samples",),
        ),
        ({"output_0": expected()[:, :, :9]}, ("[4, 1, 9]", "[1, 10]")),
    ]
    for arrays, words in cases:
        np.savez(path, **arrays)
        ran = smelt("verify", MODEL, "--inputs", inputs, "--expect", path)
        refused(ran, "ConfigError", *words)


def test_qemu_needs_a_board(smelt: Smelt) -> None:
    refused(smelt("verify", MODEL, "--on", "qemu"), "ConfigError", "--on qemu needs --board")


def test_a_library_cannot_run(smelt: Smelt) -> None:
    ran = smelt("profile", MODEL, "--target", "cortex-m4")
    refused(ran, "ConfigError", "--board")


def test_networks_that_do_not_fit_are_refused_before_compiling(smelt: Smelt) -> None:
    ran = smelt("build", FLOAT, "-o", "out", "--board", tiny_board(flash="16K"))
    refused(ran, "DoesNotFit", "flash", "16,384", "the weights need 29,")
    ran = smelt("build", FLOAT, "-o", "out", "--board", tiny_board(ram="2K"))
    refused(ran, "DoesNotFit", "arena")


@pytest.mark.qemu
def test_networks_that_do_not_fit_after_linking_are_refused(smelt: Smelt) -> None:
    ran = smelt("build", MODEL, "-o", "out", "--board", tiny_board(flash="12K"), "--compile")
    refused(ran, "DoesNotFit", "flash", "12,288")
    ran = smelt("build", MODEL, "-o", "out", "--board", tiny_board(stack=256), "--compile")
    refused(ran, "DoesNotFit", "bytes of stack", "has a stack of 256: set a larger stack_bytes")


def tiny_board(flash: str = "256K", ram: str = "16K", stack: int = 1024) -> Path:
    """Return a board file for a micro:bit with less memory, beside the current folder."""
    text = (ROOT / "boards/microbit.toml").read_text()
    path = Path.cwd().parent / "tiny.toml"
    path.write_text(
        text.replace('"256K"', f'"{flash}"')
        .replace('"16K"', f'"{ram}"')
        .replace('stack_bytes = "2K"', f"stack_bytes = {stack}")
        .replace('name = "microbit"', 'name = "tiny"')
    )
    return path


def test_unwritable_paths_are_refused(smelt: Smelt, inputs: Path) -> None:
    for arguments in (
        ("-o", "nowhere/out.npz"),
        ("--json", "nowhere/report.json"),
    ):
        ran = smelt("run", MODEL, "--inputs", inputs, *arguments)
        refused(ran, "ConfigError", "cannot write 'nowhere")


def test_a_network_may_have_the_name_of_a_project_file(smelt: Smelt) -> None:
    Path("main.tflite").write_bytes(Path(MODEL).read_bytes())
    assert smelt("build", "main.tflite", "-o", "out", "--board", "host").code == 0
    assert Path("out/main_net.c").exists()
    assert Path("out/main.c").exists()


def test_code_for_a_board_does_not_run_on_the_host(smelt: Smelt) -> None:
    ran = smelt("verify", MODEL, "--board", "mps2-an386", "--on", "host")
    assert ran.code == 1
    assert "ConfigError: --on host cannot run code for 'mps2-an386'" in ran.err


def test_a_link_to_a_folder_stays_a_link(smelt: Smelt) -> None:
    Path("real").mkdir()
    Path("link").symlink_to("real")
    assert smelt("build", MODEL, "-o", "link").code == 0
    assert Path("link").is_symlink()
    assert Path("real/digits_int8_net.c").exists()


def test_the_current_folder_is_not_replaced(smelt: Smelt) -> None:
    ran = smelt("build", MODEL, "-o", ".")
    assert ran.code == 1
    assert "is the current folder or contains it" in ran.err
    assert list(Path.cwd().iterdir()) == []


INTERRUPTED = """
import atexit, os, signal, sys
when = os.environ["SMELT_TEST_WHEN"]
left = None
def count(event, arguments):
    global left
    if event == "import" and arguments[0] == "smelt.cli.app" and left is None:
        left = int(when)
    elif event == "import" and left is not None:
        left -= 1
    if left == 0:
        left = -1
        os.kill(os.getpid(), signal.SIGINT)
if when == "end":
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
elif when == "count":
    sys.addaudithook(count)
    when = 10**9
    atexit.register(lambda: print(10**9 - left, file=sys.stderr))
else:
    sys.addaudithook(count)
"""
"""Code for Python's start that sends Ctrl-C after a number of imports, or at the end."""


@pytest.mark.quick(start=("-m",))
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("start", ["-m", "script"])
def test_ctrl_c_ends_the_program_without_messages(tmp_path: Path, start: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED)
    script = Path(sys.executable).parent / "smelt"
    if start == "script" and not script.exists():
        pytest.skip("smelt is not installed")
    command = [sys.executable, "-m", "smelt"] if start == "-m" else [str(script)]

    def ended(when: str) -> tuple[int, str]:
        """Return exit status and messages if Ctrl-C comes after `when` imports, or at the end."""
        done = subprocess.run(
            [*command, "boards"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "SMELT_TEST_WHEN": when},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    status, said = ended("count")
    imports = int(said)
    assert status == 0
    assert imports > 300
    places = [0, 10, *(imports * part // 3 for part in range(1, 4))]
    found = {place: ended(place) for place in (*map(str, places), "end")}
    assert found == dict.fromkeys(found, (130, ""))


def test_ctrl_c_stays_ignored_if_it_was_ignored() -> None:
    """A shell script starts background jobs with Ctrl-C ignored."""
    code = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "sys.addaudithook(lambda event, arguments: os.kill(os.getpid(), signal.SIGINT) "
        "if event == 'import' and "
        "arguments[0] in ('smelt.cli.app', 'smelt.cli.show.html') else None); "
        "sys.argv = ['smelt', '--version']; from smelt.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("smelt ")


def test_few_modules_are_imported_before_ctrl_c_is_handled() -> None:
    """While these modules are imported, Ctrl-C ends the program with a traceback."""
    code = "import sys; a = set(sys.modules); import smelt.__main__; print(*set(sys.modules) - a)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) <= {"smelt", "smelt.__main__", "smelt.version", "gc"}


@pytest.mark.parametrize("kind", ["--html", "--junit"])
def test_two_reports_in_one_file_are_refused(smelt: Smelt, kind: str) -> None:
    ran = smelt("verify", MODEL, "--json", "out", kind, Path.cwd() / "x/../out")
    assert ran.code == 1
    assert ran.err.startswith("ConfigError: ")
    assert "are the same file" in ran.err
    assert not Path("out").exists()


def test_reports_of_failures_contain_the_time(smelt: Smelt, inputs: Path) -> None:
    np.savez("wrong.npz", output_0=expected() ^ 1)
    arguments = (
        "--inputs",
        inputs,
        "--expect",
        "wrong.npz",
        "--json",
        "a.json",
        "--junit",
        "a.xml",
    )
    assert smelt("verify", MODEL, *arguments).code == 1
    assert json.loads(Path("a.json").read_text())["verification"]["seconds"] > 0.01
    assert 'time="0.000"' not in Path("a.xml").read_text()
    assert smelt("verify", "none.tflite", "--junit", "b.xml").code == 1
    assert 'errors="1"' in Path("b.xml").read_text()

"""Tests of `smelt profile`: its table, JSON and HTML page, and errors if it cannot count."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.cli.show import profile as show_profile
from smelt.errors import ConfigError, SmeltError, ToolError
from smelt.proof.profile import profiled
from smelt.proof.run import run
from smelt.samples import random_samples
from smelt.targets.instructions import Kind
from tests.cli.test_cli import MODEL, refused
from tests.proof.test_profile import profile
from tests.support.cli_runner import Smelt
from tests.support.cli_runner import smelt as smelt
from tests.support.graphs import SETUPS
from tests.support.tflite_networks import DIGITS

pytestmark = pytest.mark.qemu


def test_the_layers_of_a_profile_sum_to_the_total(smelt: Smelt) -> None:
    ran = smelt("profile", MODEL, "--board", "mps2-an386", "--cycles")
    assert ran.code == 0
    lines = ran.out.splitlines()
    heading = (
        "step layer operator backend kernel instructions share per MAC planned cycles cycles ms"
    )
    assert lines[0].split() == heading.split()
    assert "ms at 25 MHz: Arm's published timings of cortex-m4; memory without" in ran.out
    total = next(line for line in lines if line.strip().startswith("all "))
    counts = [line for line in lines[1 : lines.index(total)] if line.strip()]
    numbers = [int(re.findall(r" ([\d,]+) +\d+\.\d%", x)[0].replace(",", "")) for x in counts]
    assert sum(numbers) == int(total.split()[1].replace(",", ""))
    assert lines[-1].startswith("stack")


@pytest.mark.thorough
def test_wait_states_add_cycles(smelt: Smelt) -> None:
    options = ("profile", MODEL, "--board", "mps2-an505", "--json")
    plain = smelt(*options).json
    assert "cycles" not in plain["profile"]
    assert plain["layers"][0]["instructions_per_mac"] > 0
    timed = smelt(*options, "--cycles").json
    waiting = smelt(*options, "--cycles", "--wait-states", "3").json
    assert waiting["profile"]["wait_states"] == 3
    assert waiting["profile"]["cycles"] > timed["profile"]["cycles"]
    assert (waiting["profile"]["cycles"] - timed["profile"]["cycles"]) % 3 == 0
    assert waiting["profile"]["instructions"] == plain["profile"]["instructions"]
    assert timed["profile"]["core"] == "cortex-m33"
    assert timed["profile"]["milliseconds"] == pytest.approx(timed["profile"]["cycles"] / 20_000)


class Page(HTMLParser):
    """The cells and addresses of an HTML page, and tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href")]
        self.cells += [""] if tag == "td" else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells[-1] += data


def test_the_html_page_is_complete(smelt: Smelt) -> None:
    ran = smelt("profile", MODEL, "--board", "mps2-an386", "--cycles", "--html", "p.html", "--json")
    page = Page(Path("p.html").read_text(encoding="utf-8"))
    assert page.open == page.addresses == []
    for layer in ran.json["layers"]:
        assert layer["name"] in page.cells
        assert f"{layer['cycles']:,}" in page.cells
    assert f"{ran.json['profile']['instructions']:,}" in page.cells
    assert list(Path().iterdir()) == [Path("p.html")]


@pytest.mark.thorough
def test_html_escapes_names_and_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    artifact = compile_model(DIGITS / "digits_int8.tflite", SETUPS["m4"])
    report = profiled(artifact.report, profile(artifact), cycles=True)
    report["layers"][0]["name"] = "<script>alert('&')</script>"
    page = Page(show_profile.html(report))
    assert "script" not in page.open
    assert "<script>alert('&')</script>" in page.cells
    with pytest.raises(ConfigError, match="No such file or directory"):
        show_profile.write_html(tmp_path / "nowhere" / "p.html", report)
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write '.*taken\.html'"):
        show_profile.write_html(tmp_path / "taken.html", report)
    del report["layers"][0]["op"]
    with pytest.raises(KeyError):
        show_profile.write_html(tmp_path / "broken.html", report)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.html"]


@pytest.mark.thorough
def test_a_warning_names_unknown_mnemonics() -> None:
    artifact = compile_model(DIGITS / "digits_int8.tflite", SETUPS["m4"])
    found = profile(artifact)
    address = next(iter(found.steps[0] or ()))
    strange = replace(found.code.instructions[address], mnemonic="frob", kind=Kind.UNKNOWN)
    code = replace(found.code, instructions={**found.code.instructions, address: strange})
    report = profiled(artifact.report, replace(found, code=code), cycles=True)
    assert report["profile"]["unknown_mnemonics"] == ["frob"]
    remarks = " ".join(show_profile.remarks(report))
    assert "warning: no timings are known for frob; each is counted as one cycle" in remarks


@pytest.mark.thorough
def test_a_layer_whose_call_was_removed_is_explained() -> None:
    artifact = compile_model(DIGITS / "digits_int8.tflite", SETUPS["m4"])
    found = profile(artifact)
    assert not list(show_profile.remarks(profiled(artifact.report, found)))
    gone = replace(found, steps=(None, *found.steps[1:]))
    report = profiled(artifact.report, gone, cycles=True)
    assert any("removed the layer's call" in remark for remark in show_profile.remarks(report))
    first, *_ = show_profile.layers(report).rows
    assert first[5:8] == ("-", "-", "-")
    assert first[9:] == ("-", "-")


def test_without_a_simulator_layers_are_timed(smelt: Smelt) -> None:
    ran = smelt("profile", MODEL)
    assert ran.code == 0
    assert ran.out.split()[:6] == ["step", "layer", "operator", "backend", "time", "share"]
    assert "between the kernels" not in ran.out
    assert "profile" not in smelt("profile", MODEL, "--json").json
    for option in (("--cycles",), ("--html", "p.html")):
        refused(smelt("profile", MODEL, *option), "ConfigError", "that QEMU simulates")
    refused(
        smelt("profile", MODEL, "--board", "mps2-an386", "--wait-states", "2"),
        "ConfigError",
        "--wait-states needs --cycles",
    )
    with pytest.raises(ConfigError, match="choose a --board"):
        profile(compile_model(DIGITS / "digits_int8.tflite", Options()))


def put_on_path(name: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a shell script with this name and text first on PATH."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.quick(every=3)
@pytest.mark.parametrize(
    ("tool", "text", "message"),
    [
        ("cc", "echo it is broken >&2; exit 1", "plugin cannot be compiled:\nit is broken"),
        ("qemu-system-arm", "echo usage", "qemu-system-arm was built without plugins"),
        ("arm-none-eabi-objdump", "echo no >&2; exit 1", "arm-none-eabi-objdump cannot read"),
    ],
)
def test_tools_that_fail_are_named(
    tool: str, text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = compile_model(DIGITS / "digits_int8.tflite", SETUPS["m4"])
    put_on_path(tool, text, tmp_path, monkeypatch)
    with pytest.raises(ToolError, match=re.escape(message)):
        profile(artifact)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compile_model(DIGITS / "digits_int8.tflite", SETUPS["m4"])
    which = shutil.which

    def find(name: str) -> str | None:
        return None if name == "cc" else which(name)

    monkeypatch.setattr(shutil, "which", find)
    with pytest.raises(ToolError, match=r"'cc' is not installed.*: apt-get install gcc"):
        profile(artifact)


@pytest.mark.thorough
def test_a_plugin_that_qemu_refuses_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an older QEMU claims to be version 9, it gets a plugin for an interface that it lacks."""
    real = shutil.which("qemu-system-arm")
    assert real is not None
    version = subprocess.run([real, "-version"], capture_output=True, text=True, check=True).stdout
    if int(re.findall(r"version (\d+)", version)[0]) >= 9:
        pytest.skip("this QEMU has the later interface")
    text = (
        f'if [ "$1" = -version ]; then echo QEMU emulator version 9.0.0; exit; fi\nexec {real} "$@"'
    )
    put_on_path("qemu-system-arm", text, tmp_path, monkeypatch)
    artifact = compile_model(DIGITS / "digits_int8.tflite", SETUPS["m4"])
    with pytest.raises(SmeltError, match="requires API version"):
        profile(artifact)


def test_profiling_does_not_disturb_the_timer() -> None:
    """The run of a profile measures the same as `run`."""
    artifact = compile_model(DIGITS / "digits_int8.tflite", SETUPS["m4"])
    sample = random_samples(artifact.graph, 1, 0)
    measured = run(artifact, sample).measured
    found = profile(artifact).measured
    assert measured.stack == found.stack
    assert measured.instructions is not None
    assert found.instructions is not None
    assert abs(measured.instructions - found.instructions) <= 40

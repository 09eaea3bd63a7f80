"""Boards that are computers with a GPU: their files, and artifacts for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.boards import computers, find_computer, load
from smelt.errors import ConfigError
from tests.support.cli_runner import Smelt, runner
from tests.support.tflite_networks import DIGITS
from tests.support.vulkan_tools import requires_vulkan

pytestmark = requires_vulkan

MODEL = DIGITS / "digits_int8.tflite"
OWN = 'name = "own"\ndescription = "mine"\ntarget = "vulkan"\ngpu = "mali"\n'


@pytest.mark.parametrize("name", computers())
def test_every_computer_builds(name: str) -> None:
    artifact = compile_model(MODEL, Options(board=name))
    assert artifact.report["board"] == name
    assert artifact.report["target"] == "vulkan"
    assert artifact.on == "host"
    found = find_computer(name)
    assert found is not None
    assert found.name == name
    assert found.verified == "never"


def test_a_computer_may_be_a_file_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    artifact = compile_model(MODEL, Options(board=str(path)))
    mali = compile_model(MODEL, Options(target="vulkan", gpu="mali"))
    assert artifact.platform.name == "own"
    assert [s.backend for s in artifact.schedule.calls] == [s.backend for s in mali.schedule.calls]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (OWN.replace("mali", "malice"), "gpu: unknown GPU 'malice'; did you mean 'mali'?"),
        (OWN.replace("vulkan", "cortex-m4"), "target: "),
        (OWN + "clock_hz = 1\n", "clock_hz: "),
        (OWN.replace('name = "own"\n', ""), "name: "),
    ],
)
def test_wrong_computer_files_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        compile_model(MODEL, Options(board=str(path)))
    assert complaint in str(error.value)


def test_another_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="board 'raspberrypi5' is a computer with a GPU"):
        compile_model(MODEL, Options(board="raspberrypi5", target="cortex-m4"))


def test_a_computer_is_no_board_for_firmware() -> None:
    with pytest.raises(ConfigError, match="'raspberrypi5' is a computer"):
        load("raspberrypi5")


@pytest.fixture
def smelt(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


@pytest.mark.thorough
def test_measurements_name_the_computer_they_were_taken_on(smelt: Smelt, tmp_path: Path) -> None:
    """A network for another computer is measured on this one, and the output says so."""
    (tmp_path / "own.toml").write_text(OWN)
    ran = smelt("build", MODEL, "--board", "own.toml", "-o", "out", "--compile")
    assert (ran.code, "this computer, not on own" in ran.out) == (0, True)
    assert "not on" not in smelt("build", MODEL, "--board", "own.toml", "-o", "plain").out
    ran = smelt("verify", MODEL, "--board", "raspberrypi5", "--html", "page.html")
    assert ran.out.startswith("this computer")
    assert "digits_int8 on this computer</h1>" in (tmp_path / "page.html").read_text()
    ran = smelt("profile", MODEL, "--board", "raspberrypi5")
    assert "this computer, not on raspberrypi5" in ran.out
    ran = smelt("verify", MODEL, "--boards", "raspberrypi5,host", "--jobs", "1")
    (row,) = (line for line in ran.out.splitlines() if line.startswith("raspberrypi5"))
    assert "this computer" in row


def test_the_report_names_where_it_measures() -> None:
    report = compile_model(MODEL, Options(board="mps2-an386")).report
    assert report["measured_on"] == "mps2-an386"
    assert compile_model(MODEL).report["measured_on"] == "this computer"

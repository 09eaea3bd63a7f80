"""Boards that are computers with a GPU: their files, and what is built for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt.boards import computer_called, computers, load
from smelt.errors import ConfigError
from smelt.pipeline import Options, compile_model
from tests.tflite_networks import DIGITS
from tests.vulkan_tools import requires_vulkan

pytestmark = requires_vulkan

MODEL = DIGITS / "digits_int8.tflite"
OWN = 'name = "own"\ndescription = "mine"\ntarget = "vulkan"\ngpu = "mali"\n'


@pytest.mark.parametrize("name", computers())
def test_every_computer_builds(name: str) -> None:
    artefact = compile_model(MODEL, Options(board=name))
    assert artefact.report["board"] == name
    assert artefact.report["target"] == "vulkan"
    assert artefact.on == "host"
    found = computer_called(name)
    assert found is not None
    assert found.name == name
    assert found.verified == "never"


def test_a_computer_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    artefact = compile_model(MODEL, Options(board=str(path)))
    mali = compile_model(MODEL, Options(target="vulkan", gpu="mali"))
    assert artefact.platform.name == "own"
    assert [s.backend for s in artefact.schedule.steps] == [s.backend for s in mali.schedule.steps]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (OWN.replace("mali", "malice"), "gpu: unknown GPU 'malice'; did you mean 'mali'?"),
        (OWN.replace("vulkan", "cortex-m4"), "target: "),
        (OWN + "clock_hz = 1\n", "clock_hz: "),
        (OWN.replace('name = "own"\n', ""), "name: "),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        compile_model(MODEL, Options(board=str(path)))
    assert complaint in str(error.value)


def test_another_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="board 'raspberrypi5' is a computer with a GPU"):
        compile_model(MODEL, Options(board="raspberrypi5", target="cortex-m4"))


def test_it_takes_no_firmware() -> None:
    with pytest.raises(ConfigError, match="'raspberrypi5' is a computer"):
        load("raspberrypi5")

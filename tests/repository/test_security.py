"""The claims of SECURITY.md about executed code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import smelt as package
from smelt import __version__
from smelt.api import plugins
from smelt.errors import ConfigError
from smelt.frontend import load
from smelt.samples import load_arrays
from tests.cli.test_lists import COMMANDS, options
from tests.support.cli_runner import Smelt, runner
from tests.support.shared import ROOT
from tests.support.tflite_networks import DIGITS

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
MODEL = DIGITS / "digits_int8.tflite"


class Executed(Exception):
    """Raised by the plugin, so that the command ends."""


@dataclass
class Installed:
    """An installed plugin that records its execution and raises `Executed`."""

    name: str = "witness"
    value: str = "witness"
    module: str = "witness"
    count: list[str] = field(default_factory=list[str])

    def load(self) -> object:
        self.count.append(self.name)
        raise Executed


@pytest.fixture
def smelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Installed:
    found = Installed()

    def installed(group: str) -> list[Installed]:
        assert group == plugins.GROUP
        return [found]

    monkeypatch.setattr(plugins, "entry_points", installed)
    return found


def named(start: str) -> set[str]:
    """Return the commands in backquotes in the passage of SECURITY.md after `start`."""
    passage = PAGE.split(start, 1)[1].split("\n", 1)[0].split("smelt.compile", 1)[0]
    return {word for word in re.findall(r"`([a-z-]+)`", passage) if word in COMMANDS}


EXECUTING = named("plugins: a file given with")


def words(command: str) -> list[str]:
    """Return valid arguments for a command."""
    known = options(COMMANDS[command])
    given = {
        "--format": ["--format", "cmake"],
        "--output": [] if command in ("quantize", "board new") else ["-o", "out"],
        "--inputs": ["--inputs", "in.npz"],
        "--calibration": ["--calibration", "in.npz"] if command == "quantize" else [],
        "--board": ["--board", "mps2-an386"],
        "--like": ["--like", "mps2-an386"],
    }
    if command == "verify":
        given["--boards"] = []
    arguments = [w for option, texts in given.items() if option in known for w in texts]
    positional = {"board new": ["mine"], "board check": ["mps2-an386"]}.get(command, [])
    if any(p.param_type_name == "argument" for p in COMMANDS[command].params) and not positional:
        positional = [str(MODEL)]
    return [*command.split(), *positional, *arguments]


@pytest.mark.quick(every=4)
@pytest.mark.parametrize("command", COMMANDS)
def test_plugins_are_executed_by_the_named_commands_only(
    smelt: Smelt, witness: Installed, command: str
) -> None:
    ran = smelt(*words(command))
    assert bool(witness.count) == (command in EXECUTING), ran.err
    if command in EXECUTING:
        assert "plugin witness = witness" in ran.err
    else:
        assert ran.code == 0, ran.err


def test_compile_executes_plugins_and_load_does_not(
    witness: Installed,
) -> None:
    load(MODEL)
    load(MODEL.read_bytes())
    assert witness.count == []
    with pytest.raises(ConfigError, match="plugin witness"):
        package.compile(MODEL)
    assert witness.count == ["witness"]


def test_modules_in_the_folder_of_the_model_are_not_imported(tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "smelt"
    if not script.exists():
        pytest.skip("smelt is not installed")
    evil = "open('executed', 'a').write(__name__)\n"
    for name in ("numpy", "onnx", "tflite", "typer", "sitecustomize", "smelt_plugin", "conftest"):
        (tmp_path / f"{name}.py").write_text(evil)
    (tmp_path / "network.tflite").write_bytes(MODEL.read_bytes())
    done = subprocess.run(
        [str(script), "inspect", "network.tflite"],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


class Evil:
    """An object that executes code when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_samples_are_not_unpickled(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    array = np.array([Evil()], object)
    if suffix == "npz":
        np.savez("in.npz", input_0=array)
    else:
        np.save("in.npy", array)
    with pytest.raises(ConfigError, match="is not a readable"):
        load_arrays(Path(f"in.{suffix}"))
    assert not Path("executed").exists()


def test_the_page_names_commands_and_version() -> None:
    assert len(EXECUTING) > 10
    series = ".".join(__version__.split(".")[:2])
    assert f"| {series}.x | yes |" in PAGE
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "(SECURITY.md)" in (ROOT / page).read_text(encoding="utf-8")

"""Run the command line in the process of the test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from smelt.cli.app import main


@dataclass(frozen=True)
class Ran:
    """Exit status and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return standard output parsed as JSON; the output must contain nothing else."""
        return json.loads(self.out)


Smelt = Callable[..., Ran]


def runner(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Smelt:
    """Return a function that runs `smelt` with arguments, in a folder and with a wide terminal."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["smelt", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capfd.readouterr()
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run


@pytest.fixture
def smelt(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Smelt:
    """Return a function that runs the command line in an empty folder."""
    (tmp_path / "cwd").mkdir()
    return runner(tmp_path / "cwd", monkeypatch, capfd)

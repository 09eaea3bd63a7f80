"""Run the commands of README.md's tour, and write their output below each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from bench.shared_folder import ROOT

_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
_EXAMPLES = "examples/digits"
_SECONDS = 300
"""Time limit of a command."""


def main() -> None:
    """Run the commands of README.md's tour, and write their output below each."""
    page = ROOT / "README.md"
    page.write_text(toured(page.read_text(encoding="utf-8")), encoding="utf-8")
    Console().print("wrote README.md")


def toured(page: str) -> str:
    """Run the commands of a page's first console block, and return the page with their outputs.

    The commands run in a copy of the examples.

    Raises:
        ValueError: The page has no such block.
        subprocess.SubprocessError: A command failed or took too long.
    """
    block = _BLOCK.search(page)
    if block is None:
        raise ValueError("the page has no console block")
    commands = [line[2:] for line in block[1].splitlines() if line.startswith("$ ")]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / _EXAMPLES, Path(folder, _EXAMPLES))
        text = "".join(_said(command, Path(folder)) for command in commands)
    return page[: block.start(1)] + text + page[block.end(1) :]


def _said(command: str, folder: Path) -> str:
    """Return the command and its output; `cd` is not run: all run in the folder of examples."""
    if command.endswith(f"cd {_EXAMPLES}"):
        return f"$ {command}\n"
    done = subprocess.run(
        ["bash", "-c", command],
        check=True,
        capture_output=True,
        cwd=folder / _EXAMPLES,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        text=True,
        timeout=_SECONDS,
    )
    lines = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
    return f"$ {command}\n{lines}"

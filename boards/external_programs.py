"""External programs: find them, run them with a timeout, and end them with their children."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.errors import ToolError
from smelt.terminal import plain

_HINTS = {
    "make": "apt-get install make",
    "cc": "apt-get install gcc",
    "gcc": "apt-get install gcc",
    "arm-none-eabi-gcc": "apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "qemu-system-arm": "apt-get install qemu-system-arm",
    "qemu-system-riscv32": "apt-get install qemu-system-misc",
    "riscv64-unknown-elf-gcc": (
        "apt-get install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"
    ),
}
_NEW_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""Windows: flag that makes a process the root of a group, as sessions do on Unix."""


@dataclass(frozen=True)
class Ran:
    """Exit status of a program, and its output without terminal control characters."""

    status: int
    output: str
    errors: str


def find_tool(name: str) -> str:
    """Return the path of an external program.

    Raises:
        ToolError: it is not installed; the message says how to install it.
    """
    path = shutil.which(name)
    if path is None:
        hint = f": {_HINTS[name]}" if name in _HINTS else ""
        raise ToolError(f"'{name}' is not installed, or not on PATH{hint}")
    return path


def start_tool(
    command: Sequence[str],
    *,
    what: str | None = None,
    stdin: int = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a program in its own session, so that `end_with_children` can end its children.

    Args:
        command: program and arguments.
        what: name in messages; None uses the program's name.
        stdin: as for `subprocess.Popen`.
        stderr: as for `subprocess.Popen`; standard output is a pipe.
        folder: working directory.
        environment: all environment variables; None inherits them.

    Raises:
        ToolError: the program cannot be executed.
    """
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,
            creationflags=_NEW_GROUP,
        )
    except OSError as error:
        raise ToolError(f"{what or command[0]} cannot be executed: {error.strerror}") from error


def run_tool(
    command: Sequence[str],
    *,
    what: str | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 900,
) -> Ran:
    """Run a program to its end, without input.

    Args:
        command: program and arguments.
        what: name in messages; None uses the program's name.
        folder: working directory.
        environment: all environment variables; None inherits them.
        timeout_s: timeout in seconds, after which the program is killed.

    Raises:
        ToolError: the program cannot be executed, or took too long.
    """
    what = what or Path(command[0]).name
    process = start_tool(command, folder=folder, environment=environment)
    with process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            end_with_children(process)
            raise ToolError(f"{what} took more than {timeout_s:g} s") from error
        except BaseException:  # Ctrl-C reaches only this process, not the program's session
            end_with_children(process)
            raise
    return Ran(process.returncode, plain(output), plain(errors))


def end_with_children(process: subprocess.Popen[Any]) -> None:
    """Kill a program that was started by `start_tool`, and all its children."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows
        with suppress(OSError):
            command = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
            subprocess.run(command, capture_output=True, check=False)
        process.kill()
    process.wait()

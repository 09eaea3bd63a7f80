"""External programs: found, run with a limit of time, and ended with all that they started."""

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
"""What Windows has in place of sessions."""


@dataclass(frozen=True)
class Ran:
    """How a program ended, and what it wrote, without what a terminal would obey."""

    status: int
    output: str
    errors: str


def find_tool(name: str) -> str:
    """Path of an external program.

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
    """Start a program in a session of its own, so that `end_with_children` ends what it starts.

    Args:
        command: program and arguments.
        what: what messages call it; its name where None.
        stdin: where it reads from, as for `subprocess.Popen`.
        stderr: where its errors go, likewise; its standard output is a pipe.
        folder: where it runs.
        environment: all of its variables; ours where None.

    Raises:
        ToolError: it cannot be executed.
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
        what: what messages call it; its name where None.
        folder: where it runs.
        environment: all of its variables; ours where None.
        timeout_s: seconds after which it is ended.

    Raises:
        ToolError: it cannot be executed, or took too long.
    """
    what = what or Path(command[0]).name
    process = start_tool(command, folder=folder, environment=environment)
    with process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            end_with_children(process)
            raise ToolError(f"{what} took more than {timeout_s:g} s") from error
        except BaseException:  # Ctrl-C, which only we get
            end_with_children(process)
            raise
    return Ran(process.returncode, plain(output), plain(errors))


def end_with_children(process: subprocess.Popen[Any]) -> None:
    """End a program that was started as a session of its own, with all that it has started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows, a part of which this is
        with suppress(OSError):
            command = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
            subprocess.run(command, capture_output=True, check=False)
        process.kill()
    process.wait()

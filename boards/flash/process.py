"""Running a program that flashes: shown while it speaks, stopped when it takes too long."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from smelt.errors import ToolError

_LINES_SHOWN = 15
_LAST_WORDS_S = 5
"""How long what it wrote may take to be read once it has ended."""
_NEW_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""What Windows has in place of sessions."""


def execute(
    command: Sequence[str],
    timeout_s: float,
    say: Callable[[str], None],
    refusals: Sequence[str] = (),
) -> None:
    """Run `command` to its end.

    Args:
        command: program and arguments.
        timeout_s: seconds after which it, and everything that it started, is killed.
        say: called with every line that it writes.
        refusals: texts that tell of a failure whatever the exit status is.

    Raises:
        ToolError: it cannot be executed, failed, or took too long; with its last lines.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            creationflags=_NEW_GROUP,
        )
    except OSError as error:
        raise ToolError(f"{command[0]} cannot be executed: {error.strerror}") from error
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=_LINES_SHOWN)
    refused: list[str] = []
    reader = threading.Thread(
        target=_read, args=(process.stdout, say, last, refused, refusals), daemon=True
    )
    reader.start()
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        _kill(process)
        reader.join(_LAST_WORDS_S)
        raise _failure(command, f"took more than {timeout_s:g} s", last) from error
    except BaseException:
        _kill(process)
        raise
    reader.join(_LAST_WORDS_S)
    if status < 0:
        raise _failure(command, f"was ended by signal {-status}", last)
    if status != 0:
        raise _failure(command, f"failed with exit status {status}", last)
    if refused:
        raise _failure(command, f"failed: it says '{refused[0]}'", last)


def _read(
    stream: IO[str],
    say: Callable[[str], None],
    last: deque[str],
    refused: list[str],
    refusals: Sequence[str],
) -> None:
    with stream:
        for line in stream:
            text = line.rstrip()
            if text:
                say(text)
                last.append(text)
                refused += [text.strip() for refusal in refusals if refusal in text]


def _kill(process: subprocess.Popen[str]) -> None:
    """End a program with all that it has started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows, a part of which this is
        with suppress(OSError):
            command = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
            subprocess.run(command, capture_output=True, check=False)
        process.kill()
    process.wait()


def _failure(command: Sequence[str], what: str, last: Sequence[str]) -> ToolError:
    shown = "".join(f"\n  {line}" for line in last) or " It said nothing."
    return ToolError(f"{shlex.join(command)} {what}.{shown}")

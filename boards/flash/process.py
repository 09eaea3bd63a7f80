"""Running a program that flashes: shown while it speaks, stopped when it takes too long."""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from smelt.boards.external_programs import end_with_children, start_tool
from smelt.boards.simulation_timeout import Pace
from smelt.errors import ToolError
from smelt.terminal import plain

_LINES_SHOWN = 15
_LONGEST = 4096
"""Characters of a line; a longer one is several."""
_LAST_WORDS_S = 5
"""How long what it wrote may take to be read once it has ended."""
_LOOK_S = 0.1
"""How often one looks whether a program that waits for another was answered."""


@dataclass(frozen=True)
class Asked:
    """Whom a program waits for, where it would do so for longer than a user.

    Attributes:
        line: how the line begins that the program writes before it waits.
        whom: for messages.
        limit_s: seconds after that line in which it must write another one.
        pace: how the time of a simulated board passes, where that is asked.
    """

    line: str
    whom: str
    limit_s: float
    pace: Pace | None = None


def execute(
    command: Sequence[str],
    timeout_s: float,
    say: Callable[[str], None],
    refusals: Sequence[str] = (),
    asked: Asked | None = None,
) -> None:
    """Run `command` to its end.

    Args:
        command: program and arguments.
        timeout_s: seconds after which it, and everything that it started, is killed.
        say: called with every line that it writes.
        refusals: texts that tell of a failure whatever the exit status is.
        asked: who must answer it sooner than that.

    Raises:
        ToolError: it cannot be executed, failed, or took too long; with its last lines.
    """
    process = start_tool(command, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=_LINES_SHOWN)
    refused: list[str] = []
    reader = threading.Thread(
        target=_read, args=(process.stdout, say, last, refused, refusals), daemon=True
    )
    reader.start()
    try:
        problem = _wait(process, timeout_s, last, asked)
    except BaseException:
        end_with_children(process)
        raise
    if problem is not None:
        end_with_children(process)
        reader.join(_LAST_WORDS_S)
        raise _failure(command, problem, last)
    reader.join(_LAST_WORDS_S)
    status = process.returncode
    if status < 0:
        raise _failure(command, f"was ended by signal {-status}", last)
    if status != 0:
        raise _failure(command, f"failed with exit status {status}", last)
    if refused:
        raise _failure(command, f"failed: it says '{refused[0]}'", last)


def _wait(
    process: subprocess.Popen[str], timeout_s: float, last: Sequence[str], asked: Asked | None
) -> str | None:
    """Wait for a program's end; where it must not be waited for any longer, why."""
    deadline = time.monotonic() + timeout_s
    looked, silent_s = time.monotonic(), 0.0
    while (rest := deadline - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            process.wait(rest if asked is None else min(rest, _LOOK_S))
            return None
        if asked is None:
            continue
        waited_s = time.monotonic() - looked
        looked += waited_s
        counts_s = waited_s if asked.pace is None else asked.pace.part_of(waited_s)
        silent_s = silent_s + counts_s if last and last[-1].startswith(asked.line) else 0.0
        if silent_s > asked.limit_s:
            return f"was ended: {asked.whom} has not answered for {asked.limit_s:g} s"
    return f"took more than {timeout_s:g} s"


def _read(
    stream: IO[str],
    say: Callable[[str], None],
    last: deque[str],
    refused: list[str],
    refusals: Sequence[str],
) -> None:
    with stream:
        while line := stream.readline(_LONGEST):
            text = plain(line.rstrip())
            if text:
                say(text)
                last.append(text)
                refused += [text.strip() for refusal in refusals if refusal in text]


def _failure(command: Sequence[str], what: str, last: Sequence[str]) -> ToolError:
    shown = "".join(f"\n  {line}" for line in last) or " It said nothing."
    return ToolError(f"{shlex.join(command)} {what}.{shown}")

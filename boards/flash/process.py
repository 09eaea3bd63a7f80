"""Runs a flashing program, shows its output, and stops it after a timeout."""

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
"""Maximum number of characters of a line; longer lines are split."""
_LAST_WORDS_S = 5
"""Seconds to read the remaining output after the program has ended."""
_LOOK_S = 0.1
"""Interval in seconds for checking whether a waiting program got its response."""


@dataclass(frozen=True)
class AwaitedPeer:
    """A peer that a program waits for, when the program's own timeout is too long for a user.

    Attributes:
        line: start of the line that the program writes before it waits.
        whom: name of the peer in messages.
        limit_s: seconds after that line in which the program must write another one.
        pace: rate of time of the simulated board that is the peer, or None.
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
    asked: AwaitedPeer | None = None,
) -> None:
    """Run `command` to its end.

    Args:
        command: program and arguments.
        timeout_s: seconds after which the program and its children are killed.
        say: called with each line that it writes.
        refusals: texts in its output that mean failure, whatever the exit status.
        asked: peer that must respond sooner than `timeout_s`.

    Raises:
        ToolError: it cannot be executed, failed, or took too long; with its last lines of output.
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
        raise _failure(command, f"failed with the message '{refused[0]}'", last)


def _wait(
    process: subprocess.Popen[str], timeout_s: float, last: Sequence[str], asked: AwaitedPeer | None
) -> str | None:
    """Wait for a program's end. Return None, or the reason to stop waiting."""
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
        counts_s = waited_s if asked.pace is None else asked.pace.counted_seconds(waited_s)
        silent_s = silent_s + counts_s if last and last[-1].startswith(asked.line) else 0.0
        if silent_s > asked.limit_s:
            return f"was ended: {asked.whom} has not responded for {asked.limit_s:g} s"
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
    shown = "".join(f"\n  {line}" for line in last) or " It wrote no output."
    return ToolError(f"{shlex.join(command)} {what}.{shown}")

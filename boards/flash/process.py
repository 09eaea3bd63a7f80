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
_LONGEST_LINE = 4096
"""Maximum number of characters of a line; longer lines are split."""
_DRAIN_S = 5
"""Seconds for reading the remaining output after the program has ended."""
_POLL_S = 0.1
"""Seconds between two checks whether a peer that the program waits for has responded."""


@dataclass(frozen=True)
class AwaitedPeer:
    """A peer that a program waits for, when the program's own timeout is too long for a user.

    Attributes:
        line: start of the line that the program writes before it waits.
        name: name of the peer in messages.
        limit_s: seconds after that line in which the program must write another one.
        pace: how fast time passes on the simulated board that is the peer, or None.
    """

    line: str
    name: str
    limit_s: float
    pace: Pace | None = None


def execute(
    command: Sequence[str],
    timeout_s: float,
    say: Callable[[str], None],
    failure_texts: Sequence[str] = (),
    peer: AwaitedPeer | None = None,
) -> None:
    """Run `command` to its end.

    Args:
        command: program and arguments.
        timeout_s: seconds after which the program and its children are killed.
        say: called with each line that it writes.
        failure_texts: texts in its output that mean failure, whatever the exit status.
        peer: peer that must respond within its own limit, which is shorter than `timeout_s`; None
            if the program waits for no peer.

    Raises:
        ToolError: it cannot be executed, failed, or took too long; with its last lines of output.
    """
    process = start_tool(command, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=_LINES_SHOWN)
    failures: list[str] = []
    reader = threading.Thread(
        target=_read, args=(process.stdout, say, last, failures, failure_texts), daemon=True
    )
    reader.start()
    try:
        problem = _wait(process, timeout_s, last, peer)
    except BaseException:
        end_with_children(process)
        raise
    if problem is not None:
        end_with_children(process)
        reader.join(_DRAIN_S)
        raise _failure(command, problem, last)
    reader.join(_DRAIN_S)
    status = process.returncode
    if status < 0:
        raise _failure(command, f"was ended by signal {-status}", last)
    if status != 0:
        raise _failure(command, f"failed with exit status {status}", last)
    if failures:
        raise _failure(command, f"failed with the message '{failures[0]}'", last)


def _wait(
    process: subprocess.Popen[str], timeout_s: float, last: Sequence[str], peer: AwaitedPeer | None
) -> str | None:
    """Wait for a program's end. Return None, or the reason to stop waiting."""
    deadline = time.monotonic() + timeout_s
    polled, silent_s = time.monotonic(), 0.0
    while (left_s := deadline - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            process.wait(left_s if peer is None else min(left_s, _POLL_S))
            return None
        if peer is None:
            continue
        waited_s = time.monotonic() - polled
        polled += waited_s
        counted_s = waited_s if peer.pace is None else peer.pace.counted_seconds(waited_s)
        silent_s = silent_s + counted_s if last and last[-1].startswith(peer.line) else 0.0
        if silent_s > peer.limit_s:
            return f"was ended: {peer.name} has not responded for {peer.limit_s:g} s"
    return f"took more than {timeout_s:g} s"


def _read(
    stream: IO[str],
    say: Callable[[str], None],
    last: deque[str],
    failures: list[str],
    failure_texts: Sequence[str],
) -> None:
    with stream:
        while line := stream.readline(_LONGEST_LINE):
            text = plain(line.rstrip())
            if text:
                say(text)
                last.append(text)
                failures += [text.strip() for sign in failure_texts if sign in text]


def _failure(command: Sequence[str], what: str, last: Sequence[str]) -> ToolError:
    shown = "".join(f"\n  {line}" for line in last) or " It wrote no output."
    return ToolError(f"{shlex.join(command)} {what}.{shown}")

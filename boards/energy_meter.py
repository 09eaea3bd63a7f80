"""Energy of inferences, measured by an external program."""

from __future__ import annotations

import math
import queue
import shlex
import subprocess
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from smelt.boards.external_programs import end_with_children, start_tool
from smelt.errors import ToolError
from smelt.terminal import plain

_END_S = 5
"""Seconds that the program may run after its input is closed."""
_LOOK_S = 0.1
_LINES, _LONGEST = 16, 1000
"""Number of output lines to keep, and the maximum number of characters of a line."""
_SHOWN = 100


class Meter:
    """A running program that measures energy; use it as a context manager.

    The program reads the line `start` just before each inference, and `stop` just after it. It
    replies to `stop` with one line on its standard output: the energy in joules. That includes the
    energy of the communication between the two lines. To measure the inference alone, the program
    can watch a pin that `smelt_before_inference` sets and `smelt_after_inference` clears.

    The program must write nothing else to its standard output. If it fails, the last lines of its
    standard error are shown.

    Attributes:
        joules: energy of all inferences so far.
    """

    def __init__(self, command: str, timeout_s: float = 30) -> None:
        """Start the program.

        Args:
            command: command line with shell quoting; it is not run by a shell.
            timeout_s: timeout of a reply in seconds.

        Raises:
            ToolError: the program cannot be executed.
        """
        self.joules = 0.0
        self._command = command
        self._timeout_s = timeout_s
        # A bounded queue: a program that writes endlessly is blocked when the queue is full.
        self._answers: queue.Queue[str] = queue.Queue(_LINES)
        self._ended = threading.Event()
        self._errors: deque[str] = deque(maxlen=_LINES)
        what = f"the meter '{command}'"
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ToolError(f"{what} cannot be executed: {error}") from error
        if not words:
            raise ToolError(f"{what} cannot be executed: the command is empty")
        self._process = start_tool(words, what=what, stdin=subprocess.PIPE)
        # Windows cannot wait for a pipe with a timeout, so threads read the pipes.
        readers = (self._read_answers, self._read_errors)
        self._readers = [threading.Thread(target=reader, daemon=True) for reader in readers]
        for reader in self._readers:
            reader.start()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        line = " "
        while line:
            line = self._process.stdout.readline(_LONGEST)
            while not self._ended.is_set():
                with suppress(queue.Full):
                    self._answers.put(line, timeout=_LOOK_S)
                    break
            else:
                return

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while line := self._process.stderr.readline(_LONGEST):
            self._errors.append(_shown(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # the program may have ended without reading all of its input
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if error is not None else _END_S)
        self._ended.set()
        end_with_children(self._process)
        for reader in self._readers:
            reader.join(_END_S)

    def start(self) -> None:
        """Tell the program that an inference begins."""
        self._send("start")

    def stop(self) -> None:
        """Tell the program that the inference ended, and add its energy.

        Raises:
            ToolError: the reply is not a number, or there is none within the timeout.
        """
        self._send("stop")
        try:
            answer = self._answers.get(timeout=self._timeout_s)
        except queue.Empty:
            raise self._failure(
                f"has not replied to `stop` for {self._timeout_s:g} s: it must write a line with "
                "the joules, and flush its output"
            ) from None
        try:
            joules = float(answer)
        except ValueError:
            joules = math.nan
        if not math.isfinite(joules):
            raise self._failure(f"replied '{_shown(answer)}' to `stop`, not a number of joules")
        self.joules += joules

    def _send(self, word: str) -> None:
        """Send a line. Raise a `ToolError` if the program has ended or sent an unexpected line."""
        assert self._process.stdin is not None
        with suppress(queue.Empty):
            if line := self._answers.get_nowait():
                raise self._failure(
                    f"wrote '{_shown(line)}' unexpectedly: it may write only one line with joules "
                    "after each `stop`; use standard error for anything else"
                )
            self._answers.put(line)  # end of file: the write below reports it with its cause
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failure(f"has ended: {error}") from error

    def _failure(self, what: str) -> ToolError:
        said = "".join(f"\n  {line}" for line in tuple(self._errors) if line)
        return ToolError(f"the meter '{self._command}' {what}{said}")


def _shown(line: str) -> str:
    text = plain(line.strip())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@contextmanager
def metered(meter: Meter | None) -> Generator[None]:
    """Measure the energy of the context's body, if there is a meter."""
    if meter is None:
        yield
        return
    meter.start()
    yield
    meter.stop()

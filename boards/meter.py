"""The energy of inferences, by a program that speaks to whatever measures it."""

from __future__ import annotations

import math
import queue
import shlex
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from smelt.errors import ToolError

_END_S = 5
"""That the program may go on for once its input is closed."""


class Meter:
    """A running program that measures energy; use it as a context manager.

    Its standard input gets the line `start` just before every inference and `stop` just after it;
    to `stop` it answers with a line on its standard output, the energy in joules. What comes over
    the wire between the two is part of that; a program that wants the inference alone watches the
    pin that the firmware's `smelt_mark_start` and `smelt_mark_stop` raise and lower.

    Attributes:
        joules: of all inferences so far.
    """

    def __init__(self, command: str, timeout_s: float = 30) -> None:
        """Start the program.

        Args:
            command: as for a shell, but without one.
            timeout_s: seconds that an answer may take.

        Raises:
            ToolError: it cannot be executed.
        """
        self.joules = 0.0
        self._command = command
        self._timeout_s = timeout_s
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        try:
            self._process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except (OSError, ValueError, IndexError) as error:
            raise ToolError(f"the meter '{command}' cannot be executed: {error}") from error
        # Not every system can wait for a pipe with a time limit; a thread can wait for it.
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        line = " "
        while line:
            line = self._process.stdout.readline()
            self._answers.put(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it may have ended before it read all of its input
            self._process.stdin.close()
        try:
            self._process.wait(0 if isinstance(error, ToolError) else _END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(_END_S)

    def start(self) -> None:
        """Say that an inference begins."""
        self._say("start")

    def stop(self) -> None:
        """Say that it is over, and add what it took.

        Raises:
            ToolError: the answer is no number, or none came in time.
        """
        self._say("stop")
        try:
            answer = self._answers.get(timeout=self._timeout_s)
        except queue.Empty:
            raise ToolError(
                f"the meter '{self._command}' has not answered to stop for {self._timeout_s:g} s: "
                "it must say joules in a line, and flush its output"
            ) from None
        try:
            joules = float(answer)
        except ValueError:
            joules = math.nan
        if not math.isfinite(joules):
            raise ToolError(
                f"the meter '{self._command}' answered '{answer.strip()}' to stop, not a number of "
                "joules"
            )
        self.joules += joules

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ToolError(f"the meter '{self._command}' has ended: {error}") from error


@contextmanager
def metered(meter: Meter | None) -> Generator[None]:
    """What happens inside is measured, if there is a meter."""
    if meter is None:
        yield
        return
    meter.start()
    yield
    meter.stop()

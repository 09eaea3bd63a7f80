"""The energy of inferences, by a program that speaks to whatever measures it."""

from __future__ import annotations

import math
import shlex
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from smelt.errors import ToolError


class Meter:
    """A running program that measures energy; use it as a context manager.

    Its standard input gets the line `start` just before every inference and `stop` just after it;
    to `stop` it answers with a line on its standard output, the energy in joules. What comes over
    the wire between the two is part of that; a program that wants the inference alone watches the
    pin that the firmware's `smelt_mark_start` and `smelt_mark_stop` raise and lower.

    Attributes:
        joules: of all inferences so far.
    """

    def __init__(self, command: str) -> None:
        """Start the program.

        Args:
            command: as for a shell, but without one.

        Raises:
            ToolError: it cannot be executed.
        """
        self.joules = 0.0
        self._command = command
        try:
            self._process = subprocess.Popen(
                shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except (OSError, ValueError, IndexError) as error:
            raise ToolError(f"the meter '{command}' cannot be executed: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # it may have ended before it read all of its input
            self._process.communicate()

    def start(self) -> None:
        """Say that an inference begins."""
        self._say("start")

    def stop(self) -> None:
        """Say that it is over, and add what it took; `ToolError` unless that is a number."""
        self._say("stop")
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
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

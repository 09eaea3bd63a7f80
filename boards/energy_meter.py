"""The energy of inferences, by a program that speaks to whatever measures it."""

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
"""That the program may go on for once its input is closed."""
_LOOK_S = 0.1
_LINES, _LONGEST = 16, 1000
"""That are kept of what the program writes, and characters of a line."""
_SHOWN = 100


class Meter:
    """A running program that measures energy; use it as a context manager.

    Its standard input gets the line `start` just before every inference and `stop` just after it;
    to `stop` it answers with a line on its standard output, the energy in joules. What comes over
    the wire between the two is part of that; a program that wants the inference alone watches the
    pin that the firmware's `smelt_mark_start` and `smelt_mark_stop` raise and lower.

    Nothing else may come on its standard output; what it writes to its standard error is read, and
    its end shown where it fails.

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
        # Full, it stops who reads for it, and so at last the program that writes without end.
        self._answers: queue.Queue[str] = queue.Queue(_LINES)
        self._ended = threading.Event()
        self._errors: deque[str] = deque(maxlen=_LINES)
        what = f"the meter '{command}'"
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ToolError(f"{what} cannot be executed: {error}") from error
        if not words:
            raise ToolError(f"{what} cannot be executed: it names no program")
        self._process = start_tool(words, what=what, stdin=subprocess.PIPE)
        # Not every system can wait for a pipe with a time limit; a thread can wait for it.
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
        with suppress(OSError):  # it may have ended before it read all of its input
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if error is not None else _END_S)
        self._ended.set()
        end_with_children(self._process)
        for reader in self._readers:
            reader.join(_END_S)

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
            raise self._failed(
                f"has not answered to stop for {self._timeout_s:g} s: it must say joules in a "
                "line, and flush its output"
            ) from None
        try:
            joules = float(answer)
        except ValueError:
            joules = math.nan
        if not math.isfinite(joules):
            raise self._failed(f"answered '{_shown(answer)}' to stop, not a number of joules")
        self.joules += joules

    def _say(self, word: str) -> None:
        """Send a line; `ToolError` where the program has ended, or said what it was not asked."""
        assert self._process.stdin is not None
        with suppress(queue.Empty):
            if line := self._answers.get_nowait():
                raise self._failed(
                    f"wrote '{_shown(line)}' without being asked: it may answer each stop with one "
                    "line, joules, and write whatever else to its standard error"
                )
            self._answers.put(line)  # it has ended, as its standard input says better
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failed(f"has ended: {error}") from error

    def _failed(self, what: str) -> ToolError:
        said = "".join(f"\n  {line}" for line in tuple(self._errors) if line)
        return ToolError(f"the meter '{self._command}' {what}{said}")


def _shown(line: str) -> str:
    text = plain(line.strip())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@contextmanager
def metered(meter: Meter | None) -> Generator[None]:
    """What happens inside is measured, if there is a meter."""
    if meter is None:
        yield
        return
    meter.start()
    yield
    meter.stop()

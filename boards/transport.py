"""A line to a device that may lose, double or spoil bytes, in both directions.

Text goes out in commands, and comes back in lines, of which those with brackets end with a CRC of
themselves; what went wrong is said again. What is said on the line is none of its business: see
`smelt.boards.wire`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from zlib import crc32

from smelt.boards.simulation_timeout import Pace
from smelt.boards.stream import Stream
from smelt.errors import DeviceError

T = TypeVar("T")

_OUTSIDE = (
    ", outside of any inference: its code may be damaged, or another build; build and flash it "
    "again"
)
RESTARTED = (
    "the device started anew in the middle: it was reset, lost its power, or a watchdog bit; "
    "what was loaded, and the network's state, is gone"
)

_TRIES = 20
_SURPLUS = b"\n" * 8
"""Follows bytes: where some were lost, it ends the device's wait for them; else it is ignored."""
_QUIET_S = 0.2
_LONGEST_QUIET_S = 2.0
_PATIENCE_S = 0.25
"""Of silence, after which a byte is sent that ends what may be half a command. Every time, it is
twice as long."""
_SHORTEST_S, _LOOK_S = 0.01, 0.25
"""Of a wait for a simulated device, before one looks whether it was let compute."""
_LONGEST = 1 << 16
"""Bytes of a line, and of what is waited out: who sends more is no device of ours."""
_BITS = 10
"""Of a byte, with those that begin and end it."""
_UNASKED = "e-[Unknown command: ]"
"""The answer to such a byte where no command was cut."""


class Refused(DeviceError):
    """The device answered with an error line."""


class Lost(DeviceError):
    """Bytes were lost."""


class Silent(Lost):
    """Nothing came for so long that the device must be dead."""


class Line:
    """Commands to a device, and its answers.

    Attributes:
        stream: the connection.
        timeout_s: seconds of silence after which the device is taken for dead.
        bytes_per_s: that the line carries; streams may take data faster.
        retries: how often something had to be said again so far.
        introduced: whether a greeting means that the device started anew.
        owed: how many bytes the device may be waiting for, should something go wrong now.
    """

    def __init__(
        self, stream: Stream, timeout_s: float, baud: int, pace: Pace | None = None
    ) -> None:
        """Speak over `stream`.

        Args:
            stream: stays the caller's to close.
            timeout_s: see above.
            baud: of the slowest part of the line.
            pace: by which the time of a simulated device passes; None: by the clock on the wall.
        """
        self.stream = stream
        self._pace = pace
        self._excused_s = 0.0
        self.timeout_s = timeout_s
        self.bytes_per_s = baud / _BITS
        self.retries = 0
        self.introduced = False
        self.owed = 0
        self._marks = 0
        self._round_trip_s = math.inf
        self._quiet_s = _QUIET_S
        self._unasked = 0
        self._buffer = bytearray()

    def now(self) -> float:
        """Seconds of the device's time."""
        return time.monotonic() - self._excused_s

    def insist(self, attempt: Callable[[], T], failure: str) -> T:
        """What `attempt` returns, in the end; `failure` begins the message where it never does.

        Raises:
            Silent: the device is dead.
            DeviceError: so many attempts have failed.
        """
        problem = ""
        for _ in range(_TRIES):
            try:
                return attempt()
            except Silent:
                raise
            except (Refused, Lost) as error:
                problem = str(error)
                self.retries += 1
                self.settle()
        raise DeviceError(f"{failure}: {problem}")

    def send(self, command: str) -> None:
        """Send a command, given without its `%`."""
        self.stream.send(f"{command}%".encode("ascii"))

    def send_bytes(self, data: bytes) -> None:
        """Send what the device has said that it is ready for."""
        self.stream.send(data + _SURPLUS)

    def expect(self, start: str, timeout_s: float | None = None) -> str:
        """The rest of the next line, which must begin with `start`; see `answer`."""
        return self.answer((start,), timeout_s)[1]

    def echo(self, start: str, *numbers: int) -> None:
        """The next line, which must repeat the numbers of the command."""
        words(self.expect(start), numbers, 0)

    def answer(
        self, starts: Sequence[str], timeout_s: float | None = None, *, computing: bool = False
    ) -> tuple[str, str]:
        """The one of `starts` that the next line begins with, and the rest.

        After a bracket the line's CRC must follow, without which the rest is returned; where there
        is no bracket, nothing must follow.

        Raises:
            Refused: it is an error line, whose `m-ready` `settle` reads.
            Lost: it begins with none of them, or its CRC is wrong.
        """
        line = self.read_line(timeout_s, computing=computing)
        for start in starts:
            if line == start or (line.startswith(start) and start.endswith("[")):
                return start, checked(line, start) if start.endswith("[") else ""
        if line.startswith("e-["):
            # It may answer something earlier: the device may still come to wait for what is owed.
            raise Refused(line.removeprefix("e-[").removesuffix("]"))
        raise Lost(f"'{line}' came instead of '{starts[0]}'")

    def read_line(self, timeout_s: float | None = None, *, computing: bool = False) -> str:
        """The next line that is not empty; `computing` devices are left alone.

        Raises:
            Silent: none came in `timeout_s` seconds (None: the line's own).
            DeviceError: the device faulted, or started anew.
        """
        deadline = self.now() + (self.timeout_s if timeout_s is None else timeout_s)
        line = self._next_line(deadline, computing=computing)
        while self._unasked and line == _UNASKED:
            self._unasked -= 1
            if self._next_line(deadline, computing=computing) != "m-ready":
                raise Lost("the end of an answer is lost")
            line = self._next_line(deadline, computing=computing)
        if line.startswith("e-[fault"):
            fault = line.removeprefix("e-[").removesuffix("]")
            raise DeviceError(f"the device faulted: {fault}{'' if computing else _OUTSIDE}")
        if line == "m-init-done" and self.introduced:
            raise DeviceError(RESTARTED)
        return line

    def _next_line(self, deadline: float, *, computing: bool) -> str:
        line = ""
        while not line:
            while (end := self._buffer.find(b"\n")) < 0:
                if len(self._buffer) > _LONGEST:
                    self._buffer.clear()
                    raise Lost(f"more than {_LONGEST:,} bytes without the end of a line came")
                self._receive(deadline, computing=computing)
            line = self._buffer[:end].decode("ascii", errors="replace").rstrip("\r")
            del self._buffer[: end + 1]
        return line

    def read(self, size: int) -> bytes:
        """So many bytes.

        Raises:
            Silent: they did not come.
        """
        deadline = self.now() + self.timeout_s
        while len(self._buffer) < size:
            before = len(self._buffer)
            self._receive(deadline)
            if len(self._buffer) > before:
                deadline = self.now() + self.timeout_s
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def settle(self, timeout_s: float | None = None) -> None:
        """After something went wrong: end what may be half a command, and wait for what comes.

        All of it has come when the device has repeated a mark, or, that being lost, when it is
        silent. A device that computes is waited for, so long as `timeout_s` lets.

        Raises:
            DeviceError: the device started anew.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        self._marks += 1
        self._unasked = 0
        mark = f"mark {self._marks}"
        self.stream.send(self._release() + f"%{mark}%".encode("ascii"))
        end = f"e-[Unknown command: {mark}]\r\nm-ready\r\n".encode("ascii")
        self.owed = 0
        start = self.now()
        heard, self._buffer = self._buffer, bytearray()
        wait = max(self._quiet_s, timeout_s)
        while end not in heard and (data := self._hear(wait)):
            heard = (heard + data)[-_LONGEST:]
            wait = self._quiet_s
            if self.now() > start + timeout_s + self._quiet_s:
                break
        if end in heard:
            self._round_trip_s = min(self._round_trip_s, self.now() - start)
        else:  # lost, or still on a long way
            self._quiet_s = min(2 * self._quiet_s, _LONGEST_QUIET_S)
        if b"m-init-done" in heard and self.introduced:
            raise DeviceError(RESTARTED)

    def _receive(self, deadline: float, *, computing: bool = False) -> None:
        """Wait for bytes; a long silence may be half a command's, which a byte ends.

        A device that computes is left alone: the byte would cost it time that is measured.
        """
        longest = 0.0 if self._round_trip_s == math.inf else 1.5 * self._round_trip_s
        patience = max(_PATIENCE_S, longest) + 1.2 * self.owed / self.bytes_per_s
        patience = math.inf if computing else patience
        while (rest := deadline - self.now()) > 0:
            data = self._hear(min(rest, patience))
            if data:
                self._buffer += data
                return
            if rest > patience:
                self.stream.send(self._release() + b"%")
                self._unasked += 1
            patience *= 2
        raise Silent("the device fell silent")

    def _hear(self, seconds: float) -> bytes:
        """What has come, at least a byte; empty after so many seconds of the device's time."""
        if self._pace is None:
            return self.stream.receive(seconds)
        end = self.now() + seconds
        while True:
            begin = time.monotonic()
            data = self.stream.receive(min(max(end - self.now(), _SHORTEST_S), _LOOK_S))
            if data:
                return data
            waited_s = time.monotonic() - begin
            self._excused_s += waited_s - self._pace.part_of(waited_s)
            if self.now() >= end:
                return b""

    def _release(self) -> bytes:
        """What ends the device's wait for bytes; it ignores them where it does not wait."""
        return b"\n" * self.owed + _SURPLUS if self.owed else b""


def checked(line: str, start: str) -> str:
    """What a line says between its start and its CRC.

    Raises:
        Lost: the CRC is wrong.
    """
    text, _, crc = line.rpartition(" ")
    if crc != f"{crc32(text.encode('ascii', errors='replace')):08x}]":
        raise Lost(f"a broken line came from the device: '{line}'")
    return text.removeprefix(start)


def words(answer: str, numbers: Sequence[int], count: int) -> list[str]:
    """The last words of an answer, so many, behind the numbers that it must repeat.

    Raises:
        Lost: it answers something else.
    """
    found = answer.split()
    if found[: len(numbers)] != list(map(str, numbers)) or len(found) != len(numbers) + count:
        raise Lost(f"'{answer}' came, which answers something else")
    return found[len(numbers) :]


def integers(answer: str, count: int) -> list[int]:
    """The words of an answer, so many, which must be numbers.

    Raises:
        Lost: they are not.
    """
    try:
        found = [int(word) for word in answer.split()]
    except ValueError:
        found = []
    if len(found) != count:
        raise Lost(f"a broken line came from the device: '{answer}'")
    return found

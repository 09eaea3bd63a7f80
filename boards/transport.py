"""A line to a device that may lose, duplicate or corrupt bytes, in both directions.

The host sends commands as text, and the device replies with lines. Lines with brackets end with a
CRC. After an error, the host repeats the command. `smelt.boards.wire` defines the commands.
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
    ", outside of an inference: its code may be damaged or from another build; build and flash it "
    "again"
)
RESTARTED = (
    "the device restarted: it was reset, lost power, or its watchdog expired; its inputs and the "
    "network's state are lost"
)

_TRIES = 20
_SURPLUS = b"\n" * 8
"""Sent after data: if bytes were lost, it completes what the device waits for; else ignored."""
_QUIET_S = 0.2
_LONGEST_QUIET_S = 2.0
_PATIENCE_S = 0.25
"""Seconds of silence before a byte is sent that ends a possibly truncated command. The interval
doubles each time."""
_SHORTEST_S, _LOOK_S = 0.01, 0.25
"""Minimum wait for a simulated device in seconds, and the interval for checking its CPU time."""
_LONGEST = 1 << 16
"""Maximum number of bytes in a line and while settling; a Smelt device never sends more."""
_BITS = 10
"""Bits per byte, including start and stop bit."""
_UNASKED = "e-[Unknown command: ]"
"""Reply to such a byte if no command was truncated."""


class Refused(DeviceError):
    """The device replied with an error line."""


class Lost(DeviceError):
    """Bytes were lost or corrupted."""


class Silent(Lost):
    """The device was silent for so long that it is considered dead."""


class Line:
    """Sends commands to a device and receives its replies.

    Attributes:
        stream: the connection.
        timeout_s: seconds of silence after which the device is considered dead.
        bytes_per_s: speed of the line; streams may accept data faster.
        retries: number of repeated attempts so far.
        introduced: whether a greeting now means that the device restarted.
        owed: number of bytes that the device may be waiting for if an error happens now.
    """

    def __init__(
        self, stream: Stream, timeout_s: float, baud: int, pace: Pace | None = None
    ) -> None:
        """Create a line over `stream`.

        Args:
            stream: connection, which the caller closes.
            timeout_s: see the class.
            baud: baud rate of the slowest part of the line.
            pace: rate of time of a simulated device; None uses wall-clock time.
        """
        self.stream = stream
        self._pace = pace
        self._excused_s = 0.0
        self.timeout_s = timeout_s
        self.bytes_per_s = baud / _BITS
        self.retries = 0
        self.introduced = False
        self.owed = 0
        self._probes = 0
        self._round_trip_s = math.inf
        self._quiet_s = _QUIET_S
        self._unasked = 0
        self._buffer = bytearray()

    def now(self) -> float:
        """Return the device's time in seconds."""
        return time.monotonic() - self._excused_s

    def retry(self, attempt: Callable[[], T], failure: str) -> T:
        """Repeat `attempt` until it succeeds, and return its result.

        Raises:
            Silent: the device is dead.
            DeviceError: all attempts failed; the message begins with `failure`.
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
                self.resynchronize()
        raise DeviceError(f"{failure}: {problem}")

    def send(self, command: str) -> None:
        """Send a command, without its terminating `%`."""
        self.stream.send(f"{command}%".encode("ascii"))

    def send_bytes(self, data: bytes) -> None:
        """Send data that the device is waiting for."""
        self.stream.send(data + _SURPLUS)

    def expect(self, start: str, timeout_s: float | None = None) -> str:
        """Return the rest of the next line, which must begin with `start`; see `answer`."""
        return self.answer((start,), timeout_s)[1]

    def echo(self, start: str, *numbers: int) -> None:
        """Check that the next line repeats the numbers of the command."""
        words(self.expect(start), numbers, 0)

    def answer(
        self, starts: Sequence[str], timeout_s: float | None = None, *, computing: bool = False
    ) -> tuple[str, str]:
        """Return the one of `starts` that the next line begins with, and the rest of the line.

        If the start ends with a bracket, the line must end with a CRC, which is not part of the
        rest. Otherwise, the line must equal the start.

        Raises:
            Refused: it is an error line; `settle` reads the `m-ready` after it.
            Lost: it begins with none of them, or its CRC is wrong.
        """
        line = self.read_line(timeout_s, computing=computing)
        for start in starts:
            if line == start or (line.startswith(start) and start.endswith("[")):
                return start, checked(line, start) if start.endswith("[") else ""
        if line.startswith("e-["):
            # It may be the reply to an earlier command, so the device may still wait for `owed`.
            raise Refused(line.removeprefix("e-[").removesuffix("]"))
        raise Lost(f"'{line}' came instead of '{starts[0]}'")

    def read_line(self, timeout_s: float | None = None, *, computing: bool = False) -> str:
        """Return the next non-empty line; nothing is sent to a `computing` device meanwhile.

        Raises:
            Silent: none came within `timeout_s` seconds (None: the line's own timeout).
            DeviceError: the device faulted or restarted.
        """
        deadline = self.now() + (self.timeout_s if timeout_s is None else timeout_s)
        line = self._next_line(deadline, computing=computing)
        while self._unasked and line == _UNASKED:
            self._unasked -= 1
            if self._next_line(deadline, computing=computing) != "m-ready":
                raise Lost("the end of a reply is lost")
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
                    raise Lost(f"more than {_LONGEST:,} bytes came without the end of a line")
                self._receive(deadline, computing=computing)
            line = self._buffer[:end].decode("ascii", errors="replace").rstrip("\r")
            del self._buffer[: end + 1]
        return line

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes.

        Raises:
            Silent: they did not come in time.
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

    def resynchronize(self, timeout_s: float | None = None) -> None:
        """Recover after an error: end a possibly truncated command, and discard what comes.

        The line is settled when the device has replied to a probe, or is silent because the probe
        was lost. A device that computes is waited for, for up to `timeout_s` seconds.

        Raises:
            DeviceError: the device restarted.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        self._probes += 1
        self._unasked = 0
        probe = f"probe {self._probes}"
        self.stream.send(self._release() + f"%{probe}%".encode("ascii"))
        end = f"e-[Unknown command: {probe}]\r\nm-ready\r\n".encode("ascii")
        self.owed = 0
        start = self.now()
        heard, self._buffer = self._buffer, bytearray()
        wait = max(self._quiet_s, timeout_s)
        while end not in heard and (data := self._receive_bytes(wait)):
            heard = (heard + data)[-_LONGEST:]
            wait = self._quiet_s
            if self.now() > start + timeout_s + self._quiet_s:
                break
        if end in heard:
            self._round_trip_s = min(self._round_trip_s, self.now() - start)
        else:  # the probe or its reply was lost, or is delayed
            self._quiet_s = min(2 * self._quiet_s, _LONGEST_QUIET_S)
        if b"m-init-done" in heard and self.introduced:
            raise DeviceError(RESTARTED)

    def _receive(self, deadline: float, *, computing: bool = False) -> None:
        """Wait for bytes; after a long silence, send a byte that ends a truncated command.

        No byte is sent to a device that computes, because it would disturb the measured time.
        """
        longest = 0.0 if self._round_trip_s == math.inf else 1.5 * self._round_trip_s
        patience = max(_PATIENCE_S, longest) + 1.2 * self.owed / self.bytes_per_s
        patience = math.inf if computing else patience
        while (rest := deadline - self.now()) > 0:
            data = self._receive_bytes(min(rest, patience))
            if data:
                self._buffer += data
                return
            if rest > patience:
                self.stream.send(self._release() + b"%")
                self._unasked += 1
            patience *= 2
        raise Silent("the device fell silent")

    def _receive_bytes(self, seconds: float) -> bytes:
        """Return received bytes, or none after `seconds` of the device's time."""
        if self._pace is None:
            return self.stream.receive(seconds)
        end = self.now() + seconds
        while True:
            begin = time.monotonic()
            data = self.stream.receive(min(max(end - self.now(), _SHORTEST_S), _LOOK_S))
            if data:
                return data
            waited_s = time.monotonic() - begin
            self._excused_s += waited_s - self._pace.counted_seconds(waited_s)
            if self.now() >= end:
                return b""

    def _release(self) -> bytes:
        """Return bytes that complete what the device may wait for; else it ignores them."""
        return b"\n" * self.owed + _SURPLUS if self.owed else b""


def checked(line: str, start: str) -> str:
    """Return the text of a line between its start and its CRC.

    Raises:
        Lost: the CRC is wrong.
    """
    text, _, crc = line.rpartition(" ")
    if crc != f"{crc32(text.encode('ascii', errors='replace')):08x}]":
        raise Lost(f"the device sent a corrupted line: '{line}'")
    return text.removeprefix(start)


def words(answer: str, numbers: Sequence[int], count: int) -> list[str]:
    """Return the last `count` words of a reply, after the numbers that it must repeat.

    Raises:
        Lost: it is the reply to another command.
    """
    found = answer.split()
    if found[: len(numbers)] != list(map(str, numbers)) or len(found) != len(numbers) + count:
        raise Lost(f"'{answer}' is the reply to another command")
    return found[len(numbers) :]


def integers(answer: str, count: int) -> list[int]:
    """Return the words of a reply as numbers; there must be `count` of them.

    Raises:
        Lost: they are not numbers, or not as many.
    """
    try:
        found = [int(word) for word in answer.split()]
    except ValueError:
        found = []
    if len(found) != count:
        raise Lost(f"the device sent a corrupted line: '{answer}'")
    return found

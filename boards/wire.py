"""The host's side of the wire: the protocol that `firmware/wire.h` of a project describes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

from smelt.boards.stream import Stream
from smelt.errors import DeviceError

VERSION = 1
"""Of the protocol."""

_TRIES = 4
_BYTES_PER_S = 10_000
"""What the slowest line carries; streams may take data faster than the device does."""
_QUIET_S = 0.3


@dataclass(frozen=True)
class TensorInfo:
    """An input or output, as the device declares it."""

    dtype: str
    bytes: int


@dataclass(frozen=True)
class DeviceInfo:
    """What the firmware says about itself.

    Attributes:
        name, hash: of the network.
        arena_bytes: of the network.
        timer_hz: ticks a second of the timer that times inferences.
        taps: whether the firmware can stream every step's output.
        inputs, outputs: of the network, in order.
    """

    name: str
    hash: str
    arena_bytes: int
    timer_hz: int
    taps: bool
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True)
class Invocation:
    """One inference.

    Attributes:
        ticks: of the device's timer.
        seconds: the same as time, by the device's clock.
        instructions: where instructions can be counted (simulators), to within one tick.
        stack_bytes: deepest use of the stack below the caller; None where it is not known.
    """

    ticks: int
    seconds: float
    instructions: int | None
    stack_bytes: int | None


@dataclass(frozen=True)
class Tap:
    """An output of a step, as it was just after that step."""

    step: int
    data: bytes


class Device:
    """A device that answers; made by `open_device`."""

    def __init__(
        self, stream: Stream, *, instructions_per_second: int | None = None, timeout_s: float = 20
    ) -> None:
        """Speak over `stream`.

        Args:
            stream: the connection; stays the caller's to close.
            instructions_per_second: of a device whose time is a count of instructions.
            timeout_s: seconds of silence after which the device is taken for dead.
        """
        self._stream = stream
        self._buffer = bytearray()
        self._instructions_per_second = instructions_per_second
        self._timeout_s = timeout_s

    @cached_property
    def info(self) -> DeviceInfo:
        """What the firmware says about itself; the first use also waits for the device to start.

        Raises:
            DeviceError: no answer, or one in another version of the protocol.
        """
        fields: dict[str, str] = {}
        tensors: dict[str, list[TensorInfo]] = {"input": [], "output": []}
        for line in self._ask_info():
            key, _, value = line.partition(" ")
            if key in tensors:
                _, dtype, size = value.split()
                tensors[key].append(TensorInfo(dtype, int(size)))
            else:
                fields[key] = value
        try:
            if int(fields["version"]) != VERSION:
                raise DeviceError(
                    f"the firmware speaks version {fields['version']} of the wire protocol, "
                    f"not {VERSION}: build and flash it again"
                )
            return DeviceInfo(
                name=fields["name"],
                hash=fields["hash"],
                arena_bytes=int(fields["arena"]),
                timer_hz=int(fields["timer"]),
                taps=fields["taps"] == "1",
                inputs=tuple(tensors["input"]),
                outputs=tuple(tensors["output"]),
            )
        except (KeyError, ValueError) as error:
            raise DeviceError(f"the device's description of itself is broken: {error}") from error

    def check_hash(self, expected: str) -> None:
        """Make sure that the device runs the network that the caller means.

        Raises:
            DeviceError: it runs another one.
        """
        if self.info.hash != expected:
            raise DeviceError(
                f"the device runs network '{self.info.name}' with hash {self.info.hash}, "
                f"not {expected}: build and flash it again"
            )

    def run(self, inputs: Sequence[bytes]) -> tuple[list[bytes], Invocation]:
        """One inference: load all inputs, invoke, fetch all outputs.

        Raises:
            DeviceError: as the single steps do.
        """
        for index, data in enumerate(inputs):
            self.load(index, data)
        invocation = self.invoke()
        return [self.output(index) for index in range(len(self.info.outputs))], invocation

    def load(self, index: int, data: bytes) -> None:
        """Write input `index`, raw little-endian bytes. Tries again where bytes were lost.

        Raises:
            DeviceError: there is no such input, it has another size, or the line is too bad.
        """
        command = f"smelt load {index} {len(data)} {crc32(data):08x}"
        problem = ""
        for _ in range(_TRIES):
            try:
                self._send(command)
                self._expect("m-load-[")
                self._stream.send(data)
                self._expect("m-load-done", self._timeout_s + len(data) / _BYTES_PER_S)
                self._expect("m-ready")
            except _Refused as refused:
                problem = str(refused)
                if not re.match(r"CRC|Only|Unknown", problem):
                    break
            except _Lost as lost:
                problem = str(lost)
                self._settle()
            else:
                return
        raise DeviceError(f"input {index}, {len(data)} bytes, cannot be loaded: {problem}")

    def invoke(self, timeout_s: float = 600) -> Invocation:
        """One inference; inputs must have been loaded since the one before.

        Args:
            timeout_s: seconds to wait for its end.

        Raises:
            DeviceError: it failed, faulted or did not end in time.
        """
        self._send("smelt invoke")
        result = self._expect("m-invoke-[", timeout_s)
        self._expect("m-ready")
        return self._invocation(result)

    def output(self, index: int) -> bytes:
        """Output `index` of the inference before, raw little-endian bytes.

        Raises:
            DeviceError: there is no such output, or the line is too bad.
        """
        problem = ""
        for _ in range(_TRIES):
            try:
                self._send(f"smelt out {index}")
                _, _, size, crc, network = self._expect("m-raw-[").split()
                data = self._read(int(size))
                self._expect("m-ready")
            except _Refused as refused:
                problem = str(refused)
                if not problem.startswith("Unknown"):
                    break
            except (_Lost, ValueError) as lost:
                problem = str(lost)
                self._settle()
            else:
                self.check_hash(network)
                if f"{crc32(data):08x}" == crc:
                    return data
                problem = "wrong CRC"
        raise DeviceError(f"output {index} cannot be read: {problem}")

    def taps(self, timeout_s: float = 600) -> Iterator[Tap]:
        """One inference, yielding every output of every step as it is produced.

        Args:
            timeout_s: seconds to wait for each.

        Raises:
            DeviceError: the firmware was built without taps, the inference failed, or bytes were
                lost.
        """
        self._send("smelt taps")
        while True:
            kind, rest = self._answer(("m-tap-[", "m-invoke-["), timeout_s)
            if kind == "m-invoke-[":
                self._expect("m-ready")
                self._invocation(rest)
                return
            step, size, crc = rest.split()
            data = self._read(int(size))
            if crc32(data) != int(crc, 16):
                raise DeviceError(f"the output of step {step} came with a wrong CRC")
            yield Tap(int(step), data)

    def set_length(self, index: int, size: int) -> None:
        """Set a dimension's size for the inferences that follow.

        Raises:
            DeviceError: the network has no such dimension, or not of that size.
        """
        self._send(f"smelt length {index} {size}")
        self._expect("m-length-done")
        self._expect("m-ready")

    def reset(self) -> None:
        """Bring the network's context, state included, to where it was at the start.

        Raises:
            DeviceError: the device does not obey.
        """
        self._send("smelt reset")
        self._expect("m-reset-done")
        self._expect("m-ready")

    def command(self, text: str, timeout_s: float = 60) -> list[str]:
        """Any command, without its `%`; the lines of the answer before `m-ready`.

        Raises:
            DeviceError: no `m-ready` in time.
        """
        _ = self.info
        self._send(text)
        lines: list[str] = []
        while (line := self._line(timeout_s)) != "m-ready":
            lines.append(line)
        return lines

    def _ask_info(self) -> list[str]:
        """The contents of the `m-info-[…]` lines, whatever state the line is in."""
        tries = max(1, round(self._timeout_s))
        for _ in range(tries):
            self._send("smelt info")
            lines: list[str] = []
            try:
                while (line := self._line(1.0)) != "m-ready" or not lines:
                    if line.startswith("m-info-["):
                        lines.append(line.removeprefix("m-info-[").removesuffix("]"))
                return lines
            except _Lost:
                self._settle()
        raise DeviceError(f"no answer from the device in {tries} s")

    def _invocation(self, text: str) -> Invocation:
        try:
            _, ticks_text, _, stack, _, status = text.split()
            ticks = int(ticks_text)
        except ValueError as error:
            raise DeviceError(f"a broken line came from the device: '{text}'") from error
        if status != "0":
            raise DeviceError(f"the inference failed with status {status}")
        timer = self.info.timer_hz
        rate = self._instructions_per_second
        return Invocation(
            ticks=ticks,
            seconds=ticks / timer,
            instructions=None if rate is None else round(ticks * rate / timer),
            stack_bytes=int(stack) or None,
        )

    def _send(self, command: str) -> None:
        self._stream.send(f"{command}%".encode("ascii"))

    def _expect(self, start: str, timeout_s: float | None = None) -> str:
        """The rest of the next line, which must begin with `start`, without the bracket."""
        return self._answer((start,), timeout_s)[1]

    def _answer(self, starts: Sequence[str], timeout_s: float | None = None) -> tuple[str, str]:
        line = self._line(self._timeout_s if timeout_s is None else timeout_s)
        for start in starts:
            if line.startswith(start):
                return start, line.removeprefix(start).removesuffix("]")
        if line.startswith("e-["):
            self._finish()
            raise _Refused(line.removeprefix("e-[").removesuffix("]"))
        raise _Lost(f"'{line}' came instead of '{starts[0]}'")

    def _finish(self) -> None:
        """Read the end of an answer; where it is lost, the next command's answer will tell."""
        with suppress(_Lost):
            while self._line(self._timeout_s) != "m-ready":
                pass

    def _line(self, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        while (end := self._buffer.find(b"\n")) < 0:
            self._receive(deadline)
        line = self._buffer[:end].decode("ascii", errors="replace").rstrip("\r")
        del self._buffer[: end + 1]
        if not line:
            return self._line(timeout_s)
        if line.startswith("e-[fault"):
            raise DeviceError(f"the device faulted: {line.removeprefix('e-[').removesuffix(']')}")
        return line

    def _read(self, size: int) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        while len(self._buffer) < size:
            before = len(self._buffer)
            self._receive(deadline)
            if len(self._buffer) > before:
                deadline = time.monotonic() + self._timeout_s
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _receive(self, deadline: float) -> None:
        rest = deadline - time.monotonic()
        data = self._stream.receive(rest) if rest > 0 else b""
        if not data:
            raise _Lost("the device fell silent")
        self._buffer += data

    def _settle(self) -> None:
        """After something went wrong: end what may be half a command, and wait for silence."""
        self._stream.send(b"%")
        while self._stream.receive(_QUIET_S):
            pass
        self._buffer.clear()


class _Refused(DeviceError):
    """The device answered with an error line."""


class _Lost(DeviceError):
    """Bytes were lost, or the device is dead."""

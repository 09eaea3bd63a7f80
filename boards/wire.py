"""The host's side of the wire: the protocol that `firmware/wire.h` of a project describes.

A line may lose, double or spoil bytes in both directions. Data carries checksums, answers repeat
what they answer, and the device counts its inferences; what can be spoiled without being noticed
(texts of numbers) is asked for twice. So every command is repeated until it is known to have been
obeyed once, and what it said is known to be what was meant.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar
from zlib import crc32

from smelt.boards.stream import Stream
from smelt.errors import DeviceError

T = TypeVar("T")

VERSION = 2
"""Of the protocol."""

_TRIES = 10
_BYTES_PER_S = 10_000
"""What the slowest line carries; streams may take data faster than the device does."""
_QUIET_S = 0.3
_FIRST_S = 600.0
_PATIENCE_S = 1.0
"""Of silence, after which a byte is sent that ends what may be half a command. Every time, it is
twice as long."""


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
        taps: whether the firmware can stream every step's output, and time every step.
        count: of the inferences so far.
        inputs, outputs: of the network, in order.
    """

    name: str
    hash: str
    arena_bytes: int
    timer_hz: int
    taps: bool
    count: int
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
    """A device that answers; made by `open_device`.

    Attributes:
        retries: how often something had to be said again so far.
    """

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
        self._count = 0
        self._introduced = False
        self._slowest_s: float | None = None
        self.retries = 0

    @cached_property
    def info(self) -> DeviceInfo:
        """What the firmware says about itself; the first use also waits for the device to start.

        Raises:
            DeviceError: no answer, or one in another version of the protocol.
        """
        info = _read_info(self._ask_info())
        self._count, self._introduced = info.count, True
        return info

    @property
    def simulated(self) -> bool:
        """Whether its time is a count of instructions."""
        return self._instructions_per_second is not None

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
        self.load_all(inputs)
        invocation = self.invoke()
        return [self.output(index) for index in range(len(self.info.outputs))], invocation

    def load_all(self, inputs: Sequence[bytes]) -> None:
        """Write all inputs.

        A command whose index was spoilt may have spoilt another input of that size: what went
        wrong with one is followed by all of them again.

        Raises:
            DeviceError: as of `load`.
        """

        def attempt() -> None:
            before = self.retries
            for index, data in enumerate(inputs):
                self.load(index, data)
            if len(inputs) > 1 and self.retries > before:
                raise _Lost("something is lost every time")

        self._insist(attempt, "the inputs cannot be loaded")

    def load(self, index: int, data: bytes) -> None:
        """Write input `index`, raw little-endian bytes.

        Raises:
            DeviceError: there is no such input, it has another size, or the line is too bad.
        """
        tensor = _element(self.info.inputs, index, "input")
        if tensor.bytes != len(data):
            raise DeviceError(f"input {index} has {tensor.bytes} bytes, not {len(data)}")

        def attempt() -> None:
            self._send(f"smelt load {index} {len(data)} {crc32(data):08x}")
            self._echo("m-load-[", index, len(data))
            self._stream.send(data)
            self._expect("m-load-done", self._timeout_s + len(data) / _BYTES_PER_S)
            self._expect("m-ready")

        self._insist(attempt, f"input {index}, {len(data)} bytes, cannot be loaded")

    def invoke(self, timeout_s: float | None = None) -> Invocation:
        """One inference; inputs must have been loaded since the one before.

        Args:
            timeout_s: seconds to wait for its end; None: ten times as long as the slowest so far,
                ten minutes for the first.

        Raises:
            DeviceError: it failed, faulted, or did not end in time, or the device started anew.
        """
        _ = self.info
        slowest = self._slowest_s
        if timeout_s is None:
            timeout_s = _FIRST_S if slowest is None else self._timeout_s + 10 * slowest
        start = time.monotonic()

        def attempt() -> Mapping[str, int]:
            first = None
            try:
                self._begin("invoke")
                first = self._numbers("m-invoke-[", timeout_s, computing=True)
                self._expect("m-ready")
            except _Silent:
                raise
            except (_Refused, _Lost):  # whether it was begun, the device can tell
                self._settle(timeout_s)
            found = self._agreed(first)
            if found["count"] == self._count:
                raise _Lost("the command was not understood")
            return self._counted(found)

        found = self._insist(attempt, "an inference cannot be begun")
        self._slowest_s = max(slowest or 0.0, time.monotonic() - start)
        return self._invocation(found)

    def output(self, index: int) -> bytes:
        """Output `index` of the inference before, raw little-endian bytes.

        Raises:
            DeviceError: there is no such output, or the line is too bad.
        """
        size = _element(self.info.outputs, index, "output").bytes

        def attempt() -> bytes:
            self._send(f"smelt out {index}")
            answer = self._expect("m-raw-[")
            crc, network = _words(answer, (VERSION, index, size), 2)
            data = self._read(size)
            self._expect("m-ready")
            if f"{crc32(data):08x}" != crc:
                raise _Lost("wrong CRC")
            if network != self.info.hash:
                raise _Lost(f"it is one of network {network}")
            return data

        return self._insist(attempt, f"output {index} cannot be read")

    def taps(self, timeout_s: float = 600) -> Iterator[Tap]:
        """One inference, yielding every output of every step as it is produced.

        Args:
            timeout_s: seconds to wait for each.

        Raises:
            DeviceError: the firmware was built without taps, the inference failed, or bytes were
                lost; nothing is said again, because the inputs may be gone.
        """
        self._require_taps()
        self._begin("taps")
        while True:
            kind, rest = self._answer(("m-tap-[", "m-invoke-["), timeout_s, computing=True)
            if kind == "m-invoke-[":
                self._expect("m-ready")
                self._counted(self._agreed())
                return
            try:
                step, size, crc = rest.split()
                data = self._read(int(size))
            except ValueError as error:
                raise _Lost(f"a broken line came from the device: '{rest}'") from error
            if f"{crc32(data):08x}" != crc:
                raise _Lost(f"the output of step {step} came with a wrong CRC")
            yield Tap(int(step), data)

    def laps(self, timeout_s: float = 600) -> Mapping[int, int]:
        """One inference; ticks of the timer that each step took, by its index.

        Each includes what calling back costs, some ten instructions.

        Args:
            timeout_s: seconds to wait for each.

        Raises:
            DeviceError: as of `taps`.
        """
        self._require_taps()
        self._begin("laps")
        found: Counter[int] = Counter()
        count = 0
        while True:
            kind, rest = self._answer(("m-lap-[", "m-invoke-["), timeout_s, computing=True)
            if kind == "m-invoke-[":
                break
            step, ticks = _integers(rest, 2)
            found[step] += ticks
            count += 1
        said = _integers(self._expect("m-laps-["), 2)
        self._expect("m-ready")
        self._counted(self._agreed())
        if said != [count, found.total()]:
            raise _Lost(f"of {said[0]} times of steps {count} came, or with another sum")
        return found

    def set_lengths(self, sizes: Sequence[int]) -> None:
        """Set the sizes of all dimensions that are known at run time, for what follows.

        Raises:
            DeviceError: the network has no such dimension, or not of that size.
        """
        _ = self.info

        def attempt() -> None:  # a spoilt index may have changed another dimension: all again
            for index, size in enumerate(sizes):
                self._send(f"smelt length {index} {size}")
                self._echo("m-length-[", index, size)
                self._expect("m-ready")

        self._insist(attempt, f"lengths cannot be set to {', '.join(map(str, sizes))}")

    def reset(self) -> None:
        """Bring the network's context, state included, to where it was at the start.

        Raises:
            DeviceError: the device does not obey.
        """
        _ = self.info

        def attempt() -> None:
            self._send("smelt reset")
            self._expect("m-reset-done")
            self._expect("m-ready")

        self._insist(attempt, "the network cannot be reset")

    def command(self, text: str, timeout_s: float = 60) -> list[str]:
        """Any command, without its `%`; the lines of the answer before `m-ready`. Said once.

        Raises:
            DeviceError: no `m-ready` in time.
        """
        _ = self.info
        self._send(text)
        lines: list[str] = []
        while (line := self._line(timeout_s)) != "m-ready":
            lines.append(line)
        return lines

    # What is said more than once

    def _insist(self, attempt: Callable[[], T], failure: str) -> T:
        """What `attempt` returns, in the end; `failure` begins the message where it never does."""
        problem = ""
        for _ in range(_TRIES):
            try:
                return attempt()
            except _Silent:
                raise
            except (_Refused, _Lost) as error:
                problem = str(error)
                self.retries += 1
                self._settle(self._timeout_s)
        raise DeviceError(f"{failure}: {problem}")

    def _ask_info(self) -> list[str]:
        """The contents of the `m-info-[…]` lines, whatever state the line is in.

        They are accepted when they came twice in a row without a difference.
        """
        before: list[str] | None = None
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            self._send("smelt info")
            lines: list[str] = []
            try:
                while (line := self._line(1.0)) != "m-ready" or not lines:
                    if time.monotonic() > deadline:
                        break
                    if line.startswith("m-info-["):
                        lines.append(line.removeprefix("m-info-[").removesuffix("]"))
            except _Lost:
                self._settle(0)
                continue
            if lines and lines == before:
                return lines
            before = lines
        raise DeviceError(
            f"no answer from the device in {self._timeout_s:g} s: is it the right port, is the "
            "firmware flashed, and does it run?"
        )

    def _last(self) -> Mapping[str, int]:
        """What the device says of its last inference; a count of 0 where there was none."""
        self._send("smelt last")
        try:
            found = self._numbers("m-invoke-[", self._timeout_s)
        except _Refused as refused:
            if str(refused) != "Nothing inferred yet":
                raise
            return {"count": 0}
        self._expect("m-ready")
        return found

    def _agreed(self, before: Mapping[str, int] | None = None) -> Mapping[str, int]:
        """The same, as it came twice in a row, `before` counted."""
        for _ in range(2 * _TRIES):
            try:
                found = self._last()
            except _Silent:
                raise
            except (_Refused, _Lost):
                self.retries += 1
                self._settle(self._timeout_s)
            else:
                if found == before:
                    return found
                before = found
        raise DeviceError("what the device says of its last inference is different every time")

    def _counted(self, last: Mapping[str, int]) -> Mapping[str, int]:
        if last["count"] != self._count + 1:
            raise DeviceError(_RESTARTED)
        self._count += 1
        return last

    def _invocation(self, last: Mapping[str, int]) -> Invocation:
        if last["status"] != 0:
            raise DeviceError(f"the inference failed with status {last['status']}")
        timer = self.info.timer_hz
        rate = self._instructions_per_second
        return Invocation(
            ticks=last["ticks"],
            seconds=last["ticks"] / timer,
            instructions=None if rate is None else round(last["ticks"] * rate / timer),
            stack_bytes=last["stack"] or None,
        )

    def _require_taps(self) -> None:
        if not self.info.taps:
            raise DeviceError(
                "the firmware on the device cannot tell of single steps: it is built so with "
                "`make TAPS=1`, or by `smelt deploy --layers`"
            )

    # Lines and bytes

    def _send(self, command: str) -> None:
        self._stream.send(f"{command}%".encode("ascii"))

    def _begin(self, command: str) -> None:
        """Have an inference begin, after which nothing is sent until it is over."""
        self._send(f"smelt {command}")
        self._expect("m-invoke-begin")

    def _echo(self, start: str, *numbers: int) -> None:
        """The next line, which must repeat the numbers of the command."""
        _words(self._expect(start), numbers, 0)

    def _numbers(
        self, start: str, timeout_s: float, *, computing: bool = False
    ) -> Mapping[str, int]:
        """The next line's numbers by the words before them."""
        words = self._answer((start,), timeout_s, computing=computing)[1].split()
        try:
            found = {key: int(value) for key, value in zip(words[::2], words[1::2], strict=True)}
        except ValueError:
            found = {}
        if tuple(found) != ("ticks", "stack", "status", "count"):
            raise _Lost(f"a broken line came from the device: '{' '.join(words)}'")
        return found

    def _expect(self, start: str, timeout_s: float | None = None) -> str:
        """The rest of the next line, which must begin with `start`, without the bracket."""
        return self._answer((start,), timeout_s)[1]

    def _answer(
        self, starts: Sequence[str], timeout_s: float | None = None, *, computing: bool = False
    ) -> tuple[str, str]:
        line = self._line(self._timeout_s if timeout_s is None else timeout_s, computing=computing)
        for start in starts:
            if line.startswith(start):
                return start, line.removeprefix(start).removesuffix("]")
        if line.startswith("e-["):
            self._finish()
            raise _Refused(line.removeprefix("e-[").removesuffix("]"))
        raise _Lost(f"'{line}' came instead of '{starts[0]}'")

    def _finish(self) -> None:
        """Read the end of an answer; where it is lost, the next command's answer will tell."""
        deadline = time.monotonic() + self._timeout_s
        with suppress(_Lost):
            while self._line(self._timeout_s) != "m-ready" and time.monotonic() < deadline:
                pass

    def _line(self, timeout_s: float, *, computing: bool = False) -> str:
        deadline = time.monotonic() + timeout_s
        line = ""
        while not line:
            while (end := self._buffer.find(b"\n")) < 0:
                self._receive(deadline, computing=computing)
            line = self._buffer[:end].decode("ascii", errors="replace").rstrip("\r")
            del self._buffer[: end + 1]
        if line.startswith("e-[fault"):
            raise DeviceError(f"the device faulted: {line.removeprefix('e-[').removesuffix(']')}")
        if line == "m-init-done" and self._introduced:
            raise DeviceError(_RESTARTED)
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

    def _receive(self, deadline: float, *, computing: bool = False) -> None:
        """Wait for bytes; a long silence may be half a command's, which a byte ends.

        A device that computes is left alone: the byte would cost it time that is measured.
        """
        patience = math.inf if computing else _PATIENCE_S
        while (rest := deadline - time.monotonic()) > 0:
            data = self._stream.receive(min(rest, patience))
            if data:
                self._buffer += data
                return
            if rest > patience:
                self._stream.send(b"%")
            patience *= 2
        raise _Silent("the device fell silent")

    def _settle(self, timeout_s: float) -> None:
        """After something went wrong: end what may be half a command, and wait for silence.

        A device that computes is waited for, so long as `timeout_s` lets.
        """
        self._stream.send(b"%")
        deadline = time.monotonic() + timeout_s
        heard, self._buffer = self._buffer, bytearray()
        wait = max(_QUIET_S, timeout_s)
        while data := self._stream.receive(wait):
            heard += data
            wait = _QUIET_S
            if time.monotonic() > deadline + _QUIET_S:
                break
        if b"m-init-done" in heard and self._introduced:
            raise DeviceError(_RESTARTED)


_RESTARTED = (
    "the device started anew in the middle: it was reset, lost its power, or a watchdog bit; "
    "what was loaded, and the network's state, is gone"
)


def _read_info(lines: Sequence[str]) -> DeviceInfo:
    fields: dict[str, str] = {}
    tensors: dict[str, list[TensorInfo]] = {"input": [], "output": []}
    try:
        for line in lines:
            key, _, value = line.partition(" ")
            if key in tensors:
                _, dtype, size = value.split()
                tensors[key].append(TensorInfo(dtype, int(size)))
            else:
                fields[key] = value
        if int(fields["version"]) != VERSION:
            raise DeviceError(
                f"the firmware speaks version {fields['version']} of the wire protocol, "
                f"not {VERSION}: build and flash it again"
            )
        if int(fields["timer"]) <= 0:
            raise ValueError("its timer does not tick")
        return DeviceInfo(
            name=fields["name"],
            hash=fields["hash"],
            arena_bytes=int(fields["arena"]),
            timer_hz=int(fields["timer"]),
            taps=fields["taps"] == "1",
            count=int(fields["count"]),
            inputs=tuple(tensors["input"]),
            outputs=tuple(tensors["output"]),
        )
    except (KeyError, ValueError) as error:
        raise DeviceError(f"the device's description of itself is broken: {error}") from error


def _element(tensors: Sequence[TensorInfo], index: int, kind: str) -> TensorInfo:
    if not 0 <= index < len(tensors):
        raise DeviceError(f"the network has no {kind} {index}; it has {len(tensors)}")
    return tensors[index]


def _words(answer: str, numbers: Sequence[int], count: int) -> list[str]:
    """The last words of an answer, so many, behind the numbers that it must repeat."""
    words = answer.split()
    if words[: len(numbers)] != list(map(str, numbers)) or len(words) != len(numbers) + count:
        raise _Lost(f"'{answer}' came, which answers something else")
    return words[len(numbers) :]


def _integers(answer: str, count: int) -> list[int]:
    try:
        found = [int(word) for word in answer.split()]
    except ValueError:
        found = []
    if len(found) != count:
        raise _Lost(f"a broken line came from the device: '{answer}'")
    return found


class _Refused(DeviceError):
    """The device answered with an error line."""


class _Lost(DeviceError):
    """Bytes were lost."""


class _Silent(_Lost):
    """Nothing came for so long that the device must be dead."""

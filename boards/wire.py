"""The host's side of the wire: the protocol that `firmware/wire.h` of a project describes.

A line may lose, double or spoil bytes in both directions. Data carries checksums, answers repeat
what they answer, and the device counts its inferences; what can be spoiled without being noticed
(texts of numbers) is asked for twice. So every command is repeated until it is known to have been
obeyed once, and what it said is known to be what was meant.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

from smelt.boards.line import RESTARTED, Line, Lost, Refused, Silent, integers, words
from smelt.boards.stream import Stream
from smelt.errors import DeviceError

VERSION = 2
"""Of the protocol."""

_TRIES = 20
"""To hear the same twice in a row."""
_BYTES_PER_S = 10_000
"""What the slowest line carries; streams may take data faster than the device does."""
_FIRST_S = 600.0


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
        self._line = Line(stream, timeout_s)
        self._instructions_per_second = instructions_per_second
        self._count = 0
        self._slowest_s: float | None = None

    @cached_property
    def info(self) -> DeviceInfo:
        """What the firmware says about itself; the first use also waits for the device to start.

        Raises:
            DeviceError: no answer, or one in another version of the protocol.
        """
        info = _read_info(self._ask_info())
        self._count, self._line.introduced = info.count, True
        return info

    @property
    def retries(self) -> int:
        """How often something had to be said again so far."""
        return self._line.retries

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
            before = self._line.retries
            for index, data in enumerate(inputs):
                self.load(index, data)
            if len(inputs) > 1 and self._line.retries > before:
                raise Lost("something is lost every time")

        self._line.insist(attempt, "the inputs cannot be loaded")

    def load(self, index: int, data: bytes) -> None:
        """Write input `index`, raw little-endian bytes.

        Raises:
            DeviceError: there is no such input, it has another size, or the line is too bad.
        """
        tensor = _element(self.info.inputs, index, "input")
        if tensor.bytes != len(data):
            raise DeviceError(f"input {index} has {tensor.bytes} bytes, not {len(data)}")

        def attempt() -> None:
            self._line.send(f"smelt load {index} {len(data)} {crc32(data):08x}")
            self._line.echo("m-load-[", index, len(data))
            self._line.stream.send(data)
            self._line.expect("m-load-done", self._line.timeout_s + len(data) / _BYTES_PER_S)
            self._line.expect("m-ready")

        self._line.insist(attempt, f"input {index}, {len(data)} bytes, cannot be loaded")

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
            timeout_s = _FIRST_S if slowest is None else self._line.timeout_s + 10 * slowest
        start = time.monotonic()

        def attempt() -> Mapping[str, int]:
            first = None
            try:
                self._begin("invoke")
                first = self._numbers("m-invoke-[", timeout_s, computing=True)
                self._line.expect("m-ready")
            except Silent:
                raise
            except (Refused, Lost):  # whether it was begun, the device can tell
                self._line.settle(timeout_s)
            found = self._agreed(first)
            if found["count"] == self._count:
                raise Lost("the command was not understood")
            return self._counted(found)

        found = self._line.insist(attempt, "an inference cannot be begun")
        self._slowest_s = max(slowest or 0.0, time.monotonic() - start)
        return self._invocation(found)

    def output(self, index: int) -> bytes:
        """Output `index` of the inference before, raw little-endian bytes.

        Raises:
            DeviceError: there is no such output, or the line is too bad.
        """
        size = _element(self.info.outputs, index, "output").bytes

        def attempt() -> bytes:
            self._line.send(f"smelt out {index}")
            answer = self._line.expect("m-raw-[")
            crc, network = words(answer, (VERSION, index, size), 2)
            data = self._line.read(size)
            self._line.expect("m-ready")
            if f"{crc32(data):08x}" != crc:
                raise Lost("wrong CRC")
            if network != self.info.hash:
                raise Lost(f"it is one of network {network}")
            return data

        return self._line.insist(attempt, f"output {index} cannot be read")

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
            kind, rest = self._line.answer(("m-tap-[", "m-invoke-["), timeout_s, computing=True)
            if kind == "m-invoke-[":
                self._line.expect("m-ready")
                self._counted(self._agreed())
                return
            try:
                step, size, crc = rest.split()
                data = self._line.read(int(size))
            except ValueError as error:
                raise Lost(f"a broken line came from the device: '{rest}'") from error
            if f"{crc32(data):08x}" != crc:
                raise Lost(f"the output of step {step} came with a wrong CRC")
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
            kind, rest = self._line.answer(("m-lap-[", "m-invoke-["), timeout_s, computing=True)
            if kind == "m-invoke-[":
                break
            step, ticks = integers(rest, 2)
            found[step] += ticks
            count += 1
        said = integers(self._line.expect("m-laps-["), 2)
        self._line.expect("m-ready")
        self._counted(self._agreed())
        if said != [count, found.total()]:
            raise Lost(f"of {said[0]} times of steps {count} came, or with another sum")
        return found

    def set_lengths(self, sizes: Sequence[int]) -> None:
        """Set the sizes of all dimensions that are known at run time, for what follows.

        Raises:
            DeviceError: the network has no such dimension, or not of that size.
        """
        _ = self.info

        def attempt() -> None:  # a spoilt index may have changed another dimension: all again
            for index, size in enumerate(sizes):
                self._line.send(f"smelt length {index} {size}")
                self._line.echo("m-length-[", index, size)
                self._line.expect("m-ready")

        self._line.insist(attempt, f"lengths cannot be set to {', '.join(map(str, sizes))}")

    def reset(self) -> None:
        """Bring the network's context, state included, to where it was at the start.

        Raises:
            DeviceError: the device does not obey.
        """
        _ = self.info

        def attempt() -> None:
            self._line.send("smelt reset")
            self._line.expect("m-reset-done")
            self._line.expect("m-ready")

        self._line.insist(attempt, "the network cannot be reset")

    def command(self, text: str, timeout_s: float = 60) -> list[str]:
        """Any command, without its `%`; the lines of the answer before `m-ready`. Said once.

        Raises:
            DeviceError: no `m-ready` in time.
        """
        _ = self.info
        self._line.send(text)
        lines: list[str] = []
        while (line := self._line.read_line(timeout_s)) != "m-ready":
            lines.append(line)
        return lines

    def _ask_info(self) -> list[str]:
        """The contents of the `m-info-[…]` lines, whatever state the line is in.

        They are accepted when they came twice in a row without a difference.
        """
        before: list[str] | None = None
        deadline = time.monotonic() + self._line.timeout_s
        while time.monotonic() < deadline:
            self._line.send("smelt info")
            lines: list[str] = []
            try:
                while (line := self._line.read_line(1.0)) != "m-ready" or not lines:
                    if time.monotonic() > deadline:
                        break
                    if line.startswith("m-info-["):
                        lines.append(line.removeprefix("m-info-[").removesuffix("]"))
            except Lost:
                self._line.settle(0)
                continue
            if lines and lines == before:
                return lines
            before = lines
        raise DeviceError(
            f"no answer from the device in {self._line.timeout_s:g} s: is it the right port, is "
            "the firmware flashed, and does it run?"
        )

    def _begin(self, command: str) -> None:
        """Have an inference begin, after which nothing is sent until it is over."""
        self._line.send(f"smelt {command}")
        self._line.expect("m-invoke-begin")

    def _numbers(
        self, start: str, timeout_s: float, *, computing: bool = False
    ) -> Mapping[str, int]:
        """The next line's numbers by the words before them."""
        said = self._line.answer((start,), timeout_s, computing=computing)[1].split()
        try:
            found = {key: int(value) for key, value in zip(said[::2], said[1::2], strict=True)}
        except ValueError:
            found = {}
        if tuple(found) != ("ticks", "stack", "status", "count"):
            raise Lost(f"a broken line came from the device: '{' '.join(said)}'")
        return found

    def _last(self) -> Mapping[str, int]:
        """What the device says of its last inference; a count of 0 where there was none."""
        self._line.send("smelt last")
        try:
            found = self._numbers("m-invoke-[", self._line.timeout_s)
        except Refused as refused:
            if str(refused) != "Nothing inferred yet":
                raise
            return {"count": 0}
        self._line.expect("m-ready")
        return found

    def _agreed(self, before: Mapping[str, int] | None = None) -> Mapping[str, int]:
        """The same, as it came twice in a row, `before` counted."""
        for _ in range(_TRIES):
            try:
                found = self._last()
            except Silent:
                raise
            except (Refused, Lost):
                self._line.retries += 1
                self._line.settle()
            else:
                if found == before:
                    return found
                before = found
        raise DeviceError("what the device says of its last inference is different every time")

    def _counted(self, last: Mapping[str, int]) -> Mapping[str, int]:
        if last["count"] != self._count + 1:
            raise DeviceError(RESTARTED)
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

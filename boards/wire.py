"""Host side of the wire protocol, which `firmware/wire.h` of a project describes.

A line may lose, duplicate or corrupt bytes in both directions. To detect that, text and data carry
CRCs, data is sent in chunks (`chunks`), replies repeat the numbers of their command, and the device
counts its inferences. So the host can repeat each command until it knows that the device executed
it exactly once and that the reply is correct.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from zlib import crc32

from smelt.boards.chunks import Chunks
from smelt.boards.device_info import DeviceInfo, TensorInfo, ask_info
from smelt.boards.simulation_timeout import Pace
from smelt.boards.stream import Stream
from smelt.boards.transport import RESTARTED, Line, Lost, Refused, Silent, integers, words
from smelt.errors import DeviceError

_FIRST_S = 600.0
_OVERRUN = 100
"""Status of an inference that wrote beyond its arena; only firmware on this computer checks it."""


@dataclass(frozen=True)
class Invocation:
    """Measurements of one inference.

    Attributes:
        ticks: duration in ticks of the device's timer.
        seconds: duration in seconds by the device's clock.
        instructions: executed instructions, to within one tick; None outside of simulators.
        stack_bytes: deepest use of the stack below the caller; None if unknown.
    """

    ticks: int
    seconds: float
    instructions: int | None
    stack_bytes: int | None


@dataclass(frozen=True)
class TracedOutput:
    """An output of a step, read just after that step."""

    step: int
    data: bytes


@dataclass(frozen=True)
class _FinishedStep:
    """A step that has just finished.

    Attributes:
        number: number of steps finished so far in the inference.
        index: index of the step.
        bytes: size of its output in bytes.
        ticks: duration in ticks of the device's timer.
    """

    number: int
    index: int
    bytes: int
    ticks: int


class Device:
    """A device that responds; created by `open_device`."""

    def __init__(
        self,
        stream: Stream,
        *,
        instructions_per_second: int | None = None,
        timeout_s: float = 20,
        baud: int = 115_200,
        doubt: str = "",
        pace: Pace | None = None,
    ) -> None:
        """Create a device at `stream`.

        Args:
            stream: connection, which the caller closes.
            instructions_per_second: instruction rate, if the device's time is an instruction count.
            timeout_s: seconds of silence after which the device is considered dead.
            baud: baud rate of the slowest part of the line.
            doubt: another possible cause for the message if it never responds.
            pace: rate of time of a simulated device; None uses wall-clock time.
        """
        self._line = Line(stream, timeout_s, baud, pace)
        self._doubt = doubt
        self._instructions_per_second = instructions_per_second
        self._count = 0
        self._pieces = Chunks(self._line)
        self._slowest_s: float | None = None
        self._checks = random.getrandbits(30)

    @cached_property
    def info(self) -> DeviceInfo:
        """Return the firmware's description; the first use waits for the device to start.

        Raises:
            DeviceError: there is no response, or one in another version of the protocol.
        """
        info = ask_info(self._line, self._doubt)
        self._count, self._line.introduced = info.count, True
        return info

    @property
    def retries(self) -> int:
        """Return the number of repeated attempts so far."""
        return self._line.retries

    @property
    def simulated(self) -> bool:
        """Return whether the device's time is an instruction count."""
        return self._instructions_per_second is not None

    def check_hash(self, expected: str) -> None:
        """Check that the device runs the expected network; of several, select it.

        Raises:
            DeviceError: it runs another one.
        """
        if self.info.hash != expected and self._selected(expected):
            del self.info
        if self.info.hash != expected:
            raise DeviceError(
                f"the device runs network '{self.info.name}' with hash {self.info.hash}, "
                f"not {expected}: build and flash it again"
            )

    def _selected(self, expected: str) -> bool:
        """Direct the next commands to one of several networks; return False if there is only one.

        Raises:
            DeviceError: the device has several networks, but not this one.
        """
        command = f"smelt network {expected}"

        def attempt() -> bool:
            found = ""
            self._line.send(command)
            try:
                (found,) = words(self._line.expect("m-network-["), (), 1)
            except Refused as refused:
                if str(refused) != f"Unknown command: {command}":
                    raise
            self._line.expect("m-ready")
            return found == expected

        return self._line.retry(attempt, f"the device cannot select network {expected}")

    def run(self, inputs: Sequence[bytes]) -> tuple[list[bytes], Invocation]:
        """Run one inference: load all inputs, invoke, and read all outputs.

        Raises:
            DeviceError: a step failed; see the methods for each step.
        """
        self.load_all(inputs)
        invocation = self.invoke()
        return [self.output(index) for index in range(len(self.info.outputs))], invocation

    def load_all(self, inputs: Sequence[bytes]) -> None:
        """Write all inputs.

        Raises:
            DeviceError: see `load`.
        """
        failure = "the device's inputs differ from those that were loaded"

        def attempt() -> None:
            for index, data in enumerate(inputs):
                self.load(index, data)
            self._check_inputs(crc32(b"".join(inputs)))

        self._line.retry(attempt, failure)

    def _check_inputs(self, expected: int) -> None:
        """Check the CRC of the inputs just before they are used.

        This detects data that arrived late or twice. The reply repeats a new number, so that all
        earlier output of the device has been read before it.
        """
        self._checks += 1
        self._line.send(f"smelt check {self._checks}")
        (found,) = words(self._line.expect("m-check-["), (self._checks,), 1)
        self._line.expect("m-ready")
        if found != f"{expected:08x}":
            raise Lost(f"their CRC is {found}, not {expected:08x}")

    def crc(self, region: int, offset: int, count: int) -> int:
        """Return the CRC-32 of `count` bytes of a region of the device's memory.

        Raises:
            DeviceError: there is no such range, or the line fails too often.
        """
        _ = self.info

        def attempt() -> int:
            self._line.send(f"smelt crc {region} {offset} {count}")
            (found,) = words(self._line.expect("m-crc-["), (region, offset, count), 1)
            self._line.expect("m-ready")
            return int(found, 16)

        return self._line.retry(attempt, f"the CRC of region {region} cannot be read")

    def load(self, index: int, data: bytes) -> None:
        """Write input `index` as raw little-endian bytes.

        Raises:
            DeviceError: there is no such input, it has another size, or the line fails too often.
        """
        tensor = _element(self.info.inputs, index, "input")
        if tensor.bytes != len(data):
            raise DeviceError(f"input {index} has {tensor.bytes} bytes, not {len(data)}")
        self._pieces.load(index, data, f"input {index}, {len(data)} bytes, cannot be loaded")

    def invoke(self, timeout_s: float | None = None) -> Invocation:
        """Run one inference; inputs must have been loaded since the previous one.

        Args:
            timeout_s: seconds to wait for its end; None waits 10 minutes for the first inference,
                then 10 times as long as the slowest so far.

        Raises:
            DeviceError: it failed, faulted, or did not end in time, or the device restarted.
        """
        _ = self.info
        slowest = self._slowest_s
        if timeout_s is None:
            timeout_s = _FIRST_S if slowest is None else self._line.timeout_s + 10 * slowest
        start = self._line.now()

        def attempt() -> Mapping[str, int]:
            try:
                self._line.send("smelt invoke")
                self._line.expect("m-invoke-begin")
                found = _numbers(self._line.answer(("m-invoke-[",), timeout_s, computing=True)[1])
                self._line.expect("m-ready")
            except Silent:
                raise
            except (Refused, Lost):  # ask the device whether the inference was started
                self._line.resynchronize(timeout_s)
                found = self._last()
            if found["count"] == self._count:
                raise Lost("the device did not understand the command")
            return self._counted(found)

        found = self._line.retry(attempt, "an inference cannot be started")
        self._slowest_s = max(slowest or 0.0, self._line.now() - start)
        return self._invocation(found)

    def output(self, index: int) -> bytes:
        """Return output `index` of the last inference as raw little-endian bytes.

        Raises:
            DeviceError: there is no such output, or the line fails too often.
        """
        size = _element(self.info.outputs, index, "output").bytes
        return self._pieces.fetch(
            "out", index, size, self.info.hash, f"output {index} cannot be read"
        )

    def trace(
        self, sizes: Sequence[int] | None = None, timeout_s: float = 600
    ) -> Iterator[TracedOutput]:
        """Run one inference, and yield each output of each step when it is computed.

        Args:
            sizes: size in bytes of each step's largest output, or None for no check.
            timeout_s: seconds to wait for each step.

        Raises:
            DeviceError: the firmware was built without TRACE=1, the inference failed, the line
                fails too often, or the device reports a step that the network does not have.
        """
        for step in self._steps(timeout_s):
            if sizes is not None and not 0 <= step.bytes <= _most(sizes, step.index):
                raise DeviceError(
                    f"the device reports a step {step.index} with an output of {step.bytes} bytes,"
                    " which the network does not have: build and flash it again"
                )
            failure = f"the output of step {step.index} cannot be read"
            data = self._pieces.fetch("trace", step.number, step.bytes, self.info.hash, failure)
            yield TracedOutput(step.index, data)

    def step_ticks(self, timeout_s: float = 600) -> Mapping[int, int]:
        """Run one inference, and return the timer ticks of each step by its index.

        They include the cost of the callback, about ten instructions.

        Args:
            timeout_s: seconds to wait for each step.

        Raises:
            DeviceError: see `trace`.
        """
        found: Counter[int] = Counter()
        for step in self._steps(timeout_s):
            found[step.index] += step.ticks
        return found

    def _steps(self, timeout_s: float) -> Iterator[_FinishedStep]:
        """Run one inference that waits after each step, and yield the finished steps."""
        self._require_trace()
        number = 0
        while step := self._line.retry(
            partial(self._next_step, number, timeout_s), "a step cannot be started"
        ):
            yield step
            number = step.number
        self._invocation(self._counted(self._last()))

    def _next_step(self, number: int, timeout_s: float) -> _FinishedStep | None:
        """Continue after step `number` and return the next step, or None at the end."""
        try:
            self._line.send(f"smelt step {self._count} {number}")
            self._line.expect("m-invoke-begin")
            starts = ("m-step-[", "m-invoke-[")
            kind, rest = self._line.answer(starts, timeout_s, computing=True)
            self._line.expect("m-ready")
        except Silent:
            raise
        except (Refused, Lost):  # ask the device whether it was the last step
            self._line.resynchronize(timeout_s)
            if self._last()["count"] == self._count:
                raise
            return None
        if kind == "m-invoke-[":
            return None
        step = _FinishedStep(*integers(rest, 4))
        if step.number != number + 1:
            raise Lost(f"step {step.number} came after {number}")
        return step

    def set_lengths(self, sizes: Sequence[int]) -> None:
        """Set the sizes of all dimensions that are known only at run time.

        Raises:
            DeviceError: the network has no such dimension, or the size is out of range.
        """
        _ = self.info

        def attempt() -> None:  # repeat all: a corrupted index may have set another dimension
            for index, size in enumerate(sizes):
                self._line.send(f"smelt length {index} {size}")
                self._line.echo("m-length-[", index, size)
                self._line.expect("m-ready")

        self._line.retry(attempt, f"lengths cannot be set to {', '.join(map(str, sizes))}")

    def reset(self) -> None:
        """Reset the network's context, including its state.

        Raises:
            DeviceError: the device does not execute the command.
        """
        _ = self.info

        def attempt() -> None:
            self._line.send("smelt reset")
            self._line.expect("m-reset-done")
            self._line.expect("m-ready")

        self._line.retry(attempt, "the network cannot be reset")

    def command(self, text: str, timeout_s: float = 60) -> list[str]:
        """Send any command once, without its `%`, and return the lines before `m-ready`.

        Raises:
            DeviceError: `m-ready` does not come in time.
        """
        _ = self.info
        self._line.send(text)
        lines: list[str] = []
        while (line := self._line.read_line(timeout_s, computing=True)) != "m-ready":
            lines.append(line)
        return lines

    def _last(self) -> Mapping[str, int]:
        """Return the device's record of its last inference; its count is 0 if there was none."""

        def attempt() -> Mapping[str, int]:
            self._line.send("smelt last")
            found = _numbers(self._line.expect("m-invoke-["))
            self._line.expect("m-ready")
            return found

        return self._line.retry(attempt, "the device does not report its last inference")

    def _counted(self, last: Mapping[str, int]) -> Mapping[str, int]:
        if last["count"] != self._count + 1:
            raise DeviceError(RESTARTED)
        self._count += 1
        return last

    def _invocation(self, last: Mapping[str, int]) -> Invocation:
        if last["status"] == _OVERRUN:
            raise DeviceError("the inference wrote beyond the end of its arena")
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

    def _require_trace(self) -> None:
        if not self.info.trace:
            raise DeviceError(
                "the firmware on the device cannot report single steps: build it with "
                "`make TRACE=1`, or use `smelt deploy --layers`"
            )


def _numbers(answer: str) -> Mapping[str, int]:
    """Parse a record of an inference: pairs of a word and a number."""
    found = answer.split()
    if tuple(found[::2]) != ("ticks", "stack", "status", "count"):
        raise Lost(f"the device sent a corrupted line: '{answer}'")
    return dict(zip(found[::2], integers(" ".join(found[1::2]), 4), strict=True))


def _most(sizes: Sequence[int], step: int) -> int:
    """Return the maximum size in bytes of a step's output, or -1 if there is no such step."""
    return sizes[step] if 0 <= step < len(sizes) else -1


def _element(tensors: Sequence[TensorInfo], index: int, kind: str) -> TensorInfo:
    if not 0 <= index < len(tensors):
        raise DeviceError(f"the network has no {kind} {index}; it has {len(tensors)}")
    return tensors[index]

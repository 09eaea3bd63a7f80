"""The host's side of the wire: the protocol that `firmware/wire.h` of a project describes.

A line may lose, double or spoil bytes in both directions. Text and data carry CRCs, data goes in
pieces (`chunks`), answers repeat what they answer, and the device counts its inferences. So every
command is repeated until it is known to have been obeyed once, and what it said is known to be what
was meant.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from zlib import crc32

from smelt.boards.chunks import Pieces
from smelt.boards.device_info import DeviceInfo, TensorInfo, ask_info
from smelt.boards.simulation_timeout import Pace
from smelt.boards.stream import Stream
from smelt.boards.transport import RESTARTED, Line, Lost, Refused, Silent, integers, words
from smelt.errors import DeviceError

_FIRST_S = 600.0
_OVERRUN = 100
"""Status of an inference that wrote behind its arena, which only this computer can tell."""


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


@dataclass(frozen=True)
class _FinishedStep:
    """One that has just been done.

    Attributes:
        number: of steps done so far in the inference.
        index: of the step.
        bytes: of its output.
        ticks: that it took.
    """

    number: int
    index: int
    bytes: int
    ticks: int


class Device:
    """A device that answers; made by `open_device`."""

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
        """Speak over `stream`.

        Args:
            stream: the connection; stays the caller's to close.
            instructions_per_second: of a device whose time is a count of instructions.
            timeout_s: seconds of silence after which the device is taken for dead.
            baud: bits a second of the slowest part of the line.
            doubt: what else may be the reason when it never answers.
            pace: by which the time of a simulated device passes; None: by the clock on the wall.
        """
        self._line = Line(stream, timeout_s, baud, pace)
        self._doubt = doubt
        self._instructions_per_second = instructions_per_second
        self._count = 0
        self._pieces = Pieces(self._line)
        self._slowest_s: float | None = None
        self._checks = random.getrandbits(30)

    @cached_property
    def info(self) -> DeviceInfo:
        """What the firmware says about itself; the first use also waits for the device to start.

        Raises:
            DeviceError: no answer, or one in another version of the protocol.
        """
        info = ask_info(self._line, self._doubt)
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

        Raises:
            DeviceError: as of `load`.
        """
        failure = "the inputs that the device holds are not those that were loaded"

        def attempt() -> None:
            for index, data in enumerate(inputs):
                self.load(index, data)
            self._check_inputs(crc32(b"".join(inputs)))

        self._line.insist(attempt, failure)

    def _check_inputs(self, expected: int) -> None:
        """Make sure of the inputs just before they are used, whatever came late or twice.

        The answer repeats a number that was never sent before, so that with it everything has been
        read that the device said earlier.
        """
        self._checks += 1
        self._line.send(f"smelt check {self._checks}")
        (found,) = words(self._line.expect("m-check-["), (self._checks,), 1)
        self._line.expect("m-ready")
        if found != f"{expected:08x}":
            raise Lost(f"their CRC is {found}, not {expected:08x}")

    def crc(self, region: int, offset: int, count: int) -> int:
        """CRC-32 of so many bytes of a region of the device's memory.

        Raises:
            DeviceError: there is no such part, or the line is too bad.
        """
        _ = self.info

        def attempt() -> int:
            self._line.send(f"smelt crc {region} {offset} {count}")
            (found,) = words(self._line.expect("m-crc-["), (region, offset, count), 1)
            self._line.expect("m-ready")
            return int(found, 16)

        return self._line.insist(attempt, f"the CRC of region {region} cannot be read")

    def load(self, index: int, data: bytes) -> None:
        """Write input `index`, raw little-endian bytes.

        Raises:
            DeviceError: there is no such input, it has another size, or the line is too bad.
        """
        tensor = _element(self.info.inputs, index, "input")
        if tensor.bytes != len(data):
            raise DeviceError(f"input {index} has {tensor.bytes} bytes, not {len(data)}")
        self._pieces.load(index, data, f"input {index}, {len(data)} bytes, cannot be loaded")

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
        start = self._line.now()

        def attempt() -> Mapping[str, int]:
            try:
                self._line.send("smelt invoke")
                self._line.expect("m-invoke-begin")
                found = _numbers(self._line.answer(("m-invoke-[",), timeout_s, computing=True)[1])
                self._line.expect("m-ready")
            except Silent:
                raise
            except (Refused, Lost):  # whether it was begun, the device can tell
                self._line.settle(timeout_s)
                found = self._last()
            if found["count"] == self._count:
                raise Lost("the command was not understood")
            return self._counted(found)

        found = self._line.insist(attempt, "an inference cannot be begun")
        self._slowest_s = max(slowest or 0.0, self._line.now() - start)
        return self._invocation(found)

    def output(self, index: int) -> bytes:
        """Output `index` of the inference before, raw little-endian bytes.

        Raises:
            DeviceError: there is no such output, or the line is too bad.
        """
        size = _element(self.info.outputs, index, "output").bytes
        return self._pieces.fetch(
            "out", index, size, self.info.hash, f"output {index} cannot be read"
        )

    def taps(self, sizes: Sequence[int] | None = None, timeout_s: float = 600) -> Iterator[Tap]:
        """One inference, yielding every output of every step as it is produced.

        Args:
            sizes: bytes that an output of each step has at most, in order; None: what it says.
            timeout_s: seconds to wait for each.

        Raises:
            DeviceError: the firmware was built without taps, the inference failed, the line is too
                bad, or the device tells of a step that the network does not have.
        """
        for step in self._steps(timeout_s):
            if sizes is not None and not 0 <= step.bytes <= _most(sizes, step.index):
                raise DeviceError(
                    f"the device tells of a step {step.index} with an output of {step.bytes} bytes,"
                    " which the network does not have: build and flash it again"
                )
            failure = f"the output of step {step.index} cannot be read"
            data = self._pieces.fetch("tap", step.number, step.bytes, self.info.hash, failure)
            yield Tap(step.index, data)

    def laps(self, timeout_s: float = 600) -> Mapping[int, int]:
        """One inference; ticks of the timer that each step took, by its index.

        Each includes what calling back costs, some ten instructions.

        Args:
            timeout_s: seconds to wait for each.

        Raises:
            DeviceError: as of `taps`.
        """
        found: Counter[int] = Counter()
        for step in self._steps(timeout_s):
            found[step.index] += step.ticks
        return found

    def _steps(self, timeout_s: float) -> Iterator[_FinishedStep]:
        """One inference that waits after every step."""
        self._require_taps()
        number = 0
        while step := self._line.insist(
            partial(self._next_step, number, timeout_s), "a step cannot be begun"
        ):
            yield step
            number = step.number
        self._invocation(self._counted(self._last()))

    def _next_step(self, number: int, timeout_s: float) -> _FinishedStep | None:
        """The step after so many, which ends the wait after the one before; None at the end."""
        try:
            self._line.send(f"smelt step {self._count} {number}")
            self._line.expect("m-invoke-begin")
            starts = ("m-step-[", "m-invoke-[")
            kind, rest = self._line.answer(starts, timeout_s, computing=True)
            self._line.expect("m-ready")
        except Silent:
            raise
        except (Refused, Lost):  # whether it was the last, the device can tell
            self._line.settle(timeout_s)
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
        while (line := self._line.read_line(timeout_s, computing=True)) != "m-ready":
            lines.append(line)
        return lines

    def _last(self) -> Mapping[str, int]:
        """What the device says of its last inference; a count of 0 where there was none."""

        def attempt() -> Mapping[str, int]:
            self._line.send("smelt last")
            found = _numbers(self._line.expect("m-invoke-["))
            self._line.expect("m-ready")
            return found

        return self._line.insist(attempt, "the device does not tell of its last inference")

    def _counted(self, last: Mapping[str, int]) -> Mapping[str, int]:
        if last["count"] != self._count + 1:
            raise DeviceError(RESTARTED)
        self._count += 1
        return last

    def _invocation(self, last: Mapping[str, int]) -> Invocation:
        if last["status"] == _OVERRUN:
            raise DeviceError("the inference wrote behind the end of its arena")
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


def _numbers(answer: str) -> Mapping[str, int]:
    """What is said of an inference, by the words before the numbers."""
    found = answer.split()
    if tuple(found[::2]) != ("ticks", "stack", "status", "count"):
        raise Lost(f"a broken line came from the device: '{answer}'")
    return dict(zip(found[::2], integers(" ".join(found[1::2]), 4), strict=True))


def _most(sizes: Sequence[int], step: int) -> int:
    """Bytes that an output of a step has at most; -1 where there is no such step."""
    return sizes[step] if 0 <= step < len(sizes) else -1


def _element(tensors: Sequence[TensorInfo], index: int, kind: str) -> TensorInfo:
    if not 0 <= index < len(tensors):
        raise DeviceError(f"the network has no {kind} {index}; it has {len(tensors)}")
    return tensors[index]

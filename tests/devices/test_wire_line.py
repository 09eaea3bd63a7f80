"""Errors on the line to firmware with a hand-written network, and wrong commands."""

import re
import struct
from collections.abc import Callable, Iterator
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.boards import Device
from smelt.boards.stream import ProcessStream, Stream
from smelt.boards.transport import Line, Lost, words
from smelt.errors import DeviceError
from tests.support.fake_project import expected_output, inputs
from tests.support.wire_tools import MLPERF, SAMPLE, Build, Place, builder

SANITIZED = "-fsanitize=address,undefined -fno-sanitize-recover=all -g"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return builder(tmp_path_factory)


def with_check(command: str) -> str:
    return f"{command} {crc32(command.encode()):08x}"


def beyond(offset: int, count: int, whole: str) -> str:
    """Return the answer to a request for bytes behind the 16 bytes of `whole`."""
    return f"e-[Offset {offset} plus {count} bytes exceed the 16 bytes of {whole}]"


LOAD_CRC = f"{crc32(b'smelt load 0 0 16 0'):08x}"
WAITING = (
    "e-[Step 1 waits for smelt trace 1 OFFSET BYTES, smelt last or smelt step 0 1; "
    "smelt info ends the inference]"
)
LOAD_USAGE = "Usage: smelt load INDEX OFFSET BYTES CRC CHECK"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("", "e-[Unknown command: ]"),
        ("foo", "e-[Unknown command: foo]"),
        ("\x00\xff\x1b", "e-[Unknown command: ???]"),
        ("x" * 79, f"e-[Unknown command: {'x' * 79}]"),
        ("x" * 80, "e-[A command has at most 80 characters]"),
        ("x" * 5000, "e-[A command has at most 80 characters]"),
        ("names", "e-[Unknown command: names]"),
        ("smelt", "e-[Unknown command: smelt]"),
        ("smelt load", f"e-[{LOAD_USAGE}]"),
        ("smelt load 0 0 16 0", f"e-[{LOAD_USAGE}]"),
        ("smelt load 0 0 16 xyz 0", f"e-[{LOAD_USAGE}]"),
        ("smelt load 0 0 16 0 123456789", f"e-[{LOAD_USAGE}]"),
        ("smelt load -1 0 16 0 0", f"e-[{LOAD_USAGE}]"),
        (
            "smelt load 0 0 16 0 0",
            f"e-[CRC of the command is {LOAD_CRC}, not 00000000: send it again]",
        ),
        (with_check("smelt load 4294967296 0 16 0"), f"e-[{LOAD_USAGE}]"),
        (with_check("smelt load 2 0 16 0"), "e-[No input 2: there are 2, numbered from 0]"),
        (
            with_check("smelt load 4294967295 0 16 0"),
            "e-[No input 4294967295: there are 2, numbered from 0]",
        ),
        (with_check("smelt load 0 0 17 0"), beyond(0, 17, "input 0")),
        (with_check("smelt load 0 17 0 0"), beyond(17, 0, "input 0")),
        (with_check("smelt load 0 8 4294967295 0"), beyond(8, 4294967295, "input 0")),
        (with_check("smelt load 0 4294967295 2 0"), beyond(4294967295, 2, "input 0")),
        ("smelt out 3 0 1", "e-[No output 3: there are 3, numbered from 0]"),
        ("smelt out 0 1 16", beyond(1, 16, "output 0")),
        ("smelt out 0 4294967295 1", beyond(4294967295, 1, "output 0")),
        ("smelt crc", "e-[Usage: smelt crc REGION OFFSET BYTES]"),
        ("smelt crc 0 0", "e-[Usage: smelt crc REGION OFFSET BYTES]"),
        ("smelt out", "e-[Usage: smelt out INDEX OFFSET BYTES]"),
        ("smelt out 0", "e-[Usage: smelt out INDEX OFFSET BYTES]"),
        ("smelt step 0 0", "e-[Built without -DSMELT_STEP_CALLBACK: build it with TRACE=1]"),
        ("smelt trace 1 0 1", "e-[Unknown command: smelt trace 1 0 1]"),
        ("results", "e-[Nothing inferred yet]"),
        ("db", "e-[Odd number of digits]"),
        ("db load", "e-[Usage: db load BYTES]"),
        ("db load 0", "e-[Usage: db load BYTES]"),
        ("db load 17", "e-[The buffer holds 16 bytes]"),
        ("db 1", "e-[Odd number of digits]"),
        ("db 0g", "e-[Not a hexadecimal digit]"),
        ("db 00", "e-[More bytes than announced by db load]"),
        ("infer", "e-[Usage: infer COUNT [WARM-UPS], COUNT at least 1]"),
        ("infer 0", "e-[Usage: infer COUNT [WARM-UPS], COUNT at least 1]"),
        ("infer 1 x", "e-[Usage: infer COUNT [WARM-UPS], COUNT at least 1]"),
        ("infer 1 1 1", "e-[Usage: infer COUNT [WARM-UPS], COUNT at least 1]"),
        ("infer 1 1", "e-[Load an input first: db load 16]"),
    ],
)
def test_wrong_commands_are_answered_by_an_error(
    sanitized: ProcessStream, command: str, answer: str
) -> None:
    assert ask(sanitized, command.encode("latin-1") + b"%") == [answer]


def test_the_crc_of_bytes_outside_of_a_region_is_refused(sanitized: ProcessStream) -> None:
    (missing,) = ask(sanitized, b"smelt crc 99 0 1%")
    assert re.fullmatch(r"e-\[No region 99: there are \d+, numbered from 0\]", missing)
    for offset, count in ((4294967295, 1), (1, 4294967295)):
        (answer,) = ask(sanitized, f"smelt crc 0 {offset} {count}%".encode())
        beyond_region = (
            rf"e-\[Offset {offset} plus {count} bytes exceed the \d+ bytes of region 0\]"
        )
        assert re.fullmatch(beyond_region, answer)


@pytest.fixture(scope="module")
def sanitized_place(build: Build) -> Place:
    return build("host", MLPERF, extra_cflags=SANITIZED, extra_ldflags=SANITIZED)


@pytest.fixture
def sanitized(sanitized_place: Place) -> Iterator[ProcessStream]:
    """Yield a process of the firmware with sanitizers, after its greeting."""
    stream = ProcessStream(sanitized_place.elf.path)
    assert ask(stream, b"")[-1] == "m-init-done"
    yield stream
    stream.close()


@pytest.fixture(scope="module")
def sanitized_trace(build: Build) -> Place:
    return build("host", MLPERF, trace=True, extra_cflags=SANITIZED, extra_ldflags=SANITIZED)


@pytest.fixture
def waiting(sanitized_trace: Place) -> Iterator[ProcessStream]:
    """Yield a process of the firmware with TRACE=1, which waits after the first step."""
    stream = ProcessStream(sanitized_trace.elf.path)
    assert ask(stream, b"")[-1] == "m-init-done"
    assert ask(stream, b"smelt step 0 0%")[1].startswith("m-step-[1 0 16 ")
    yield stream
    stream.close()


def ask(stream: Stream, data: bytes, answers: int = 1) -> list[str]:
    """Send data, and return the lines that the firmware writes before the last `m-ready`."""
    stream.send(data)
    text = b""
    while text.count(b"m-ready\r\n") < answers:
        received = stream.receive(10)
        assert received, text
        text += received
    return text.decode().split("\r\n")[:-2]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("smelt trace 1 0 17", beyond(0, 17, "the output of step 1")),
        ("smelt trace 1 17 0", beyond(17, 0, "the output of step 1")),
        ("smelt trace 2 0 1", WAITING),
        ("smelt trace", "e-[Usage: smelt trace STEPS OFFSET BYTES]"),
        ("smelt step 0 2", WAITING),
        ("smelt step 1 1", WAITING),
        ("smelt step", WAITING),
        ("smelt invoke", WAITING),
        ("smelt reset", WAITING),
        ("infer 1 0", "e-[Unknown command: infer 1 0]"),
        ("", "e-[Unknown command: ]"),
    ],
)
def test_wrong_commands_while_a_step_waits_are_answered_by_an_error(
    waiting: ProcessStream, command: str, answer: str
) -> None:
    assert ask(waiting, command.encode() + b"%") == [answer]


def test_a_new_session_ends_the_wait_after_a_step(waiting: ProcessStream) -> None:
    last, ready, *info = ask(waiting, b"smelt info%", answers=2)
    assert re.fullmatch(r"m-invoke-\[ticks \d+ stack \d+ status 3 count 1 [0-9a-f]{8}\]", last)
    assert (ready, info[0]) == ("m-ready", "m-info-[version 5]")
    assert ask(waiting, b"smelt step 0 0%") == [
        "e-[No step waits: start an inference with smelt step 1 0]"
    ]


def test_a_repeated_step_command_is_answered_again_but_executed_once(
    waiting: ProcessStream,
) -> None:
    again = ask(waiting, b"smelt step 0 0%")
    assert [line.split()[:3] for line in again] == [["m-invoke-begin"], ["m-step-[1", "0", "16"]]
    assert ask(waiting, b"smelt step 0 1%")[1].startswith("m-step-[2 1 4 ")
    assert ask(waiting, b"smelt step 0 1%")[1].startswith("m-step-[2 1 4 ")


WORDS = st.sampled_from(
    b"smelt,load,length,out,invoke,last,step,trace,reset,info,db,infer,print,results, ,%,0,1,16,00,"
    b"smelt step 0 0%,smelt trace 1 0 16%,smelt step 0 1%,\r\n,4294967296".split(b",")
)


@settings(max_examples=100)
@given(st.lists(st.one_of(WORDS, st.binary(max_size=20)), max_size=30).map(b"".join))
def test_noise_neither_hangs_nor_overruns(sanitized_trace: Place, noise: bytes) -> None:
    # If the noise contains a valid "smelt load", it reads up to 16 bytes: send as many.
    stream = ProcessStream(sanitized_trace.elf.path)
    try:
        stream.send(noise + b"%" + bytes(16) + b"%" + bytes(16) + b"%smelt info%")
        text = b""
        while not re.search(rb"m-info-\[region 1 \d+ \d+ [0-9a-f]{8}\]\r\n[^%]*m-ready\r\n", text):
            received = stream.receive(10)
            assert received, text
            text += received
    finally:
        stream.close()


Spoil = Callable[[int, bytes], bytes]
"""Maps the number of a message or received byte, and the bytes, to the damaged bytes."""


def undamaged(number: int, data: bytes) -> bytes:
    del number
    return data


class FaultyStream:
    """A stream that damages sent messages or received bytes.

    Attributes:
        sent: number of messages sent.
        came: number of bytes received.
    """

    def __init__(self, device: Device, sent: Spoil = undamaged, came: Spoil = undamaged) -> None:
        """Insert this stream between the device and its stream.

        Args:
            device: its stream is replaced.
            sent: damages a message that is sent.
            came: damages a byte that is received.
        """
        line = device._line  # pyright: ignore[reportPrivateUsage]
        self._stream, line.stream = line.stream, self
        self._spoil_sent, self._spoil_came = sent, came
        self.sent = self.came = 0

    def send(self, data: bytes) -> None:
        self._stream.send(self._spoil_sent(self.sent, data))
        self.sent += 1

    def receive(self, timeout_s: float) -> bytes:
        found = b""
        for byte in self._stream.receive(timeout_s):
            found += self._spoil_came(self.came, bytes([byte]))
            self.came += 1
        return found

    def close(self) -> None:
        self._stream.close()


def flip_a_bit(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def drop_a_byte(data: bytes, place: int) -> bytes:
    return data[:place] + data[place + 1 :]


def double_a_byte(data: bytes, place: int) -> bytes:
    return data[: place + 1] + data[place:]


SPOILS = (flip_a_bit, drop_a_byte, double_a_byte)
IMPATIENT = "-DSMELT_LOAD_TIMEOUT_MS=100u"


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("message", range(8))
@pytest.mark.parametrize("name", ["host", pytest.param("mps2-an386", marks=pytest.mark.qemu)])
def test_a_damaged_message_to_the_device_is_repeated(
    build: Build, name: str, message: int, spoil: Callable[[bytes, int], bytes]
) -> None:
    def spoil_one(number: int, data: bytes) -> bytes:
        return spoil(data, 0) if number == message else data

    with build(name, extra_cflags=IMPATIENT).open() as device:
        faulty = FaultyStream(device, spoil_one)
        assert_computes(device, 1)
        assert_computes(device, 2)
    assert faulty.sent > message
    assert device.retries > 0


def assert_computes(device: Device, count: int) -> None:
    """Assert that an inference is correct and the `count`-th, as its last output says."""
    outputs, _ = device.run(inputs(SAMPLE))
    assert outputs[0] == expected_output(SAMPLE)
    assert struct.unpack("<i", outputs[2]) == (count,)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SPOILS),
    st.integers(0, 8),
    st.integers(0, 30),
    st.none() | st.integers(0, 400),
)
def test_inferences_happen_once_whichever_byte_is_damaged(
    build: Build,
    spoil: Callable[[bytes, int], bytes],
    message: int,
    place: int,
    received: int | None,
) -> None:
    def spoil_sent(number: int, data: bytes) -> bytes:
        return spoil(data, place % len(data)) if number == message else data

    def spoil_came(number: int, data: bytes) -> bytes:
        return spoil(data, 0) if number == received else data

    with build("host", extra_cflags=IMPATIENT).open() as device:
        FaultyStream(device, spoil_sent, spoil_came)
        assert_computes(device, 1)
        assert_computes(device, 2)


def test_a_damaged_index_does_not_overwrite_another_input(build: Build) -> None:
    """The command for input 1 arrives as a command for input 0, which is already loaded."""

    def redirect(number: int, data: bytes) -> bytes:
        del number
        if data.startswith(b"smelt load 1 ") and not done:
            done.append(data)
            return data.replace(b"load 1", b"load 0")
        return data

    done: list[bytes] = []
    with build("host", extra_cflags=IMPATIENT).open() as device:
        FaultyStream(device, redirect)
        assert_computes(device, 1)
    assert done


def test_a_damaged_byte_of_an_output_is_read_again(build: Build) -> None:
    heard = bytearray()
    done: list[int] = []

    def spoil_first(number: int, data: bytes) -> bytes:
        """Damage the first byte after the first `m-raw` line."""
        heard.extend(data)
        line = heard.find(b"m-raw-[")
        end = -1 if line < 0 else heard.find(b"\r\n", line)
        if end < 0 or len(heard) != end + 3 or done:
            return data
        done.append(number)
        return flip_a_bit(data, 0)

    with build("host", trace=False).open() as device:
        FaultyStream(device, came=spoil_first)
        assert_computes(device, 1)
        assert device.retries == 1
    assert done


@pytest.mark.parametrize("answer", ["", "1 2", "1 3 ab", "2 1 ab", "1 2 ab cd"])
def test_replies_to_another_command_are_refused(answer: str) -> None:
    assert words("1 2 ab", (1, 2), 1) == ["ab"]
    with pytest.raises(Lost, match="is the reply to another command"):
        words(answer, (1, 2), 1)


def test_a_late_error_during_a_load_does_not_desynchronize(build: Build) -> None:
    """The device waits for the bytes nevertheless, so as many are sent before the next command."""
    messages: list[bytes] = []
    told: list[bytes] = []

    def watch(number: int, data: bytes) -> bytes:
        del number
        messages.append(data)
        return data

    def stale(number: int, data: bytes) -> bytes:
        del number
        if told or not messages[-1].startswith(b"smelt load "):
            return data
        told.extend(messages)
        return b"e-[Unknown command: late]\r\nm-ready\r\n" + data

    with build("host").open() as device:
        FaultyStream(device, watch, stale)
        assert_computes(device, 1)
    size = int(told[-1].split()[4])
    assert messages[len(told)].startswith(b"\n" * size)
    assert device.retries > 0


def test_a_device_that_falls_silent_times_out(build: Build) -> None:
    with build("host", trace=False).open() as device:
        FaultyStream(device, came=lambda number, data: data if number < 60 else b"")
        device._line.timeout_s = 1  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(DeviceError, match="the device fell silent") as error:
            device.run(inputs(SAMPLE))
    assert error.value.kind == "DeviceError"


def test_a_greeting_during_a_run_means_a_restart(build: Build) -> None:
    greeting = b"m-timestamp-mode-performance\r\nm-init-done\r\nm-ready\r\n"

    def interrupt(number: int, data: bytes) -> bytes:
        return greeting + data if number == 40 else data

    with build("host", trace=False).open() as device:
        FaultyStream(device, came=interrupt)
        with pytest.raises(DeviceError, match="device restarted"):
            device.run(inputs(SAMPLE))


def test_an_unexpected_count_of_inferences_means_a_restart(build: Build) -> None:
    with build("host", trace=False).open() as device:
        device.run(inputs(SAMPLE))
        device._count = 7  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(DeviceError, match="device restarted"):
            device.run(inputs(SAMPLE))


def test_a_message_that_is_always_damaged_is_an_error(build: Build) -> None:
    def spoil(_: int, data: bytes) -> bytes:
        return flip_a_bit(data, 0) if data.startswith(SAMPLE[:1]) else data

    with build("host", trace=True).open() as device:
        FaultyStream(device, spoil)
        with pytest.raises(
            DeviceError, match="input 0, 16 bytes, cannot be loaded: CRC of the data"
        ):
            device.load(0, SAMPLE)


def test_wrong_sizes_are_refused_before_sending(build: Build) -> None:
    with build("host", trace=True).open() as device:
        with pytest.raises(DeviceError, match="input 0 has 16 bytes, not 3"):
            device.load(0, bytes(3))
        with pytest.raises(DeviceError, match="the network has no output 7; it has 3"):
            device.output(7)
        assert device.retries == 0


class Flood:
    """A stream that returns the same data forever."""

    def __init__(self, data: bytes) -> None:
        """Return `data` at each `receive`."""
        self.data, self.said = data, 0

    def send(self, data: bytes) -> None:
        pass

    def receive(self, timeout_s: float) -> bytes:
        del timeout_s
        self.said += len(self.data)
        return self.data

    def close(self) -> None:
        pass


def test_an_endless_line_is_refused() -> None:
    flood = Flood(b"x" * 1000)
    with pytest.raises(Lost, match="more than 65,536 bytes came without the end of a line"):
        Line(flood, 1000, 115_200).read_line()
    assert flood.said < 70_000


def test_a_fault_outside_of_inferences_suggests_damaged_firmware() -> None:
    """Comparing memory cannot find a flipped bit in startup code that faults."""
    device = Device(Flood(b"e-[fault 3 at 0x00000124]\r\n"))
    with pytest.raises(DeviceError, match=r"fault 3 at 0x00000124, outside .* damaged .* flash it"):
        _ = device.info
    with pytest.raises(DeviceError, match=r"fault 3 at 0x00000124$"):
        device._line.read_line(computing=True)

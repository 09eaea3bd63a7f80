"""The firmware, end to end, around a hand-written network: on the host and on every QEMU board."""

import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import serial
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt import boards
from smelt.boards import Board, Device, ElfInfo
from smelt.boards.simulate import Simulator
from smelt.boards.stream import ProcessStream, Stream
from smelt.errors import ConfigError, DeviceError, DoesNotFit, ToolError
from smelt.targets import HOST, Platform, get, library
from tests.board_tools import simulable
from tests.fake_project import (
    ABORT,
    DEEP_STACK,
    ENDLESS_RECURSION,
    UNDEFINED_INSTRUCTION,
    expected_output,
    inputs,
    write_project,
)

SANITIZED = "-fsanitize=address,undefined -fno-sanitize-recover=all -g"
SAMPLE = bytes(range(100, 116))
HASH = "0123456789abcdef"
BOARDS = (
    "mps2-an385",
    "mps2-an385:cortex-m0",
    "mps2-an386",
    "mps2-an500",
    "mps2-an505",
    "mps3-an547",
    "microbit",
    "netduinoplus2",
    "stm32vldiscovery",
    "lm3s6965evb",
    "virt-riscv32",
    "sifive_e",
)
QEMU = [pytest.param(name, marks=pytest.mark.qemu) for name in BOARDS]


@dataclass(frozen=True)
class Place:
    """Firmware and where it runs."""

    platform: Platform
    board: Board | None
    elf: ElfInfo

    def open(self) -> AbstractContextManager[Device]:
        on = "host" if self.board is None else "qemu"
        return boards.open_device(self.elf.path, on, self.board, expected_hash=HASH)


Build = Callable[..., Place]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Firmware for a place (`host`, `BOARD` or `BOARD:TARGET`), made once a module."""
    made: dict[str, Place] = {}

    def make(name: str, **options: Any) -> Place:
        key = f"{name} {options}"
        if key not in made:
            board_name, _, target = name.partition(":")
            board = None if name == "host" else boards.load(board_name)
            if board is not None:
                simulable(board)
            platform = HOST if board is None else board.platform(target or None)
            directory = tmp_path_factory.mktemp("project")
            write_project(directory, platform)
            elf = boards.compile_project(directory, platform, jobs=2, **options)
            made[key] = Place(platform, board, elf)
        return made[key]

    return make


@pytest.fixture(params=["host", *QEMU])
def place(request: pytest.FixtureRequest, build: Build) -> Place:
    return build(request.param, taps=True)


def test_an_inference_gives_what_the_network_computes(place: Place) -> None:
    with place.open() as device:
        assert device.info.name == "fake"
        assert device.info.arena_bytes == 96
        assert [tensor.dtype for tensor in device.info.outputs] == ["int8", "float32", "int32"]
        for count in range(1, 4):
            outputs, _ = device.run(inputs(SAMPLE))
            assert outputs[0] == expected_output(SAMPLE)
            assert math.isclose(struct.unpack("<f", outputs[1])[0], math.e, rel_tol=1e-6)
            assert struct.unpack("<i", outputs[2]) == (count,)
        device.reset()
        assert struct.unpack("<i", device.run(inputs(SAMPLE))[0][2]) == (1,)


def test_taps_stream_every_step(place: Place) -> None:
    with place.open() as device:
        for index, data in enumerate(inputs(SAMPLE)):
            device.load(index, data)
        taps = list(device.taps())
        assert [tap.step for tap in taps] == [0, 1]
        assert [tap.data for tap in taps] == [device.output(0), device.output(1)]


@pytest.mark.parametrize("name", QEMU)
def test_instructions_are_counted(build: Build, name: str) -> None:
    with build(name, taps=True).open() as device:
        resolution = 1e9 / device.info.timer_hz
        idle = device.run(inputs())[1].instructions
        assert idle is not None
        assert idle < 1000
        for turns in (1000, 60_000_000):
            counted = device.run(inputs(turns=turns))[1].instructions
            assert counted is not None
            assert abs(counted - idle - 2 * turns) <= 2 * resolution + 1


@pytest.mark.slow
@pytest.mark.qemu
def test_the_count_survives_wraps_of_the_timer(build: Build) -> None:
    turns = 400_000_000  # SysTick wraps after 671 million instructions
    with build("mps2-an386", taps=True).open() as device:
        counted = device.run(inputs(turns=turns))[1].instructions
    assert counted is not None
    assert abs(counted - 2 * turns) < 1000


@pytest.mark.parametrize("name", QEMU)
def test_the_stack_is_measured(build: Build, name: str) -> None:
    with build(name, taps=True).open() as device:
        shallow = device.run(inputs())[1].stack_bytes
        deep = device.run(inputs(mishap=DEEP_STACK))[1].stack_bytes
    assert shallow is not None
    assert deep is not None
    assert 0 < shallow < 300
    assert 1000 <= deep < 1300


@pytest.mark.parametrize("name", QEMU)
@pytest.mark.parametrize(
    ("mishap", "message"),
    [(UNDEFINED_INSTRUCTION, "faulted: fault 3 at 0x"), (ENDLESS_RECURSION, "stack overflow")],
)
def test_a_fault_is_reported(build: Build, name: str, mishap: int, message: str) -> None:
    with build(name, taps=True).open() as device, pytest.raises(DeviceError, match=message):
        device.run(inputs(mishap=mishap))


def test_a_crash_on_the_host_is_reported(build: Build) -> None:
    with (
        build("host", taps=True).open() as device,
        pytest.raises(DeviceError, match=f"fake.elf ended with signal {signal.SIGILL.value}"),
    ):
        device.run(inputs(mishap=UNDEFINED_INSTRUCTION))


def test_a_failed_inference_is_reported(place: Place) -> None:
    with place.open() as device:
        with pytest.raises(DeviceError, match="failed with status 3"):
            device.run(inputs(mishap=ABORT))
        assert device.run(inputs(SAMPLE))[0][0] == expected_output(SAMPLE)


def test_another_network_is_refused(build: Build) -> None:
    place = build("host", taps=True)
    with (
        pytest.raises(DeviceError, match="hash 0123456789abcdef, not fedcba9876543210"),
        boards.open_device(place.elf.path, "host", expected_hash="fedcba9876543210"),
    ):
        pass


# MLPerf Tiny's protocol


def test_the_benchmarks_transcript(place: Place) -> None:
    with place.open() as device:
        assert device.command("name") == ["m-name-dut-[smelt]"]
        assert device.command("profile") == [
            "m-profile-[ULPMark for tinyML Firmware V0.0.1]",
            "m-model-[fake]",
        ]
        assert device.command("db load 16") == ["m-[Expecting 16 bytes]"]
        assert device.command("db 000102030405060708090A0b0c0d0e") == []
        assert device.command("db 0f") == ["m-load-done"]
        assert device.command("db print") == [
            "m-buffer-00-01-02-03-04-05-06-07",
            "m-buffer-08-09-0a-0b-0c-0d-0e-0f",
        ]
        # The second input still asks for nothing; the first is destroyed and loaded anew.
        device.load(1, inputs()[1])
        lines = device.command("infer 1 0")
        assert lines[:3] == ["m-warmup-start-0", "m-warmup-done", "m-infer-start-1"]
        first, last = (int(line.removeprefix("m-lap-us-")) for line in lines[3:5])
        assert first <= last
        results = ",".join(["3.750"] * 16)  # (15 + 1 - zero point 1) * scale 0.25
        assert lines[5:] == ["m-infer-done", f"m-results-[{results}]"]
        assert device.command("results") == [f"m-results-[{results}]"]


def test_the_device_introduces_itself(build: Build) -> None:
    stream = ProcessStream(build("host", taps=True).elf.path)
    try:
        stream.send(b"timestamp%")
        text = b""
        while text.count(b"m-ready\r\n") < 2:
            text += stream.receive(5)
    finally:
        stream.close()
    banner, lap, _ = text.decode().split("m-ready\r\n")
    assert banner == "m-timestamp-mode-performance\r\nm-init-done\r\n"
    assert lap.startswith("m-lap-us-")


def test_images_come_as_unsigned_bytes(build: Build) -> None:
    with build("host", mlperf_model="vww01").open() as device:
        assert device.command("profile")[1] == "m-model-[vww01]"
        device.command("db load 16")
        assert device.command(f"db {bytes(range(128, 144)).hex()}") == ["m-load-done"]
        assert device.command("db print")[0] == "m-buffer-80-81-82-83-84-85-86-87"
        device.load(1, inputs()[1])
        assert device.command("infer 1 0")[-1] == f"m-results-[{','.join(['3.750'] * 16)}]"


def test_the_autoencoders_input_comes_as_floats(build: Build) -> None:
    values = [0.5 * (index + 3) for index in range(16)]  # quantized: index
    with build("host", mlperf_model="ad01").open() as device:
        device.command("db load 64")
        packed = struct.pack("<16f", *values)
        lines = [device.command(f"db {packed[i : i + 16].hex()}") for i in range(0, 64, 16)]
        assert lines == [[], [], [], ["m-load-done"]]
        device.load(1, inputs()[1])
        error = sum((3.75 - value) ** 2 for value in values) / 16
        assert device.command("infer 1 0")[-1] == f"m-results-[{error:.3f}]"


# What goes wrong on a line


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("", "e-[Unknown command: ]"),
        ("foo", "e-[Unknown command: foo]"),
        ("\x00\xff\x1b", "e-[Unknown command: ???]"),
        ("x" * 79, f"e-[Unknown command: {'x' * 79}]"),
        ("x" * 80, "e-[Command too long]"),
        ("x" * 5000, "e-[Command too long]"),
        ("names", "e-[Unknown command: names]"),
        ("smelt", "e-[Unknown command: smelt]"),
        ("smelt load", "e-[Usage: smelt load INDEX BYTES CRC]"),
        ("smelt load 0 16 xyz", "e-[Usage: smelt load INDEX BYTES CRC]"),
        ("smelt load 0 16 123456789", "e-[Usage: smelt load INDEX BYTES CRC]"),
        ("smelt load -1 16 0", "e-[Usage: smelt load INDEX BYTES CRC]"),
        ("smelt load 2 16 0", "e-[No such input]"),
        ("smelt load 4294967295 16 0", "e-[No such input]"),
        ("smelt load 4294967296 16 0", "e-[Usage: smelt load INDEX BYTES CRC]"),
        ("smelt load 0 17 0", "e-[Not the size of this input]"),
        ("smelt out 3", "e-[No such output]"),
        ("smelt out", "e-[Usage: smelt out INDEX]"),
        ("smelt taps", "e-[Built without SMELT_STEP_CALLBACK]"),
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
def test_a_wrong_command_is_answered(sanitized: ProcessStream, command: str, answer: str) -> None:
    assert ask(sanitized, command.encode("latin-1") + b"%") == [answer]


@pytest.fixture(scope="module")
def sanitized_place(build: Build) -> Place:
    return build("host", extra_cflags=SANITIZED, extra_ldflags=SANITIZED)


@pytest.fixture
def sanitized(sanitized_place: Place) -> Iterator[ProcessStream]:
    """The firmware under sanitizers, its greeting read."""
    stream = ProcessStream(sanitized_place.elf.path)
    assert ask(stream, b"")[-1] == "m-init-done"
    yield stream
    stream.close()


def ask(stream: Stream, data: bytes) -> list[str]:
    """The lines of the answer, before `m-ready`."""
    stream.send(data)
    text = b""
    while not text.endswith(b"m-ready\r\n"):
        received = stream.receive(10)
        assert received, text
        text += received
    return text.decode().split("\r\n")[:-2]


WORDS = st.sampled_from(
    b"smelt,load,length,out,invoke,last,taps,laps,reset,info,db,infer,print,results, ,%,0,1,16,00,"
    b"\r\n,4294967296".split(b",")
)


@settings(max_examples=100)
@given(st.lists(st.one_of(WORDS, st.binary(max_size=20)), max_size=30).map(b"".join))
def test_noise_neither_hangs_nor_overruns(sanitized_place: Place, noise: bytes) -> None:
    # "smelt load" that took hold would swallow the rest as its bytes: they are all sent.
    stream = ProcessStream(sanitized_place.elf.path)
    try:
        stream.send(noise + b"%" + bytes(16) + b"%" + bytes(16) + b"%smelt info%")
        text = b""
        while b"m-info-[output 2 int32 4]\r\nm-ready\r\n" not in text:
            received = stream.receive(10)
            assert received, text
            text += received
    finally:
        stream.close()


Spoil = Callable[[int, bytes], bytes]
"""Gets the number of a message, or of bytes before some that came, and the bytes."""


def unspoilt(number: int, data: bytes) -> bytes:
    del number
    return data


class FaultyStream:
    """Spoils some of what is sent, by message, or of what comes, byte by byte."""

    def __init__(self, device: Device, sent: Spoil = unspoilt, came: Spoil = unspoilt) -> None:
        """Stand between the device and its stream."""
        self._stream = device._stream  # pyright: ignore[reportPrivateUsage]
        device._stream = self  # pyright: ignore[reportPrivateUsage]
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
def test_a_bad_line_to_the_device_costs_time_only(
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
    """One inference, which must be the network's `count`-th: its last output is its state."""
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
def test_any_byte_may_be_bad_and_inferences_happen_once(
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


def test_a_spoilt_index_spoils_no_other_input(build: Build) -> None:
    """The command for input 1 arrives as one for input 0, which has taken a byte by then."""

    def redirect(number: int, data: bytes) -> bytes:
        del number
        if data.startswith(b"smelt load 1 ") and not done:
            done.append(data)
            size, crc = len(SAMPLE), crc32(inputs(SAMPLE)[1])
            return f"smelt load 0 {size} {crc:08x}%".encode()
        return data

    done: list[bytes] = []
    with build("host", extra_cflags=IMPATIENT).open() as device:
        FaultyStream(device, redirect)
        assert_computes(device, 1)
    assert done


def test_a_device_that_dies_while_it_computes(build: Build) -> None:
    with build("host", taps=False).open() as device:
        FaultyStream(device, came=lambda number, data: data if number < 60 else b"")
        device._timeout_s = 1  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(DeviceError, match="the device fell silent") as error:
            device.run(inputs(SAMPLE))
    assert error.value.kind == "DeviceError"


def test_steps_are_timed(build: Build) -> None:
    with build("host", taps=True).open() as device:
        for index, data in enumerate(inputs(SAMPLE, turns=100_000)):
            device.load(index, data)
        laps = device.laps()
        assert set(laps) == {0, 1}
        assert sum(laps.values()) > 0
        assert struct.unpack("<i", device.run(inputs(SAMPLE))[0][2]) == (2,)
    with (
        build("host", taps=False).open() as device,
        pytest.raises(DeviceError, match="cannot tell of single steps"),
    ):
        device.laps()


def test_a_device_that_starts_anew_is_noticed(build: Build) -> None:
    greeting = b"m-timestamp-mode-performance\r\nm-init-done\r\nm-ready\r\n"

    def interrupt(number: int, data: bytes) -> bytes:
        return greeting + data if number == 40 else data

    with build("host", taps=False).open() as device:
        FaultyStream(device, came=interrupt)
        with pytest.raises(DeviceError, match="started anew in the middle"):
            device.run(inputs(SAMPLE))


def test_another_count_of_inferences_means_another_start(build: Build) -> None:
    with build("host", taps=False).open() as device:
        device.run(inputs(SAMPLE))
        device._count = 7  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(DeviceError, match="started anew in the middle"):
            device.run(inputs(SAMPLE))


def test_a_line_that_stays_bad_is_given_up(build: Build) -> None:
    def spoil(_: int, data: bytes) -> bytes:
        return flip_a_bit(data, 0) if len(data) == 16 else data

    with build("host", taps=True).open() as device:
        FaultyStream(device, spoil)
        with pytest.raises(DeviceError, match="input 0, 16 bytes, cannot be loaded: CRC of what"):
            device.load(0, SAMPLE)


def test_a_wrong_size_is_refused_at_once(build: Build) -> None:
    with build("host", taps=True).open() as device:
        with pytest.raises(DeviceError, match="input 0 has 16 bytes, not 3"):
            device.load(0, bytes(3))
        with pytest.raises(DeviceError, match="the network has no output 7; it has 3"):
            device.output(7)
        assert device.retries == 0


# Building


@pytest.mark.parametrize("name", QEMU)
def test_flash_of_the_network_leaves_the_firmware_out(build: Build, name: str) -> None:
    place = build(name, taps=False)
    full = place.elf
    smaller = build(name, taps=False, db=False).elf
    assert smaller.sections[".bss"] < full.sections[".bss"]
    assert smaller.flash_network == full.flash_network
    network = full.flash_network
    assert network.rodata >= 16  # the weights
    assert 200 < network.text < full.flash_elf / 2
    nm = f"{place.platform.target.cross}nm"
    text = subprocess.run(
        [nm, "-S", str(full.path)], capture_output=True, text=True, check=True
    ).stdout
    sizes = {
        line.split()[3]: int(line.split()[1], 16)
        for line in text.splitlines()
        if line.count(" ") == 3
    }
    named = [name for name in sizes if name.startswith("fake_") or name in ("memset", "expf")]
    assert network.total >= sum(sizes[name] for name in named)


@pytest.mark.qemu
def test_what_does_not_fit_is_said_with_numbers(build: Build) -> None:
    with pytest.raises(DoesNotFit, match=r"memory 'ram' of microbit: .* 16,384 are there") as error:
        build("microbit", extra_cflags="-DFAKE_ARENA_BYTES=20000")
    assert error.value.available == 16384
    assert error.value.needed > 22000


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "make").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    platform = boards.load("mps2-an386").platform()
    with pytest.raises(ToolError, match=r"'arm-none-eabi-gcc' is not installed.*apt-get install"):
        boards.compile_project(tmp_path, platform)


def test_the_compilers_complaint_is_shown(build: Build) -> None:
    with pytest.raises(ToolError, match=r"(?s)make in .* failed:.*nonsense"):
        build("host", extra_cflags="-include nonsense.h")


@pytest.mark.parametrize("name", ["host", *QEMU])
def test_cmake_builds_the_same(tmp_path: Path, name: str) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("not on PATH: cmake")
    board_name, _, target = name.partition(":")
    board = None if name == "host" else boards.load(board_name)
    if board is not None:
        simulable(board)
    write_project(tmp_path, HOST if board is None else board.platform(target or None))
    for arguments in (["-B", "build"], ["--build", "build"]):
        result = subprocess.run(
            ["cmake", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
    on = "host" if board is None else "qemu"
    with boards.open_device(tmp_path / "build/fake.elf", on, board) as device:
        assert device.run(inputs(SAMPLE))[0][0] == expected_output(SAMPLE)


@pytest.mark.qemu
@pytest.mark.parametrize("target", ["cortex-m33", "cortex-m7"])
def test_a_target_alone_gives_a_library(tmp_path: Path, target: str) -> None:
    write_project(tmp_path, library(get(target)))
    result = subprocess.run(["make"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "build/libfake.a").stat().st_size > 0


@pytest.mark.qemu
@pytest.mark.parametrize("optimize", ["size", "ram"])
def test_small_code_works_too(tmp_path: Path, optimize: str) -> None:
    board = boards.load("microbit")
    assert optimize in ("size", "ram")
    write_project(tmp_path, board.platform(), "size" if optimize == "size" else "ram")
    elf = boards.compile_project(tmp_path, board.platform())
    with boards.open_device(elf.path, "qemu", board) as device:
        assert device.run(inputs(SAMPLE))[0][0] == expected_output(SAMPLE)


def test_another_compiler_finds_nothing_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("clang") is None:
        pytest.skip("not on PATH: clang")
    monkeypatch.setenv("CC", "clang")
    write_project(tmp_path, HOST)
    boards.compile_project(tmp_path, HOST, taps=True)


# Simulating


def test_devices_that_cannot_be(build: Build, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="--on qemu needs a --board"),
        boards.open_device(tmp_path / "x.elf", "qemu"),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="not of the form socket://HOST:PORT"),
        boards.open_device(None, "socket://here"),
    ):
        pass
    with (
        pytest.raises(DeviceError, match="cannot open port /dev/none"),
        boards.open_device(None, "/dev/none"),
    ):
        pass


@pytest.mark.qemu
def test_qemus_own_words_are_shown(tmp_path: Path) -> None:
    elf = tmp_path / "broken.elf"
    elf.write_bytes(b"no ELF")
    board = boards.load("mps2-an386")
    assert board.qemu is not None
    broken = board.model_copy(update={"qemu": board.qemu.model_copy(update={"machine": "nil"})})
    with (
        pytest.raises(DeviceError, match=r"QEMU ended \(mps2-an386\)\n.*unsupported machine"),
        boards.open_device(elf, "qemu", broken),
    ):
        pass


@pytest.mark.qemu
def test_the_uart_is_a_socket_that_pyserial_opens(build: Build) -> None:
    place = build("mps2-an386", taps=True)
    assert place.board is not None
    with (
        Simulator(place.board, place.elf.path) as simulator,
        serial.serial_for_url(simulator.port, timeout=20) as port,
    ):
        port.write(b"name%")
        text = port.read_until(b"m-name-dut-[smelt]\r\nm-ready\r\n")
    assert text.startswith(b"m-timestamp-mode-performance\r\n")


@pytest.mark.qemu
def test_qemu_does_not_outlive_us(build: Build, tmp_path: Path) -> None:
    place = build("mps2-an386", taps=True)
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from smelt import boards\n"
        "with boards.open_device(Path(sys.argv[1]), 'qemu', boards.load('mps2-an386')):\n"
        "    print('open', flush=True)\n"
        "    time.sleep(60)\n"
    )
    elf = shutil.copy(place.elf.path, tmp_path / "mortal.elf")
    root = str(Path(__file__).parent.parent)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(elf)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": root},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        assert running(str(elf))
        process.kill()
    deadline = time.monotonic() + 10
    while running(str(elf)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(str(elf))


def running(argument: str) -> bool:
    """Whether a QEMU has this argument."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[0].endswith(b"qemu-system-arm") and argument.encode() in arguments:
            return True
    return False

"""The firmware with a hand-written network, end to end, on the host and all QEMU boards."""

import math
import re
import signal
import struct
import sys
from pathlib import Path

import pytest

from smelt import boards
from smelt.api.compile import compile_model
from smelt.boards.stream import ProcessStream
from smelt.codegen.emit.firmware import MlperfProtocol
from smelt.codegen.text.render import text_of
from smelt.errors import ConfigError, DeviceError
from smelt.proof.run import run
from smelt.samples import random_samples
from tests.support.fake_project import (
    ABORT,
    DEEP_STACK,
    ENDLESS_RECURSION,
    UNDEFINED_INSTRUCTION,
    expected_output,
    inputs,
)
from tests.support.tflite_networks import DIGITS
from tests.support.wire_tools import MLPERF, QEMU, SAMPLE, Build, Place, builder


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return builder(tmp_path_factory)


@pytest.fixture(params=["host", *QEMU])
def place(request: pytest.FixtureRequest, build: Build) -> Place:
    return build(request.param, trace=True)


@pytest.mark.quick(place=("host", "mps2-an386", "sifive_e"))
def test_inferences_return_the_outputs_of_the_network(place: Place) -> None:
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


def test_every_step_is_traced(place: Place) -> None:
    with place.open() as device:
        for index, data in enumerate(inputs(SAMPLE)):
            device.load(index, data)
        traced = list(device.trace())
        assert [output.step for output in traced] == [0, 1]
        assert [output.data for output in traced] == [device.output(0), device.output(1)]


@pytest.mark.quick(name=("mps2-an386", "sifive_e"))
@pytest.mark.parametrize("name", QEMU)
def test_instructions_are_counted(build: Build, name: str) -> None:
    with build(name, trace=True).open() as device:
        resolution = 1e9 / device.info.timer_hz
        idle = device.run(inputs())[1].instructions
        assert idle is not None
        assert idle < 1000
        for iterations in (1000, 60_000_000):
            counted = device.run(inputs(iterations=iterations))[1].instructions
            assert counted is not None
            assert abs(counted - idle - 2 * iterations) <= 2 * resolution + 1


@pytest.mark.quick(name=("mps2-an386", "microbit"))
@pytest.mark.parametrize("name", QEMU)
def test_equal_inferences_take_equal_ticks(build: Build, name: str) -> None:
    with build(name, trace=True).open() as device:
        assert len({device.run(inputs(iterations=1000))[1].ticks for _ in range(10)}) == 1


@pytest.mark.slow
@pytest.mark.qemu
def test_instructions_are_counted_across_wraps_of_the_timer(build: Build) -> None:
    iterations = 400_000_000  # SysTick wraps after 671 million instructions
    with build("mps2-an386", trace=True).open() as device:
        counted = device.run(inputs(iterations=iterations))[1].instructions
    assert counted is not None
    assert abs(counted - 2 * iterations) < 1000


@pytest.mark.quick(name=("mps2-an386", "sifive_e"))
@pytest.mark.parametrize("name", QEMU)
def test_the_used_stack_is_measured(build: Build, name: str) -> None:
    with build(name, trace=True).open() as device:
        shallow = device.run(inputs())[1].stack_bytes
        deep = device.run(inputs(mishap=DEEP_STACK))[1].stack_bytes
    assert shallow is not None
    assert deep is not None
    assert 0 < shallow < 300
    assert 1000 <= deep < 1300


@pytest.mark.quick(name=("mps2-an386", "mps2-an385:cortex-m0", "sifive_e"))
@pytest.mark.parametrize("name", QEMU)
@pytest.mark.parametrize(
    ("mishap", "message"),
    [(UNDEFINED_INSTRUCTION, "faulted: fault 3 at 0x"), (ENDLESS_RECURSION, "stack overflow")],
)
def test_a_fault_is_reported(build: Build, name: str, mishap: int, message: str) -> None:
    with build(name, trace=True).open() as device, pytest.raises(DeviceError, match=message):
        device.run(inputs(mishap=mishap))


def test_a_crash_on_the_host_is_reported(build: Build) -> None:
    with (
        build("host", trace=True).open() as device,
        pytest.raises(DeviceError, match=f"fake.elf ended with signal {signal.SIGILL.value}"),
    ):
        device.run(inputs(mishap=UNDEFINED_INSTRUCTION))


def test_a_program_that_cannot_start_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the missing program, or the missing folder for temporary files."""
    with pytest.raises(DeviceError, match="none cannot be executed: No such file or directory"):
        ProcessStream(tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    artifact = compile_model(DIGITS / "digits_int8.tflite")
    for begin in (
        lambda: ProcessStream(Path(sys.executable)),
        lambda: run(artifact, random_samples(artifact.graph, 1, 0)),
    ):
        with pytest.raises(
            ConfigError, match=r"cannot create a temporary folder: .*absent.*; set TMPDIR to"
        ):
            begin()


def test_a_failed_inference_is_reported(place: Place) -> None:
    with place.open() as device:
        with pytest.raises(DeviceError, match="failed with status 3"):
            device.run(inputs(mishap=ABORT))
        assert device.run(inputs(SAMPLE))[0][0] == expected_output(SAMPLE)


def test_another_network_is_refused(build: Build) -> None:
    place = build("host", trace=True)
    with (
        pytest.raises(DeviceError, match="hash 0123456789abcdef, not fedcba9876543210"),
        boards.open_device(place.elf.path, "host", expected_hash="fedcba9876543210"),
    ):
        pass


def test_steps_are_timed(build: Build) -> None:
    with build("host", trace=True).open() as device:
        for index, data in enumerate(inputs(SAMPLE, iterations=100_000)):
            device.load(index, data)
        ticks = device.step_ticks()
        assert set(ticks) == {0, 1}
        assert sum(ticks.values()) > 0
        assert struct.unpack("<i", device.run(inputs(SAMPLE))[0][2]) == (2,)
    with (
        build("host", trace=False).open() as device,
        pytest.raises(DeviceError, match="cannot report single steps"),
    ):
        device.step_ticks()


# MLPerf Tiny's protocol


@pytest.mark.parametrize("name", ["host", *QEMU])
def test_the_commands_of_mlperf_tiny_are_answered(build: Build, name: str) -> None:
    with build(name, MLPERF).open() as device:
        assert device.command("name") == ["m-name-dut-[smelt]"]
        assert device.command("profile") == [
            "m-profile-[ULPMark for tinyML Firmware V0.0.1]",
            "m-model-[kws01]",
        ]
        assert device.command("db load 16") == ["m-[Expecting 16 bytes]"]
        assert device.command("db 000102030405060708090A0b0c0d0e") == []
        assert device.command("db 0f") == ["m-load-done"]
        assert device.command("db print") == [
            "m-buffer-00-01-02-03-04-05-06-07",
            "m-buffer-08-09-0a-0b-0c-0d-0e-0f",
        ]
        # `db` sets only the first input; `infer` restores it after it was overwritten.
        device.load(1, inputs()[1])
        lines = device.command("infer 1 0")
        assert lines[:3] == ["m-warmup-start-0", "m-warmup-done", "m-infer-start-1"]
        first, last = (int(line.removeprefix("m-lap-us-")) for line in lines[3:5])
        assert first <= last
        results = ",".join(["3.750"] * 16)  # (15 + 1 - zero point 1) * scale 0.25
        assert lines[5:] == ["m-infer-done", f"m-results-[{results}]"]
        assert device.command("results") == [f"m-results-[{results}]"]


def test_the_device_greets_at_start(build: Build) -> None:
    stream = ProcessStream(build("host", MLPERF).elf.path)
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


def test_firmware_without_benchmark_has_no_benchmark_commands(build: Build) -> None:
    with build("host", trace=True).open() as device:
        for command in ("name", "db load 16", "infer 1"):
            assert device.command(command) == [f"e-[Unknown command: {command}]"]
    with build("host", MLPERF).open() as device:
        benchmark, own = device.command("help")
        assert benchmark.startswith("name, profile, timestamp, ")
        assert own.startswith("smelt info, ")


def test_help_lists_the_commands_that_the_header_describes(build: Build) -> None:
    with build("host", trace=True).open() as device:
        (commands,) = device.command("help")
    header = text_of("emit/project/wire.h")
    described = set(re.findall(r"^ \*   ((?:smelt )?\w+).*%", header, re.MULTILINE))
    listed = set(re.findall(r"(?:smelt )?[a-z]+", re.sub(r" [A-Z]+", "", commands)))
    assert listed == described - {"smelt network"}


def test_images_come_as_unsigned_bytes(build: Build) -> None:
    with build("host", MlperfProtocol("vww01", "unsigned", quantizes=False)).open() as device:
        assert device.command("profile")[1] == "m-model-[vww01]"
        device.command("db load 16")
        assert device.command(f"db {bytes(range(128, 144)).hex()}") == ["m-load-done"]
        assert device.command("db print")[0] == "m-buffer-80-81-82-83-84-85-86-87"
        device.load(1, inputs()[1])
        assert device.command("infer 1 0")[-1] == f"m-results-[{','.join(['3.750'] * 16)}]"


def test_the_autoencoders_input_comes_as_floats(build: Build) -> None:
    values = [0.5 * (index + 3) for index in range(16)]  # quantized: index
    with build("host", MlperfProtocol("ad01", "float", quantizes=True)).open() as device:
        device.command("db load 64")
        packed = struct.pack("<16f", *values)
        lines = [device.command(f"db {packed[i : i + 16].hex()}") for i in range(0, 64, 16)]
        assert lines == [[], [], [], ["m-load-done"]]
        device.load(1, inputs()[1])
        error = sum((3.75 - value) ** 2 for value in values) / 16
        assert device.command("infer 1 0")[-1] == f"m-results-[{error:.3f}]"

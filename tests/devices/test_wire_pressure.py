"""The wire under stress: commands while the firmware is busy, bad lines, programs that hang."""

from __future__ import annotations

import os
import random
import signal
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.boards import Device, compile_project, open_device
from smelt.boards.board import load
from smelt.boards.simulate import Simulator
from smelt.boards.stream import ProcessStream, SocketStream, Stream
from smelt.errors import DeviceError
from smelt.ir import DType, Graph, Node, Origin, TensorType, Value, verify
from smelt.ops.core.unary import Unary
from tests.support.board_tools import simulable
from tests.support.graphs import compile_graph
from tests.support.shared import shared
from tests.support.tflite_networks import DIGITS

BOARDS = (
    *("mps2-an385", "mps2-an505", "mps3-an547", "microbit"),
    *("netduinoplus2", "lm3s6965evb", "virt-riscv32", "sifive_e"),
)
"""At least one board for each UART driver that QEMU simulates."""
COMMANDS = 40
"""Number of commands sent during an inference: far more bytes than the firmware's queue has."""


def slow_network() -> Graph:
    values = [Value(f"v{i}", TensorType((1000,), DType.FLOAT32)) for i in range(31)]
    nodes = [
        Node(Unary("logistic"), (x,), (y,), Origin("LOGISTIC", i))
        for i, (x, y) in enumerate(pairwise(values))
    ]
    return verify(Graph("net", (values[0],), (values[-1],), tuple(nodes)), "test")


@pytest.mark.quick(every=2)
@pytest.mark.qemu
@pytest.mark.parametrize("board", BOARDS)
def test_nothing_is_lost_during_an_inference(board: str, tmp_path: Path) -> None:
    simulable(load(board))
    artifact = compile_graph(slow_network(), Options(board=board))
    artifact.write(tmp_path / "project")
    elf = compile_project(tmp_path / "project", artifact.platform)
    data = np.zeros(1000, np.float32).tobytes()
    command = b"smelt load 0 0 %d %08x" % (len(data), crc32(data))
    sent = b"%s %08x%%" % (command, crc32(command)) + data
    sent += b"smelt invoke%" + COMMANDS * b"smelt reset%"
    with Simulator(load(board), elf.path) as simulator:
        stream = SocketStream(simulator.port)
        try:
            answer = b""
            while b"m-ready" not in answer and (more := stream.receive(60)):
                answer += more  # a UART receives nothing before it is turned on
            stream.send(sent)
            while answer.count(b"m-reset-done") < COMMANDS and (more := stream.receive(60)):
                answer += more
        finally:
            stream.close()
    assert answer.count(b"m-load-done") == 1, answer
    assert answer.count(b"m-invoke-[") == 1, answer
    assert answer.count(b"m-reset-done") == COMMANDS, answer


class SpoilingStream:
    """A stream that drops, doubles or flips a bit of one byte in `one_in`, in both directions."""

    def __init__(self, stream: Stream, one_in: int, seed: int) -> None:
        """Wrap `stream`."""
        self._stream, self._one_in, self._random = stream, one_in, random.Random(seed)
        self.damaged = 0

    def send(self, data: bytes) -> None:
        self._stream.send(self._spoil(data))

    def receive(self, timeout_s: float) -> bytes:
        data = self._stream.receive(timeout_s)
        return self._spoil(data) or data[:1]  # an empty result would mean a timeout

    def close(self) -> None:
        self._stream.close()

    def _spoil(self, data: bytes) -> bytes:
        damaged = bytearray()
        for byte in data:
            if self._random.randrange(self._one_in):
                damaged.append(byte)
                continue
            self.damaged += 1
            flipped = byte ^ 1 << self._random.randrange(8)
            damaged += self._random.choice((b"", bytes([byte, byte]), bytes([flipped])))
        return bytes(damaged)


def image(count: int) -> bytes:
    return np.random.default_rng(6).integers(0, 256, count, np.uint8).tobytes()


def spoiling(device: Device) -> SpoilingStream:
    """Damage one byte in 300 of the device's line from now on."""
    line = device._line  # pyright: ignore[reportPrivateUsage]
    line.stream = stream = SpoilingStream(line.stream, 300, seed=6)
    return stream


@pytest.mark.quick(on=("host",))
@pytest.mark.parametrize("on", ["host", pytest.param("qemu", marks=pytest.mark.qemu)])
def test_a_large_input_is_transferred_over_a_bad_line(on: str, tmp_path: Path) -> None:
    board = None if on == "host" else load("mps2-an386")
    if board is not None:
        simulable(board)
    model = shared("models/mlperf_tiny/vww_int8.tflite")
    artifact = compile_model(model, Options(board="host" if on == "host" else "mps2-an386"))
    artifact.write(tmp_path)
    elf = compile_project(tmp_path, artifact.platform).path
    data = image(27_648)
    with open_device(elf, on, board) as device:
        expected, _ = device.run([data])
        assert device.retries == 0
        stream = spoiling(device)
        assert device.run([data])[0] == expected
    assert stream.damaged > len(data) // 300
    assert device.retries > 50


def test_outputs_of_layers_are_transferred_over_a_bad_line(tmp_path: Path) -> None:
    artifact = compile_model(DIGITS / "digits_int8.tflite", Options(board="host"))
    artifact.write(tmp_path)
    elf = compile_project(tmp_path, artifact.platform, trace=True).path
    data = image(artifact.graph.inputs[0].type.size)
    with open_device(elf, "host") as device:
        device.load(0, data)
        expected = list(device.trace())
        assert sum(len(traced.data) for traced in expected) > 3000
        stream = spoiling(device)
        device.load(0, data)
        assert list(device.trace()) == expected
        device.load(0, data)
        assert set(device.step_ticks()) == {traced.step for traced in expected}
    assert stream.damaged > 20
    assert device.retries > 10


def test_a_program_gets_time_to_end(tmp_path: Path) -> None:
    """For example, a GPU's driver writes its cache after the last reply."""
    last = f"cat; exec 1>&-; head -c 300000 /dev/zero >&2; sleep 0.5; echo whole > {tmp_path}/left"
    script(tmp_path / "program", last)
    ProcessStream(tmp_path / "program").close()
    assert (tmp_path / "left").read_text() == "whole\n"


def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    script(tmp_path / "program", f"echo $$ > {tmp_path / 'id'}; exec sleep 60")
    stream = ProcessStream(tmp_path / "program")
    stream.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "id").read_text()), 0)


def test_a_running_child_of_a_program_does_not_block_close(tmp_path: Path) -> None:
    script(tmp_path / "program", f"sleep 600 & echo $! > {tmp_path / 'id'}; cat")
    ProcessStream(tmp_path / "program").close()
    os.kill(int((tmp_path / "id").read_text()), signal.SIGKILL)  # it still ran


def test_a_running_program_that_closed_its_output_is_reported(tmp_path: Path) -> None:
    """The error shows the end of its output."""
    script(tmp_path / "program", "head -c 300000 /dev/zero | tr '\\0' x >&2; exec sleep 30 >&-")
    stream = ProcessStream(tmp_path / "program")
    try:
        with pytest.raises(DeviceError) as told:
            stream.receive(30)
    finally:
        stream.close()
    text = str(told.value)
    assert text.startswith("program closed its input or output but is still running:\nxxx")
    assert len(text) < 100_000


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)

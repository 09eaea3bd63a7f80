"""Timeouts of simulated boards count only the time in which the simulator could run."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smelt import boards
from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.boards import session
from smelt.boards.flash import FlashOptions, runners
from smelt.boards.simulate import Simulator
from smelt.boards.simulation_timeout import Pace, pace_of
from smelt.errors import DeviceError, ToolError
from smelt.proof.rig import built, connected
from smelt.proof.run import device_inputs
from smelt.samples import random_samples
from tests.support.board_tools import simulable
from tests.support.projects import digits

LIMIT_S = 0.5
"""Timeout for a silent device."""
START_S = 300.0
"""Timeout of QEMU's start; a busy computer needs long."""
PATIENCE_S = 10.0
"""Timeout while QEMU is stopped for longer; on a busy computer, GDB takes seconds."""

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc"),
]


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    board = boards.load("mps2-an386")
    simulable(board)
    return digits(Options(board=board.name))


def process_of(port: str) -> int:
    """Return the number of QEMU's process; wait until the shell that starts QEMU has done so."""
    pace = Pace(port)
    deadline = time.monotonic() + START_S
    while pace._process is None:
        assert time.monotonic() < deadline, f"no QEMU serves {port}"
        pace.counted_seconds(1)
        time.sleep(0.01)
    return int(pace._process.name)


@contextmanager
def stopped(port: str, seconds: float = 2 * PATIENCE_S) -> Generator[None]:
    """Stop the process that serves the port, and continue it after some seconds."""
    number = process_of(port)
    os.kill(number, signal.SIGSTOP)
    timer = threading.Timer(seconds, os.kill, (number, signal.SIGCONT))
    timer.start()
    try:
        yield
    finally:
        timer.join()


@pytest.mark.thorough
@pytest.mark.parametrize("pty", [False, True], ids=["socket", "pty"])
def test_a_stopped_device_does_not_time_out(
    artifact: Artifact, pty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_SOCKET_S", PATIENCE_S)
    monkeypatch.setattr(session, "_PORT_S", PATIENCE_S)
    (sample,) = random_samples(artifact.graph, 1, 0)
    assert artifact.board is not None
    with (
        built(artifact) as elf,
        Simulator(artifact.board, elf.path, pty=pty) as simulator,
        stopped(simulator.port),
        connected(elf, artifact, simulator.port) as device,
        stopped(simulator.port),
    ):
        device.run(device_inputs(artifact.graph, sample))


@pytest.mark.thorough
def test_a_stopped_gdb_server_does_not_time_out(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("gdb-multiarch") is None:
        pytest.skip("not on PATH: gdb-multiarch")
    monkeypatch.setattr(runners, "_SILENCE_S", PATIENCE_S)
    assert artifact.board is not None
    with built(artifact) as elf, Simulator(artifact.board, None) as simulator:
        assert simulator.gdb is not None
        said: list[str] = []
        with stopped(simulator.gdb):
            FlashOptions(server=simulator.gdb).flash(elf.path, artifact.board, said.append)
    assert any("matched" in line for line in said)


def test_a_silent_device_times_out(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated board waits for GDB, so it uses no processor time although it could."""
    monkeypatch.setattr(session, "_SOCKET_S", LIMIT_S)
    assert artifact.board is not None
    with (
        Simulator(artifact.board, None) as simulator,
        pytest.raises(DeviceError, match=f"no response from the device in {LIMIT_S:g} s"),
        boards.open_device(None, simulator.port, artifact.board),
    ):
        pass


def test_ports_without_simulator_use_real_time() -> None:
    for port in ("/dev/ttyACM0", "COM5", "socket://example.org:1", "socket://nowhere"):
        assert pace_of(port) is None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = f"socket://127.0.0.1:{listener.getsockname()[1]}"
        pace = pace_of(port)
        assert pace is not None
        assert pace.counted_seconds(3.5) == 3.5


def test_time_in_which_the_simulator_is_stopped_does_not_count(artifact: Artifact) -> None:
    assert artifact.board is not None
    with Simulator(artifact.board, None) as simulator:
        pace = pace_of(simulator.port)
        assert pace is not None
        number = process_of(simulator.port)
        os.kill(number, signal.SIGSTOP)
        while "T" not in Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]:
            time.sleep(0.01)
        pace.counted_seconds(1000.0)
        assert pace.counted_seconds(1000.0) == 0.0
        os.kill(number, signal.SIGCONT)


def test_a_silent_gdb_server_is_named(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("gdb-multiarch") is None:
        pytest.skip("not on PATH: gdb-multiarch")
    monkeypatch.setattr(runners, "_SILENCE_S", LIMIT_S)
    assert artifact.board is not None
    said: list[str] = []
    with built(artifact) as elf, socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        message = f"the GDB server at {server} has not responded for {LIMIT_S:g} s"
        with pytest.raises(ToolError, match=message):
            FlashOptions(server=server).flash(elf.path, artifact.board, said.append)
    assert said[-1] == f"asking the GDB server at {server}"

"""Ports over a network: RFC 2217 servers and slow terminal servers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from smelt import boards
from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.boards import open_device, session
from smelt.boards.ports import open_port
from smelt.boards.simulate import Simulator
from smelt.errors import DeviceError, VerifyError
from smelt.proof.deploy import time_layers
from smelt.proof.rig import Rig, built
from smelt.proof.run import device_inputs
from smelt.proof.verify import verify_model
from smelt.samples import random_samples
from tests.proof.test_verify import with_wrong_weights
from tests.support.board_tools import simulable
from tests.support.cli_runner import Smelt, runner
from tests.support.port_tools import rfc2217, slowed
from tests.support.projects import digits
from tests.support.shared import shared
from tests.support.tflite_networks import DIGITS

MODEL = DIGITS / "digits_int8.tflite"
BOARD = "mps2-an386"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:serial")  # pyserial's own


@pytest.fixture
def smelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


@contextmanager
def running(artifact: Artifact) -> Generator[Simulator]:
    """Start a simulated board with firmware that reports single steps."""
    assert artifact.board is not None
    simulable(artifact.board)
    with built(artifact, trace=True) as elf, Simulator(artifact.board, elf.path) as board:
        yield board


@pytest.mark.qemu
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
@pytest.mark.parametrize("problem", [None, PermissionError, ValueError])
def test_a_simulator_uses_one_core(
    problem: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own cores do not change; if setting them is forbidden, the simulator uses the same."""
    board, before, started = boards.load(BOARD), os.sched_getaffinity(0), list[set[int]]()
    simulable(board)
    popen = subprocess.Popen[bytes]

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = popen(*args, **options)
        started.append(os.sched_getaffinity(process.pid))
        return process

    def refuse(*_: object) -> None:
        assert problem is not None
        raise problem

    monkeypatch.setattr(subprocess, "Popen", start)
    if problem is not None:
        monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with Simulator(board, None):
        assert os.sched_getaffinity(0) == before
    (its,) = started
    assert its == before if problem else (len(its) == 1 and its <= before)


@pytest.mark.thorough
@pytest.mark.qemu
def test_verify_and_profile_work_through_an_rfc_2217_server(smelt: Smelt) -> None:
    with running(digits(Options(board=BOARD))) as simulator:
        port = f"rfc2217://{rfc2217(simulator.port).address}"
        verify = ("verify", MODEL, "--board", BOARD, "--on", port, "--samples", "3")
        done = smelt(*verify)
        assert (done.code, done.out) == (1, "")
        assert "the device reports other memory regions than this build has" in done.err
        done = smelt(*verify, "--any-build", "--json", "a.json")
        assert done.code == 0, done.err
        assert "memory was not compared (--any-build)" in done.out
        layers = smelt("profile", MODEL, "--board", BOARD, "--on", port, "--json").json["layers"]
        farm = ("verify", MODEL, "--boards", f"{BOARD}={port}", "--samples", "1")
        assert "it is damaged" in smelt(*farm).err
        assert smelt(*farm, "--any-build").code == 0
    memory = json.loads(Path("a.json").read_text())["verification"]["memory"]
    assert memory["bytes"] == 0
    assert memory["why_not"] in done.out
    assert all(layer["seconds"] > 0 for layer in layers)


@pytest.mark.thorough
@pytest.mark.qemu
@pytest.mark.parametrize("bytes_per_s", [pytest.param(11_520, marks=pytest.mark.slow), 3000])
def test_layers_are_timed_and_compared_over_a_slow_line(bytes_per_s: int) -> None:
    """3000 bytes/s are slower than the baud rate, as behind a terminal server."""
    model = shared("models/mlperf_tiny/sww_int8.tflite")
    artifact = compile_model(model, Options(board=BOARD))
    (sample,) = random_samples(artifact.graph, 1, 0)
    with running(artifact) as simulator:
        rig = Rig(f"socket://{slowed(simulator.port, bytes_per_s).address}")
        assert verify_model(artifact, [sample], rig, any_build=True).samples == 1
        layers = time_layers(artifact, sample, rig)["layers"]
    assert all(layer["seconds"] > 0 for layer in layers)
    wrong = with_wrong_weights(digits(Options(board=BOARD)), 2)
    with running(wrong) as simulator:
        rig = Rig(f"socket://{slowed(simulator.port, bytes_per_s).address}")
        with pytest.raises(VerifyError, match="First layer that differs: step 2"):
            verify_model(wrong, random_samples(wrong.graph, 1, 0), rig, any_build=True)


@pytest.mark.qemu
def test_slow_lines_get_smaller_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that takes longer than the timeout to arrive must not cause one."""
    monkeypatch.setattr(session, "_SOCKET_S", 2)
    artifact = compile_model(shared("models/mlperf_tiny/ic_int8.tflite"), Options(board=BOARD))
    (sample,) = random_samples(artifact.graph, 1, 0)
    assert sample[0].nbytes > 3 * 960
    board = artifact.board
    assert board is not None
    slow = board.model_copy(update={"uart": board.uart.model_copy(update={"baud": 9600})})
    with running(artifact) as simulator:
        port = f"socket://{slowed(simulator.port, 960).address}"
        with open_device(None, port, slow) as device:
            device.run(device_inputs(artifact.graph, sample))
            assert device.retries == 0


def test_a_server_without_rfc_2217_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = f"rfc2217://127.0.0.1:{listener.getsockname()[1]}?timeout=0.5"
        with pytest.raises(DeviceError, match=r"cannot open port rfc2217://.*RFC2217"):
            open_port(port)
    with pytest.raises(DeviceError, match=r"cannot open port rfc2217://"):
        open_port(port)


@pytest.mark.parametrize(
    "error", [NotImplementedError("no such setting"), OSError("gone"), TypeError("closed")]
)
def test_exceptions_of_pyserial_become_device_errors(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    stream = open_port("loop://")
    with monkeypatch.context() as patch:
        patch.setattr("serial.urlhandler.protocol_loop.Serial.write", fail)
        patch.setattr("serial.urlhandler.protocol_loop.Serial.read", fail)
        with pytest.raises(DeviceError, match=f"serial port loop://: {error}"):
            stream.send(b"x")
        with pytest.raises(DeviceError, match=f"serial port loop://: {error}"):
            stream.receive(0)
    stream.close()
    monkeypatch.setattr("serial.urlhandler.protocol_loop.Serial.open", fail)
    with pytest.raises(DeviceError, match=f"cannot open port loop://: {error}"):
        open_port("loop://")

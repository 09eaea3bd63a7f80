"""Deploying: flash, verify and measure, on boards simulated by QEMU."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import serial

from smelt import boards
from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.boards import Device, ElfInfo, device_info, session
from smelt.boards.device_info import DeviceInfo
from smelt.boards.energy_meter import Meter
from smelt.boards.flash import FlashOptions
from smelt.boards.simulate import Simulator
from smelt.errors import ConfigError, DeviceError, DoesNotFit, ToolError, VerifyError
from smelt.frontend import Imported
from smelt.proof.deploy import VirtualRig, flashing_rig, time_layers
from smelt.proof.rig import Rig, built
from smelt.proof.run import run
from smelt.proof.verify import verify_model
from smelt.samples import random_samples
from tests.devices.test_wire_line import FaultyStream, flip_a_bit
from tests.proof.test_verify import with_wrong_weights
from tests.support.board_tools import simulable
from tests.support.cli_runner import Smelt, runner
from tests.support.projects import counter, digits
from tests.support.shared import Network
from tests.support.tflite_networks import DIGITS

pytestmark = pytest.mark.qemu

MODEL = DIGITS / "digits_int8.tflite"
BOARD = "mps2-an386"
SIMULATED = tuple(name for name in boards.available() if boards.load(name).qemu is not None)


@pytest.fixture
def smelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


def require_flashing(name: str) -> None:
    """Skip the test if the board's compiler, simulator or GDB is missing."""
    board = boards.load(name)
    simulable(board)
    others = {"cortexm": "arm-none-eabi-gdb", "riscv": "riscv64-unknown-elf-gdb"}
    if not any(map(shutil.which, ("gdb-multiarch", others[board.startup]))):
        pytest.skip(f"not on PATH: gdb-multiarch or {others[board.startup]}")


def artifact_for(name: str) -> Artifact:
    return digits(Options(board=name))


@contextmanager
def running(artifact: Artifact, *, pty: bool = False, trace: bool = False) -> Generator[Simulator]:
    """Start a simulated board that executes the firmware."""
    assert artifact.board is not None
    with built(artifact, trace=trace) as elf, Simulator(artifact.board, elf.path, pty=pty) as board:
        yield board


# Flash, verify and measure


@pytest.mark.quick(name=("mps2-an386", "sifive_e"), pty=(False,))
@pytest.mark.parametrize("pty", [False, True], ids=["socket", "pty"])
@pytest.mark.parametrize("name", SIMULATED)
def test_digits_is_bit_exact_on_every_simulated_board(name: str, pty: bool) -> None:
    require_flashing(name)
    artifact = artifact_for(name)
    rig, samples = VirtualRig(pty=pty), random_samples(artifact.graph, 2, 0)
    verdict = verify_model(artifact, samples, rig)
    assert re.fullmatch("bit-exact, 2 samples; [0-9,]+ bytes of .* equal the build", str(verdict))
    assert verdict.result.measured.instructions
    assert verdict.result.measured.ram
    assert verdict.result.measured.latency is None  # simulated time says nothing about latency
    timed = time_layers(artifact, samples[0], rig)
    counts = [layer["instructions"] for layer in timed["layers"]]
    tick = 1e9 / timed["timer"]["hz"]
    # The sum lacks the work between layers, and each layer's count is rounded to a tick.
    whole = verdict.result.measured.instructions
    assert 0.8 * whole - len(counts) * tick < sum(counts) < 1.1 * whole + len(counts) * tick


# Networks that a board's flash or RAM cannot hold.
_SMALLEST = {"microbit", "stm32vldiscovery"}
TOO_SMALL = {
    "ad_float32": {*_SMALLEST, "lm3s6965evb", "netduinoplus2"},
    "ad_int8": {*_SMALLEST, "lm3s6965evb"},
    "ic_float32": {*_SMALLEST, "lm3s6965evb", "netduinoplus2", "sifive_e"},
    "ic_int8": {*_SMALLEST, "sifive_e"},
    "kws_float32": {*_SMALLEST, "lm3s6965evb", "sifive_e"},
    "kws_int8": {*_SMALLEST, "sifive_e"},
    "sww_int8": {"stm32vldiscovery"},
    "vww_float32": {*_SMALLEST, "lm3s6965evb", "netduinoplus2", "sifive_e"},
    "vww_int8": {*_SMALLEST, "sifive_e"},
}


def cases() -> Iterator[Any]:
    """Yield all networks and boards; those that take minutes are marked slow.

    The others are int8 networks on one board, except the largest, and two networks on other boards.
    """
    for name in SIMULATED:
        for network in TOO_SMALL:
            quick = network.endswith("int8") and name == BOARD and network != "vww_int8"
            quick |= (name, network) in {("virt-riscv32", "kws_int8"), ("microbit", "sww_int8")}
            marks = () if quick else (pytest.mark.slow,)
            yield pytest.param(
                Network("mlperf_tiny", network), name, marks=marks, id=f"{network}-{name}"
            )


@pytest.mark.quick(network=("mlperf_tiny/sww_int8",))
@pytest.mark.parametrize(("network", "name"), list(cases()))
def test_mlperf_tiny_verifies_on_every_board_that_it_fits(network: Network, name: str) -> None:
    require_flashing(name)
    too_small = name in TOO_SMALL[network.name]
    with pytest.raises(DoesNotFit) if too_small else nullcontext():
        artifact = compile_model(network.model, Options(board=name))
        samples = random_samples(artifact.graph, 2, 0)
        for pty in (False, True):
            rig = VirtualRig(pty=pty)
            verdict = verify_model(artifact, samples, rig)
            assert str(verdict).startswith(
                "bit-exact" if network.name.endswith("int8") else "within"
            )
        timed = time_layers(artifact, samples[0], rig)
        assert all(layer["ticks"] is not None for layer in timed["layers"])


def test_deploy_writes_all_reports(smelt: Smelt) -> None:
    require_flashing(BOARD)
    done = smelt(
        *("deploy", MODEL, "--board", BOARD, "--simulate", "--layers"),
        *("--json", "a.json", "--html", "a.html", "--junit", "a.xml"),
    )
    assert done.code == 0, done.err
    assert "$ gdb-multiarch" in done.err or "$ arm-none-eabi-gdb" in done.err
    *table, verdict = done.out.rstrip().splitlines()
    assert verdict.startswith(f"{BOARD}: bit-exact, 8 samples; ")
    assert verdict.endswith(" KB flash")
    assert table[0].split() == [
        "step",
        "layer",
        "operator",
        "backend",
        "instructions",
        "(±40)",
        "share",
    ]
    report = json.loads(Path("a.json").read_text())
    assert report["verification"]["passed"]
    assert report["layers"][0]["instructions"] > 0
    page = Path("a.html").read_text()
    assert "Passed" in page
    assert "Pool2D" in page
    assert 'tests="1" failures="0" errors="0"' in Path("a.xml").read_text()


def test_a_wrong_layer_is_found_by_flashing_other_firmware() -> None:
    require_flashing(BOARD)
    artifact = artifact_for(BOARD)
    said: list[str] = []
    rig = VirtualRig(say=said.append)
    with pytest.raises(VerifyError, match=r"First layer that differs: step 2, Conv2D of .*CONV_2D"):
        verify_model(with_wrong_weights(artifact, 2), random_samples(artifact.graph, 1, 0), rig)
    assert sum(line.startswith("$ ") for line in said) == 2


def test_a_failed_verification_is_in_all_reports(
    smelt: Smelt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise VerifyError("sample 0: everything differs")

    monkeypatch.setattr("smelt.cli.proof.verify_model", broken)
    done = smelt("verify", MODEL, "--json", "a.json", "--html", "a.html", "--junit", "a.xml")
    assert done.code == 1
    verification = json.loads(Path("a.json").read_text())["verification"]
    assert (verification["passed"], verification["message"]) == (
        False,
        "sample 0: everything differs",
    )
    assert "Failed" in Path("a.html").read_text()
    assert '<failure type="VerifyError"' in Path("a.xml").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--board", BOARD], "has no flashing program"),
        ([], "ConfigError: choose a device with --board"),
        (
            ["--board", "host"],
            "--board host is a computer, which needs no firmware: choose a device",
        ),
        (["--board", BOARD, "--pty"], "--pty needs --simulate"),
        (["--board", BOARD, "--simulate", "--on", "COM5"], "--simulate chooses the board's port"),
        (["--board", "pico", "--simulate"], "has no [qemu]"),
        (["--board", "nucleo-f446re", "--runner", "dfu"], "has no runner 'dfu'"),
    ],
)
def test_contradicting_options_are_refused(smelt: Smelt, arguments: list[str], words: str) -> None:
    done = smelt("deploy", MODEL, *arguments)
    assert done.code == 1
    assert words in done.err
    assert "Traceback" not in done.err


def _fake_which(name: str) -> str:
    return f"/bin/{name}"


def test_a_board_with_a_boot_loader_needs_the_port_of_the_firmware(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", _fake_which)
    artifact = artifact_for("nano-33-ble")
    with pytest.raises(ConfigError, match="give the firmware's serial port with --on"):
        flashing_rig(artifact, FlashOptions(), None, print)
    assert flashing_rig(artifact, FlashOptions(), "COM5", print).on == "COM5"
    nucleo = artifact_for("nucleo-f446re")
    assert flashing_rig(nucleo, FlashOptions(runner="openocd"), None, print).on == "board"
    assert (
        flashing_rig(nucleo, FlashOptions(runner="openocd", port="COM5"), None, print).on == "COM5"
    )


# Over a port, as with a real board


@pytest.mark.quick(pty=(False,))
@pytest.mark.parametrize("pty", [False, True], ids=["socket", "pty"])
def test_verify_and_profile_work_over_a_port(smelt: Smelt, pty: bool) -> None:
    simulable(boards.load(BOARD))
    artifact = artifact_for(BOARD)
    with running(artifact, pty=pty) as simulator:
        options = ("--board", BOARD, "--on", simulator.port)
        done = smelt("verify", MODEL, *options, "--samples", "3", "--json", "a.json")
        line = f"{BOARD} at {simulator.port}: bit-exact, 3 samples; "
        assert done.code == 0, done.err
        assert done.out.startswith(line)
    latency = json.loads(Path("a.json").read_text())["inference"]["latency"]
    assert latency["inferences"] == 3
    assert latency["cycles"] > 1000
    assert latency["per_second"] == pytest.approx(1 / latency["seconds"]["mean"])
    with running(artifact, pty=pty, trace=True) as simulator:
        options = ("--board", BOARD, "--on", simulator.port)
        layers = smelt("profile", MODEL, *options, "--json").json["layers"]
    assert all(layer["seconds"] > 0 for layer in layers)


def test_a_wrong_layer_is_not_named_by_firmware_without_step_reports() -> None:
    simulable(boards.load(BOARD))
    artifact = artifact_for(BOARD)
    wrong = with_wrong_weights(artifact, 2)
    with running(wrong) as simulator:
        rig = Rig(simulator.port)
        with pytest.raises(
            VerifyError, match=r"firmware on the device cannot report .*; `smelt dep"
        ):
            verify_model(wrong, random_samples(artifact.graph, 1, 0), rig)


@dataclass(frozen=True)
class SpoilingRig(Rig):
    """A rig that damages every 20th byte received from firmware with TRACE=1.

    Attributes:
        limit: largest number of damaged bytes.
        damaged: positions of the damaged bytes.
    """

    limit: int = 1
    damaged: list[int] = field(default_factory=list[int])

    @contextmanager
    def open(self, artifact: Artifact, *, trace: bool = False) -> Generator[tuple[ElfInfo, Device]]:
        def spoil(number: int, data: bytes) -> bytes:
            if number < 1500 or number % 20 or len(self.damaged) == self.limit:
                return data
            self.damaged.append(number)
            return flip_a_bit(data, 0)

        with super().open(artifact, trace=trace) as (elf, device):
            if trace:
                FaultyStream(device, came=spoil)
            yield elf, device


@pytest.mark.quick(limit=(30,))
@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (1, "First layer that differs: step 2"),
        (30, "First layer that differs: step 2"),
        (10**6, "that differs could not be found: the output of"),
    ],
)
def test_bytes_damaged_in_the_search_do_not_hide_that_outputs_differ(
    limit: int, words: str
) -> None:
    artifact = digits()
    rig = SpoilingRig(limit=limit)
    with pytest.raises(VerifyError, match=words):
        verify_model(with_wrong_weights(artifact, 2), random_samples(artifact.graph, 1, 0), rig)
    assert len(rig.damaged) == limit or (limit == 10**6 and len(rig.damaged) > 100)


class Proxy:
    """A TCP proxy that damages single bytes."""

    def __init__(self, target: str, spoil: Callable[[int, bytes], bytes]) -> None:
        """Listen at `port` and forward to `target`.

        Args:
            target: URL `socket://HOST:PORT` of the board.
            spoil: maps the number of a byte from the board, and the byte, to the bytes to forward.
        """
        host, port = target.removeprefix("socket://").split(":")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = f"socket://127.0.0.1:{self._listener.getsockname()[1]}"
        self._target, self._spoil = (host, int(port)), spoil
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        board = socket.create_connection(self._target)
        threading.Thread(target=self._pump, args=(client, board, None), daemon=True).start()
        self._pump(board, client, self._spoil)

    def _pump(
        self,
        source: socket.socket,
        to: socket.socket,
        spoil: Callable[[int, bytes], bytes] | None,
    ) -> None:
        number = 0
        try:
            while data := source.recv(4096):
                if spoil is not None:
                    data = b"".join(spoil(number + i, bytes([b])) for i, b in enumerate(data))
                number += len(data)
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_lost_bytes_are_sent_again() -> None:
    simulable(boards.load(BOARD))
    artifact = artifact_for(BOARD)
    lost: list[int] = []

    def spoil(number: int, byte: bytes) -> bytes:
        if number > 900 and number % 331 == 0 and len(lost) < 4:
            lost.append(number)
            return b""
        return byte

    with running(artifact) as simulator:
        proxy = Proxy(simulator.port, spoil)
        verdict = verify_model(artifact, random_samples(artifact.graph, 12, 0), Rig(proxy.port))
    assert str(verdict).startswith("bit-exact, 12 samples; ")
    assert len(lost) == 4


# Failures of ports


def test_a_port_in_use_by_another_program_is_refused() -> None:
    simulable(boards.load(BOARD))
    with (
        running(artifact_for(BOARD), pty=True) as simulator,
        serial.serial_for_url(simulator.port, exclusive=True),
        pytest.raises(DeviceError, match="another program uses it"),
        boards.open_device(None, simulator.port),
    ):
        pass


def test_a_silent_port_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_PORT_S", 2)
    with (
        Simulator(boards.load(BOARD), None, pty=True) as halted,
        pytest.raises(DeviceError, match="no response from the device in 2 s: check that the"),
        boards.open_device(None, halted.port),
    ):
        pass


@pytest.mark.parametrize("word", [b"log: nothing new\r\n", b"\xff\x00\x80", b"m-ready\r\n"])
def test_a_port_with_another_protocol_times_out(
    monkeypatch: pytest.MonkeyPatch, word: bytes
) -> None:
    monkeypatch.setattr(session, "_SOCKET_S", 2)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            client, _ = listener.accept()
            with client, suppress(OSError):  # the other side closes the connection
                while not over.wait(0.05):
                    client.sendall(word)

        thread = threading.Thread(target=talk)
        thread.start()
        port = f"socket://127.0.0.1:{listener.getsockname()[1]}"
        with (
            pytest.raises(DeviceError, match="no response from the device in 2 s"),
            boards.open_device(None, port),
        ):
            pass
        over.set()
        thread.join()


def test_each_session_starts_with_the_initial_state() -> None:
    simulable(boards.load(BOARD))
    artifact = compile_model(Imported(counter()), Options(board=BOARD))
    with running(artifact) as simulator:
        for _ in range(2):
            samples = random_samples(artifact.graph, 2, 0)
            assert verify_model(artifact, samples, Rig(simulator.port)).samples == 2


@pytest.mark.thorough
def test_ctrl_c_ends_the_simulator() -> None:
    simulable(boards.load(BOARD))
    command = [sys.executable, "-m", "smelt", "simulate", str(MODEL), "--board", BOARD]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=MODEL.parents[2], start_new_session=True
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline().decode().split()[1].removeprefix("socket://")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(300) == 0
    host, number = port.split(":")
    deadline = time.monotonic() + 300
    while True:  # until the simulator's UART is closed
        try:
            socket.create_connection((host, int(number)), 1).close()
        except OSError:
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_network_that_does_not_fit_is_in_the_reports(smelt: Smelt) -> None:
    options = ("--max-arena", "1", "--json", "a.json", "--junit", "a.xml")
    done = smelt("deploy", MODEL, "--board", "stm32f0-none", "--simulate", *options)
    assert done.code == 1
    assert not json.loads(Path("a.json").read_text())["verification"]["passed"]
    assert '<error type="ConfigError"' in Path("a.xml").read_text()


def test_other_firmware_is_refused() -> None:
    simulable(boards.load(BOARD))
    with (
        running(artifact_for(BOARD)) as simulator,
        pytest.raises(DeviceError, match="the device runs network 'digits_int8' with hash"),
        boards.open_device(None, simulator.port, expected_hash="0" * 16),
    ):
        pass


def test_a_reset_during_a_run_is_detected(tmp_path: Path) -> None:
    require_flashing(BOARD)
    artifact = artifact_for(BOARD)
    monitor = tmp_path / "monitor"
    board = boards.load(BOARD)
    arguments = ["-qmp", f"unix:{monitor},server=on,wait=off"]
    with built(artifact) as elf, Simulator(board, None, arguments, pty=True) as simulator:
        FlashOptions(server=simulator.gdb).flash(elf.path, board, lambda _: None)

        def press_reset(done: int) -> None:
            if done == 3:
                with socket.socket(socket.AF_UNIX) as control:
                    control.connect(str(monitor))
                    control.recv(4096)
                    for command in ("qmp_capabilities", "system_reset"):
                        control.sendall(json.dumps({"execute": command}).encode())
                        control.recv(4096)

        with pytest.raises(DeviceError, match="the device restarted"):
            run(artifact, random_samples(artifact.graph, 40, 0), Rig(simulator.port), press_reset)


# Energy


def meter(folder: Path, answer: str) -> str:
    script = folder / "meter.sh"
    script.write_text(
        f'#!/bin/sh\nwhile read word; do [ "$word" != stop ] || echo {answer}; done\n'
    )
    return f"sh {script}"


def measure(command: str, timeout_s: float = 300, inferences: int = 3) -> float:
    with Meter(command, timeout_s) as found:
        for _ in range(inferences):
            found.start()
            found.stop()
        return found.joules


def test_energy_is_in_the_report(smelt: Smelt, tmp_path: Path) -> None:
    command = meter(tmp_path, "0.002")
    done = smelt("verify", MODEL, "--samples", "4", "--meter", command, "--json", "a.json")
    assert done.code == 0, done.err
    energy = json.loads(Path("a.json").read_text())["inference"]["energy_j"]
    assert energy == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("/no/such/meter", "the meter '/no/such/meter' cannot be executed"),
        ("''", "cannot be executed"),
        ("true", "the meter 'true'"),
    ],
)
def test_failing_meters_are_reported(command: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        measure(command)


def test_a_meter_must_answer_with_a_number(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="replied 'plenty' to `stop`, not a number of joules"):
        measure(meter(tmp_path, "plenty"))


@pytest.mark.parametrize("script", ["sleep 60", "while read word; do :; done"])
def test_a_silent_meter_times_out(script: str, tmp_path: Path) -> None:
    (tmp_path / "meter.sh").write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(ToolError, match="has not replied to `stop` for 1 s: it must write a line"):
        measure(f"sh {tmp_path / 'meter.sh'}", timeout_s=1)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("yes", "(wrote 'y' unexpectedly|replied 'y' to `stop`)"),
        ("yes 0.5", "wrote '0.5' unexpectedly"),
        ("cat /dev/zero", r"(wrote|replied) '(\\x00)+"),
        ("while read word; do echo 1; done", "wrote '1' unexpectedly"),
        ("while read word; do [ $word = start ] || yes 0.5; done", "wrote '0.5' unexpectedly"),
    ],
)
def test_a_meter_that_writes_without_end_is_stopped(
    script: str, words: str, tmp_path: Path
) -> None:
    """The meter's output is not kept in memory, and its child processes end with it."""
    child = tmp_path / "child"
    text = f"#!/bin/sh\nyes '\033[2Jnoise' >&2 &\necho $! > {child}\n{script}\n"
    (tmp_path / "meter.sh").write_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ToolError, match=words) as failed:
        measure(f"sh {tmp_path / 'meter.sh'}", inferences=1000)
    assert len(str(failed.value)) < 1000
    assert "\033" not in str(failed.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 50_000
    gone = Path("/proc") / child.read_text().strip() / "stat"
    while gone.exists() and gone.read_text().rpartition(")")[2].split()[0] not in "ZX":
        time.sleep(0.05)


def test_a_device_that_reports_too_large_outputs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise, reading the device's outputs would not end."""
    simulable(boards.load(BOARD))
    artifact = artifact_for(BOARD)
    (sample,) = random_samples(artifact.graph, 1, 0)
    real = device_info._read_info

    def lying(lines: Sequence[str]) -> DeviceInfo:
        info = real(lines)
        return replace(info, outputs=(replace(info.outputs[0], bytes=10**12),))

    monkeypatch.setattr(device_info, "_read_info", lying)
    with pytest.raises(DeviceError, match=r"reports outputs of \[1000000000000\] bytes"):
        run(artifact, [sample], Rig("qemu"))


# A simulated board for other programs


def test_simulate_prints_the_port_and_the_gdb_server(smelt: Smelt) -> None:
    simulable(boards.load(BOARD))
    done = smelt("simulate", "--board", BOARD, "--pty", "--seconds", "0.1")
    assert done.code == 0, done.err
    port, gdb = done.out.splitlines()
    assert port.startswith("port /dev/pts/")
    assert gdb.startswith("gdb 127.0.0.1:")
    done = smelt("simulate", MODEL, "--board", BOARD, "--seconds", "0.1")
    assert done.out.startswith("port socket://127.0.0.1:")
    assert smelt("simulate").err.startswith(
        "ConfigError: --board is missing: give the board to simulate"
    )

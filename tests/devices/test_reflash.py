"""Flashing repeatedly while other firmware runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from smelt import boards
from smelt.api.options import Options
from smelt.boards.flash import FlashOptions, runners
from smelt.boards.simulate import Simulator
from smelt.proof.rig import built, connected
from smelt.proof.run import device_inputs
from smelt.samples import random_samples
from tests.support.board_tools import simulable
from tests.support.projects import digits

pytestmark = pytest.mark.qemu

FLASHES = 10


INSIDE_A_HANDLER = """
set confirm off
target extended-remote {server}
load
set $sp = &smelt_stack_top
break smelt_uart_interrupt
continue
delete
set $pc = Reset_Handler
detach
"""


def assert_repeated_flashing_works(name: str) -> None:
    board = boards.load(name)
    simulable(board)
    if shutil.which("gdb-multiarch") is None:
        pytest.skip("not on PATH: gdb-multiarch")
    artifact = digits(Options(board=name))
    (sample,) = random_samples(artifact.graph, 1, 0)
    with built(artifact) as elf, Simulator(board, None) as simulator:
        for _ in range(FLASHES):
            FlashOptions(server=simulator.gdb).flash(elf.path, board, lambda _: None)
            with connected(elf, artifact, simulator.port) as device:
                assert device.info.count == 0
                device.run(device_inputs(artifact.graph, sample))


@pytest.mark.quick(name=("mps2-an386",))
@pytest.mark.parametrize("name", ["netduinoplus2", "mps2-an386", "sifive_e"])
def test_repeated_flashing_works_if_the_server_resets_the_chip(name: str) -> None:
    assert_repeated_flashing_works(name)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "netduinoplus2",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("mps2-an505", "microbit", "sifive_e")),
    ],
)
def test_repeated_flashing_works_without_reset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The firmware starts with the register values that the earlier firmware left."""
    without = tuple(line.replace("monitor ", "echo ") for line in runners.GDB_RESETS)
    assert without != runners.GDB_RESETS
    monkeypatch.setattr(runners, "GDB_RESETS", without)
    assert_repeated_flashing_works(name)


@pytest.mark.quick(name=("mps2-an505",))
@pytest.mark.parametrize("name", ["netduinoplus2", "mps2-an505"])
def test_firmware_started_inside_a_handler_resets_the_chip(name: str, tmp_path: Path) -> None:
    board = boards.load(name)
    simulable(board)
    if shutil.which("gdb-multiarch") is None:
        pytest.skip("not on PATH: gdb-multiarch")
    artifact = digits(Options(board=name))
    (sample,) = random_samples(artifact.graph, 1, 0)
    with built(artifact) as elf, Simulator(board, None) as simulator:
        script = tmp_path / "script"
        script.write_text(INSIDE_A_HANDLER.format(server=simulator.gdb))
        command = ["gdb-multiarch", "-nx", "-batch", "-x", str(script), str(elf.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as gdb:
            # The first byte that the host sends causes the interrupt.
            with connected(elf, artifact, simulator.port) as device:
                device.run(device_inputs(artifact.graph, sample))
            assert gdb.stdout is not None
            assert " in smelt_uart_interrupt ()" in gdb.stdout.read()

"""Tests of `smelt flash`: projects, networks, and firmware that GDB loads on a simulated board."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smelt import boards
from smelt.api.options import Options
from smelt.boards.flash import Image
from smelt.boards.flash.uf2 import uf2
from smelt.boards.simulate import Simulator
from tests.support.board_tools import compilable, simulable
from tests.support.cli_runner import Smelt, runner
from tests.support.flash_tools import Fakes, read_uf2, write_elf
from tests.support.projects import digits, images
from tests.support.tflite_networks import DIGITS

MODEL = DIGITS / "digits_int8.tflite"
HASH = "0123456789abcdef"


@pytest.fixture
def smelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("smelt.boards.ports.comports", list)
    return Fakes(folder)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the files of `smelt build --compile` that flashing reads."""
    folder = tmp_path / "out"
    write_elf(folder / "build" / "net.elf", {0x0800_0000: b"vectors"})
    report = {"network": {"name": "net", "hash": HASH}, "board": "nucleo-f446re"}
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def test_a_project_is_flashed(smelt: Smelt, project: Path, fakes: Fakes) -> None:
    fakes.add("st-flash", "echo 7 bytes written")
    done = smelt("flash", project, "--board", "nucleo-f446re")
    assert (done.code, done.out) == (0, "nucleo-f446re: flashed by st-flash\n")
    assert "7 bytes written" in done.err
    assert "did not check whether the firmware runs: no serial port of board" in done.err
    binary = project / "build" / "net.bin"
    assert fakes.calls() == [["st-flash", "--reset", "write", str(binary), "0x08000000"]]
    assert binary.read_bytes() == b"vectors"


def test_a_dry_run_prints_the_command_and_runs_nothing(
    smelt: Smelt, project: Path, fakes: Fakes
) -> None:
    fakes.add("openocd")
    done = smelt("flash", "out", "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "openocd -f interface/stlink.cfg -f target/stm32f4x.cfg "
        "-c 'program {out/build/net.elf} verify reset exit'\n"
    )
    assert fakes.calls() == []


def test_a_dry_run_needs_no_program(smelt: Smelt, project: Path, fakes: Fakes) -> None:
    assert list(fakes.folder.iterdir()) == []
    done = smelt("flash", project, "--dry-run", "--runner", "st-flash")
    assert done.code == 0
    assert done.out.startswith("st-flash --reset write ")
    assert done.err == (
        "note: 'st-flash' is not installed, or not on PATH: apt-get install stlink-tools\n"
    )
    assert smelt("flash", project, "--dry-run").code == 0
    done = smelt("flash", project)
    assert done.code == 1
    assert "no program that flashes board 'nucleo-f446re' is installed" in done.err


def test_a_dry_run_needs_no_drive(
    smelt: Smelt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smelt.boards.flash.drives._mounted", list)
    write_elf(tmp_path / "out/build/net.elf", {0x1000_0000: b"vectors"})
    report = {"network": {"name": "net", "hash": HASH}, "board": "pico"}
    Path("out/report.json").write_text(json.dumps(report))
    done = smelt("flash", "out", "--dry-run", "--runner", "uf2")
    assert (done.code, done.out) == (0, "cp out/build/net.uf2 DRIVE\n")
    assert done.err.startswith("note: no drive with INFO_UF2.TXT is mounted: connect the board's")
    done = smelt("flash", "out", "--runner", "uf2")
    assert done.code == 1
    assert "DeviceError: no drive with INFO_UF2.TXT is mounted" in done.err


def test_a_program_that_fails_or_hangs_is_an_error(
    smelt: Smelt, project: Path, fakes: Fakes
) -> None:
    fakes.add("st-flash", "echo no ST-LINK found; exit 1")
    done = smelt("flash", project)
    assert done.code == 1
    assert "ToolError: st-flash --reset write" in done.err
    assert "failed with exit status 1.\n  no ST-LINK found" in done.err
    fakes.add("st-flash", "/bin/sleep 60")
    assert "took more than 1 s" in smelt("flash", project, "--timeout", "1").err


def test_a_board_that_does_not_answer_is_an_error(
    smelt: Smelt, project: Path, fakes: Fakes
) -> None:
    fakes.add("st-flash")
    done = smelt("flash", project, "--port", "/dev/no-such-port")
    assert done.code == 1
    assert "cannot open port /dev/no-such-port" in done.err
    assert "--no-check" in done.err
    assert smelt("flash", project, "--port", "/dev/no-such-port", "--no-check").code == 0


def break_report(project: Path) -> None:
    (project / "report.json").write_text("{}")


def remove_elf(project: Path) -> None:
    (project / "build" / "net.elf").unlink()


def change_nothing(project: Path) -> None:
    del project


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        (change_nothing, ["--board", "pico"], "built for board 'nucleo-f446re', not 'pico'"),
        (change_nothing, ["--optimize", "size"], "of the build options, only --board may be given"),
        (
            change_nothing,
            ["--runner", "dfu"],
            "has no runner 'dfu'; choose from openocd, pyocd, st-flash, gdb",
        ),
        (break_report, [], "report.json is missing or damaged"),
        (remove_elf, [], "net.elf' does not exist: run `make`"),
    ],
)
def test_mistakes_are_explained(
    smelt: Smelt,
    project: Path,
    fakes: Fakes,
    change: Callable[[Path], None],
    options: list[str],
    says: str,
) -> None:
    del fakes
    change(project)
    done = smelt("flash", project, *options)
    assert done.code == 1
    assert says in done.err


@pytest.mark.parametrize("board", [[], ["--board", "host"]])
def test_a_network_needs_a_device(smelt: Smelt, board: list[str]) -> None:
    done = smelt("flash", MODEL, *board)
    assert done.code == 1
    assert "ConfigError: --board" in done.err


@pytest.mark.qemu
def test_a_network_is_built_and_copied_to_a_drive(smelt: Smelt, tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    drive.mkdir()
    (drive / "INFO_UF2.TXT").write_text("UF2 Bootloader v3.0\n")
    assert smelt("build", MODEL, "-o", "out", "--board", "pico", "--compile", "-q").code == 0
    done = smelt("flash", MODEL, "--board", "pico", "--drive", drive, "--no-check")
    assert (done.code, done.out) == (0, "pico: flashed by uf2\n")
    written = (drive / "digits_int8.uf2").read_bytes()
    assert read_uf2(written)[0].address == 0x1000_0000
    assert written == uf2(Image.of(tmp_path / "out/build/digits_int8.elf"), 0xE48B_FF56)


@pytest.mark.qemu
def test_the_command_of_a_dry_run_of_a_network_can_be_run(
    smelt: Smelt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilable(boards.load("nucleo-f446re"))
    tools, temporary = tmp_path / "tools", tmp_path / "temporary"
    tools.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    options = ("--board", "nucleo-f446re", "--runner", "st-flash")
    done = smelt("flash", MODEL, *options, "--dry-run")
    assert done.code == 0
    (left,) = temporary.glob("smelt-*")
    assert f"note: the files are in {left}; remove it when you are done" in done.err
    *_, image, _ = shlex.split(done.out)
    assert Path(image).parent == left / "digits_int8" / "build"
    assert Path(image).stat().st_size > 10_000
    shutil.rmtree(left)
    (tools / "st-flash").write_text("#!/bin/sh\nexit 1\n")
    (tools / "st-flash").chmod(0o755)
    done = smelt("flash", MODEL, *options)
    assert done.code == 1
    assert "was deleted; to keep these files, run `smelt build -o DIR --compile`" in done.err
    assert list(temporary.glob("smelt-*")) == []
    assert smelt("flash", MODEL, *options, "--dry-run", "--port", "a").code == 0
    assert smelt("flash", MODEL, "--board", "pico", "--runner", "dfu", "--dry-run").code == 1
    assert len(list(temporary.glob("smelt-*"))) == 1  # the failed command deleted its files


@pytest.mark.quick(every=3)
@pytest.mark.parametrize(
    "name", ["mps2-an386", "mps2-an505", "mps3-an547", "microbit", "virt-riscv32"]
)
def test_gdb_loads_firmware_that_computes_the_right_outputs(name: str, smelt: Smelt) -> None:
    board = boards.load(name)
    simulable(board)
    others = {"cortexm": "arm-none-eabi-gdb", "riscv": "riscv64-unknown-elf-gdb"}
    if not any(map(shutil.which, ("gdb-multiarch", others[board.startup]))):
        pytest.skip(f"not on PATH: gdb-multiarch or {others[board.startup]}")
    assert smelt("build", MODEL, "-o", "out", "--board", name, "--compile", "-q").code == 0
    hash_ = digits(Options(board=name)).network.hash
    with Simulator(board, None) as device:
        done = smelt("flash", "out", "--gdb", device.gdb or "", "--port", device.port)
        assert done.code == 0, done.err
        assert ": matched." in done.err
        assert done.out == (
            f"{name}: flashed by gdb; digits_int8 ({hash_}) answers on {device.port}\n"
        )
        inputs, expected = images(4)
        with boards.open_device(None, device.port, board, expected_hash=hash_) as connected:
            for image, right in zip(inputs, expected, strict=True):
                (answer,), _ = connected.run([image.tobytes()])
                assert np.array_equal(np.frombuffer(answer, np.int8), right.ravel())


@pytest.mark.qemu
def test_a_missing_or_silent_gdb_server_is_an_error(
    smelt: Smelt, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smelt.boards.flash.runners._SILENCE_S", 2)
    if not any(map(shutil.which, ("gdb-multiarch", "arm-none-eabi-gdb"))):
        pytest.skip("not on PATH: gdb-multiarch or arm-none-eabi-gdb")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for server in (f"127.0.0.1:{port}", "127.0.0.1:1"):
            done = smelt("flash", project, "--gdb", server)
            assert done.code == 1
            assert f"Possible cause: no GDB server listens at {server}" in done.err

"""Flashing: all runners of all boards with fake programs, drives, ports."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from smelt import boards
from smelt.boards import Board
from smelt.boards.flash import GDB, FlashOptions, Image, choose, drives, plan, takes_port
from smelt.boards.flash.process import AwaitedPeer, execute
from smelt.boards.flash.programs import PROGRAMS
from smelt.boards.flash.uf2 import uf2
from smelt.boards.ports import find_port
from smelt.boards.schema import FlashTable, Runner
from smelt.errors import ConfigError, DeviceError, ToolError
from tests.support.flash_tools import Fakes, memory_of, read_hex, read_uf2, write_elf

CONTENT = bytes(range(200))
TABLES = [
    pytest.param(name, table.runner, id=f"{name}-{table.runner}")
    for name in boards.available()
    for table in boards.load(name).flash
]
LINES = {
    ("nucleo-f446re", "openocd"): "openocd -f interface/stlink.cfg -f target/stm32f4x.cfg "
    "-c program|{DIR/net.elf}|verify|reset|exit",
    ("nucleo-f446re", "pyocd"): "pyocd flash --target stm32f446retx DIR/net.elf",
    ("nucleo-f446re", "st-flash"): "st-flash --reset write DIR/net.bin 0x08000000",
    ("pico2", "picotool"): "picotool load --verify --execute DIR/net.elf -t elf",
    ("nano-33-ble", "bossac"): "bossac --port=ttyACM7 -U -i -e -w DIR/net.bin -R",
    ("nrf52840-dk", "jlink"): "JLinkExe -NoGui 1 -ExitOnError 1 -device nRF52840_xxAA -if SWD "
    "-jtagconf -1,-1 -speed 4000 -autoconnect 1 -CommandFile DIR/net.jlink",
    ("hifive1-revb", "jlink"): "JLinkExe -NoGui 1 -ExitOnError 1 -device FE310 -if JTAG "
    "-jtagconf -1,-1 -speed 4000 -autoconnect 1 -CommandFile DIR/net.jlink",
    ("netduinoplus2", "dfu"): "dfu-util -a 0 -s 0x08000000:leave -D DIR/net.bin",
}


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Return an empty folder of fake programs, and make it the only one on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return Fakes(folder)


def table_of(board: Board, runner: str) -> FlashTable:
    return next(table for table in board.flash if table.runner == runner)


def firmware(folder: Path, board: Board) -> Path:
    """Write a small ELF with `CONTENT` in the board's memory for code."""
    memory = board.platform().memory_of("code")
    assert memory is not None
    return write_elf(folder / "net.elf", {memory.origin: CONTENT})


def drive(folder: Path, runner: str) -> Path:
    folder.mkdir()
    (folder / {"uf2": "INFO_UF2.TXT", "drag": "DETAILS.TXT"}[runner]).write_text("yes")
    return folder


def quiet(line: str) -> None:
    del line


def test_every_runner_of_board_files_is_implemented() -> None:
    variants = {"gdb-cortexm", "gdb-riscv", "gdb-probe"}
    assert set(get_args(Runner)) == set(PROGRAMS) - variants | {"uf2", "drag", "gdb"}


@pytest.mark.parametrize(("name", "runner"), TABLES)
def test_every_runner_flashes_its_board(
    name: str, runner: str, tmp_path: Path, fakes: Fakes
) -> None:
    for program in PROGRAMS.values():
        fakes.add(program.names[0])
    board = boards.load(name)
    table = table_of(board, runner)
    elf = firmware(tmp_path, board)
    folder = drive(tmp_path / "drive", runner) if runner in ("uf2", "drag") else None
    port = "/dev/ttyACM7" if takes_port(table) else None
    for step in plan(elf, board, table, port=port, drive=folder):
        step.run(600, quiet)
    memory = board.platform().memory_of("code")
    assert memory is not None
    expected = memory_of({memory.origin: CONTENT})
    if runner == "uf2":
        blocks = read_uf2((tmp_path / "drive" / "net.uf2").read_bytes())
        assert memory_of({b.address: b.data for b in blocks}).items() >= expected.items()
        assert {block.family for block in blocks} == {table.family}
        return
    if runner == "drag":
        assert read_hex((tmp_path / "drive" / "net.hex").read_bytes()) == expected
        return
    (called,) = fakes.calls()
    facts = [*([table.target] if table.target else []), *table.config]
    assert [fact for fact in facts if fact not in called] == []
    named = " ".join(called)
    if runner == "jlink":
        named = (tmp_path / "net.jlink").read_text()
        assert named == f'reset\nloadfile "{tmp_path}/net.hex"\nreset\ngo\nexit\n'
        assert read_hex((tmp_path / "net.hex").read_bytes()) == expected
    if "net.bin" in named:
        assert (tmp_path / "net.bin").read_bytes() == CONTENT
    assert f"{tmp_path}/net." in named
    if (name, runner) in LINES:
        line = LINES[name, runner].replace("DIR", str(tmp_path))
        assert called == [word.replace("|", " ") for word in line.split(" ")]


def test_esptool_converts_and_writes_an_image(tmp_path: Path, fakes: Fakes) -> None:
    fakes.add("esptool")
    board = boards.load("nucleo-f446re")
    table = FlashTable(runner="esptool", target="esp32c3", offset=0x10000)
    elf = firmware(tmp_path, board)
    for step in plan(elf, board, table, port="/dev/ttyUSB3"):
        step.run(600, quiet)
    assert takes_port(table)
    made, written = fakes.calls()
    assert made == ["esptool", "--chip", "esp32c3", "elf2image", "-o", f"{elf}.bin", str(elf)]
    wanted = f"esptool --chip esp32c3 -p /dev/ttyUSB3 write_flash 0x10000 {elf}.bin"
    assert written == wanted.split()
    with pytest.raises(ValidationError, match="offset: required for runner 'esptool'"):
        FlashTable(runner="esptool", target="esp32c3")
    with pytest.raises(ConfigError, match="needs --port"):
        plan(elf, board, table)


@dataclass(frozen=True)
class Case:
    """A fake program.

    Attributes:
        script: shell script that it executes.
        message: pattern of the expected error.
    """

    script: str
    message: str


@pytest.mark.parametrize(
    "case",
    [
        Case("echo 'no ST-LINK'; exit 3", r"failed with exit status 3\.\n  no ST-LINK$"),
        Case("echo 'on stderr' >&2; exit 1", r"exit status 1\.\n  on stderr$"),
        Case("kill -9 $$", r"was ended by signal 9\. It wrote no output\.$"),
    ],
)
def test_the_error_shows_exit_status_and_output(case: Case, tmp_path: Path, fakes: Fakes) -> None:
    board = boards.load("nucleo-f446re")
    fakes.add("st-flash", case.script)
    (step,) = plan(firmware(tmp_path, board), board, table_of(board, "st-flash"))
    with pytest.raises(ToolError, match=case.message):
        step.run(600, quiet)


def test_output_is_shown_line_by_line_and_failures_give_a_hint(
    tmp_path: Path, fakes: Fakes
) -> None:
    board = boards.load("nucleo-f446re")
    fakes.add("pyocd", "echo erasing; echo writing; exit 1")
    (step,) = plan(firmware(tmp_path, board), board, table_of(board, "pyocd"))
    said: list[str] = []
    with pytest.raises(ToolError, match="Possible cause: run `pyocd pack install stm32f446retx`"):
        step.run(600, said.append)
    assert said == ["erasing", "writing"]


def test_escape_sequences_in_output_are_removed(tmp_path: Path, fakes: Fakes) -> None:
    board = boards.load("nucleo-f446re")
    fakes.add("st-flash", r"printf '\033[2J\033]0;mine\007era\033[31msing\n'; exit 1")
    (step,) = plan(firmware(tmp_path, board), board, table_of(board, "st-flash"))
    said: list[str] = []
    with pytest.raises(ToolError) as failed:
        step.run(600, said.append)
    assert said == ["erasing"]
    assert "\033" not in str(failed.value)


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path, fakes: Fakes) -> None:
    child = tmp_path / "child"
    fakes.add("st-flash", f"/bin/sleep 600 & echo $! > {child}; echo asking; wait")
    peer = AwaitedPeer("asking", "the probe", 0.1)
    with pytest.raises(ToolError, match=r"the probe has not responded for 0\.1 s\.\n  asking$"):
        execute(["st-flash"], 500, quiet, peer=peer)
    state = Path("/proc") / child.read_text().strip() / "stat"
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] not in "ZX":
        time.sleep(0.05)


def test_a_program_that_takes_too_long_is_killed(tmp_path: Path, fakes: Fakes) -> None:
    board = boards.load("nucleo-f446re")
    fakes.add("st-flash", "exec /bin/sleep 600")
    (step,) = plan(firmware(tmp_path, board), board, table_of(board, "st-flash"))
    with pytest.raises(ToolError, match=r"took more than 1 s\. It wrote no output\."):
        step.run(1, quiet)


def test_a_program_that_hangs_is_killed_by_taskkill_on_windows(
    tmp_path: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "killpg")
    board = boards.load("nucleo-f446re")
    fakes.add("st-flash", "echo busy; exec /bin/sleep 60")
    fakes.add("taskkill")
    (step,) = plan(firmware(tmp_path, board), board, table_of(board, "st-flash"))
    with pytest.raises(ToolError, match=r"took more than 1 s\."):
        step.run(1, quiet)
    assert fakes.calls()[-1][:4] == ["taskkill", "/F", "/T", "/PID"]


def test_a_mismatch_reported_by_gdb_is_an_error(tmp_path: Path, fakes: Fakes) -> None:
    board = boards.load("mps2-an386")
    fakes.add("gdb-multiarch", "echo 'Section .text, range 0x0 -- 0x8: MIS-MATCHED!'")
    (step,) = plan(firmware(tmp_path, board), board, GDB, server="localhost:3333")
    with pytest.raises(ToolError, match="MIS-MATCHED"):
        step.run(600, quiet)


def test_gdb_uses_the_commands_of_a_black_magic_probe(tmp_path: Path, fakes: Fakes) -> None:
    board = boards.load("nucleo-f446re")
    fakes.add("arm-none-eabi-gdb")
    elf = firmware(tmp_path, board)
    (step,) = plan(elf, board, choose(board, None, "/dev/ttyBmpGdb"), server="/dev/ttyBmpGdb")
    step.run(600, quiet)
    assert fakes.calls() == [
        ["arm-none-eabi-gdb", "-nx", "-batch", "-x", str(elf.with_suffix(".gdb")), str(elf)]
    ]
    lines = elf.with_suffix(".gdb").read_text().splitlines()
    assert lines[5:] == [
        "echo asking the GDB server at /dev/ttyBmpGdb\\n",
        "target extended-remote /dev/ttyBmpGdb",
        "monitor swdp_scan",
        "attach 1",
        "load",
        "compare-sections",
        "kill",
    ]


@pytest.mark.parametrize("name", ["netduinoplus2", "sifive_e"])
def test_gdb_resets_a_chip_before_it_loads(name: str, tmp_path: Path, fakes: Fakes) -> None:
    board = boards.load(name)
    fakes.add("gdb-multiarch")
    elf = firmware(tmp_path, board)
    (step,) = plan(elf, board, choose(board, None, "a:1"), server="a:1")
    step.run(600, quiet)
    (called,) = fakes.calls()
    target = called.index("target extended-remote a:1")
    resets = [called.index(f"monitor {word}") for word in ("reset halt", "system_reset")]
    assert [called[at - 1] for at in resets] == ["-ex", "-ex"]  # an error here must not end GDB
    assert target < min(resets) < max(resets) < called.index("-x")
    assert elf.with_suffix(".gdb").read_text().startswith("load\ncompare-sections\n")
    options = FlashOptions(server="a:1", simulated=True)
    options.flash(elf, board, quiet)
    *_, called = fakes.calls()
    assert [word for word in called if "monitor" in word] == ["monitor system_reset"]


def test_the_first_runner_that_is_installed_is_chosen(fakes: Fakes) -> None:
    board = boards.load("nucleo-f446re")
    with pytest.raises(
        ToolError,
        match=r"openocd \(apt-get install openocd\); pyocd \(python -m pip",
    ):
        choose(board, None, None)
    fakes.add("st-flash")
    assert choose(board, None, None).runner == "st-flash"
    fakes.add("pyocd")
    assert choose(board, None, None).runner == "pyocd"
    assert choose(board, "st-flash", None).runner == "st-flash"
    assert choose(board, None, "localhost:1234") == GDB
    assert choose(boards.load("pico"), None, None).runner == "uf2"


@pytest.mark.parametrize(
    ("board", "runner", "server", "message"),
    [
        ("mps2-an386", None, None, "has no flashing program"),
        ("pico", "jlink", None, "choose from uf2, picotool, openocd, pyocd, gdb"),
        ("pico", "gdb", None, "needs --gdb HOST:PORT"),
        ("pico", "uf2", "a:1", "--gdb needs runner 'gdb', not 'uf2'"),
    ],
)
def test_a_runner_must_be_one_of_the_board(
    board: str, runner: str | None, server: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(boards.load(board), runner, server)


def test_missing_programs_and_options_are_refused(tmp_path: Path, fakes: Fakes) -> None:
    nucleo, nano = boards.load("nucleo-f446re"), boards.load("nano-33-ble")
    elf = firmware(tmp_path, nucleo)
    with pytest.raises(ToolError, match=r"'st-flash' is not installed.*stlink-tools"):
        plan(elf, nucleo, table_of(nucleo, "st-flash"))
    with pytest.raises(ConfigError, match="does not use a drive"):
        plan(elf, nucleo, table_of(nucleo, "st-flash"), drive=tmp_path)
    fakes.add("bossac")
    with pytest.raises(ConfigError, match="'nano-33-ble' needs --port"):
        plan(elf, nano, nano.flash[0])
    with pytest.raises(ConfigError, match="--gdb nowhere: give HOST:PORT"):
        plan(elf, nucleo, GDB, server="nowhere")


def test_drives_are_found_by_the_file_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pico = boards.load("pico")
    elf = firmware(tmp_path, pico)
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(drives, "_MOUNTS", mounts)
    mounts.write_text(f"/dev/sda1 {tmp_path} ext4 rw 0 0\n")
    with pytest.raises(DeviceError, match=r"no drive with INFO_UF2\.TXT is mounted.*BOOTSEL"):
        plan(elf, pico, pico.flash[0])
    first, second = drive(tmp_path / "RPI RP2", "uf2"), drive(tmp_path / "other", "uf2")
    escaped = str(first).replace(" ", "\\040")
    mounts.write_text(f"{mounts.read_text()}/dev/sdb1 {escaped} vfat rw 0 0\n")
    (step,) = plan(elf, pico, pico.flash[0])
    step.run(600, quiet)
    assert (first / "net.uf2").read_bytes() == uf2(Image.of(elf), 0xE48B_FF56)
    mounts.write_text(f"{mounts.read_text()}/dev/sdc1 {second} vfat rw 0 0\n")
    with pytest.raises(ConfigError, match=r"several drives have.*choose one with --drive"):
        plan(elf, pico, pico.flash[0])
    with pytest.raises(ConfigError, match=r"no INFO_UF2\.TXT there"):
        plan(elf, pico, pico.flash[0], drive=tmp_path)


@dataclass
class FakePort:
    """A port as pyserial lists it."""

    device: str
    vid: int | None = None
    pid: int | None = None


def test_ports_are_found_by_usb_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [FakePort("/dev/ttyS0"), FakePort("/dev/ttyACM0", 0x0D28, 0x0204)]
    monkeypatch.setattr("smelt.boards.ports.comports", lambda: ports)
    nucleo = boards.load("nucleo-f446re")
    assert find_port(boards.load("microbit")) == "/dev/ttyACM0"
    with pytest.raises(DeviceError, match=r"0483:374b.*ttyACM0 \(0d28:0204\), /dev/ttyS0 \(not"):
        find_port(nucleo)
    with pytest.raises(ConfigError, match="no serial port on USB"):
        find_port(boards.load("netduinoplus2"))
    ports += [FakePort(f"/dev/ttyACM{i}", 0x0483, 0x374B) for i in (1, 2)]
    with pytest.raises(ConfigError, match=r"ttyACM1.*ttyACM2.*choose one with --port"):
        find_port(nucleo)

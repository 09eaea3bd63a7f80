"""Converts a board's `[[flash]]` tables to the steps that flash it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from smelt.boards.board import Board
from smelt.boards.flash.drives import MARKS, Drive, check_drive, copy, find_drive
from smelt.boards.flash.image import Image
from smelt.boards.flash.process import AwaitedPeer, execute
from smelt.boards.flash.programs import GDB_RESETS, PROGRAMS, QEMU_RESET, Program
from smelt.boards.flash.uf2 import uf2
from smelt.boards.ports import find_port
from smelt.boards.schema import FlashTable
from smelt.boards.simulation_timeout import pace_of
from smelt.errors import ConfigError, DeviceError, SmeltError, ToolError

GDB = FlashTable(runner="gdb")
"""Table for flashing any board through a GDB server."""

_SILENCE_S = 5
"""Seconds within which a GDB server must send its first response."""

Lack = Callable[[SmeltError], None]
"""Called if a program, drive or port is missing; if it returns, a placeholder name is used."""


def refuse(error: SmeltError) -> None:
    """Raise the error: nothing may be missing."""
    raise error


_DRIVES: dict[str, Drive] = {kind: kind for kind in MARKS}


@dataclass(frozen=True)
class FlashStep:
    """One step of flashing.

    Attributes:
        text: description for the user: a shell command line, or a sentence.
        run: function that performs the step, given a timeout in seconds and a function to call with
            each line of output. It raises `ToolError` or `DeviceError` if the step fails.
    """

    text: str
    run: Callable[[float, Callable[[str], None]], None]


@dataclass(frozen=True)
class FlashOptions:
    """Options of flashing; None selects a default by the board and the installed programs.

    Attributes:
        runner: name of the program, or `uf2` or `drag`.
        port: serial port of the board's boot loader, for runners that use one.
        server: HOST:PORT of a GDB server, or the serial port of a probe with a built-in server.
        drive: mount point of the board's USB drive.
        timeout_s: timeout of each program in seconds.
        simulated: whether the GDB server is known to be QEMU's.
    """

    runner: str | None = None
    port: str | None = None
    server: str | None = None
    drive: Path | None = None
    timeout_s: float = 120
    simulated: bool = False

    def steps(self, elf: Path, board: Board, lack: Lack = refuse) -> list[FlashStep]:
        """Return the steps that flash `elf`; see `choose`, `plan` and `find_port` for errors."""
        table = choose(board, self.runner, self.server, lack)
        port = self.port
        if takes_port(table) and port is None:
            try:
                port = find_port(board)
            except (ConfigError, DeviceError) as error:
                lack(error)
                port = "PORT"
        return plan(
            elf,
            board,
            table,
            port=port,
            server=self.server,
            simulated=self.simulated,
            drive=self.drive,
            lack=lack,
        )

    def flash(self, elf: Path, board: Board, say: Callable[[str], None]) -> None:
        """Flash `elf`. Call `say` with each command and each line of its output."""
        for step in self.steps(elf, board):
            say(f"$ {step.text}")
            step.run(self.timeout_s, say)


def choose(board: Board, runner: str | None, server: str | None, lack: Lack = refuse) -> FlashTable:
    """Return the table that says how to flash a board.

    Args:
        board: board to flash.
        runner: name of the runner. None selects GDB if there is a server, else the first of the
            board's runners that needs no program or has an installed one.
        server: HOST:PORT of a GDB server, or the serial port of a probe with a built-in server.
        lack: called if none of the programs is installed; if it returns, the first is used.

    Raises:
        ConfigError: the board has no such runner, or `runner` and `server` contradict each other.
        ToolError: none of the board's programs is installed.
    """
    if runner is None and server is not None:
        runner = "gdb"
    if (runner == "gdb") != (server is not None):
        raise ConfigError(
            "runner 'gdb' needs --gdb HOST:PORT"
            if server is None
            else f"--gdb needs runner 'gdb', not '{runner}'"
        )
    tables = {table.runner: table for table in reversed((*board.flash, GDB))}
    if runner is not None:
        for name, table in tables.items():
            if name == runner:
                return table
        known = ", ".join([*(table.runner for table in board.flash), "gdb"])
        raise ConfigError(f"board '{board.name}' has no runner '{runner}'; choose from {known}")
    if not board.flash:
        raise ConfigError(
            f"board '{board.name}' has no flashing program ([[flash]]): to flash it through a GDB "
            "server, give --gdb HOST:PORT"
        )
    for table in board.flash:
        if table.runner in _DRIVES or _installed(PROGRAMS[table.runner]) is not None:
            return table
    missing = "; ".join(
        f"{table.runner} ({PROGRAMS[table.runner].install})" for table in board.flash
    )
    lack(ToolError(f"no program that flashes board '{board.name}' is installed: {missing}"))
    return board.flash[0]


def plan(
    elf: Path,
    board: Board,
    table: FlashTable,
    *,
    port: str | None = None,
    server: str | None = None,
    simulated: bool = False,
    drive: Path | None = None,
    lack: Lack = refuse,
) -> list[FlashStep]:
    """Return the steps that flash `elf`; converted files are written beside it.

    Args:
        elf: the linked firmware.
        board: board that it was built for.
        table: table of the runner; see `choose`.
        port: serial port of the board's boot loader, for runners that use one.
        server: see `choose`.
        simulated: whether the GDB server is known to be QEMU's.
        drive: mount point of the board's drive; None selects the only one that is mounted.
        lack: called if the program is not installed, or no drive is mounted.

    Raises:
        ConfigError: an option that the runner needs is missing, or an option has no effect.
        DeviceError: no drive is mounted.
        ToolError: the ELF cannot be read, or the program is not installed.
    """
    kind = _DRIVES.get(table.runner)
    if kind is not None:
        return [_copy(elf, table, kind, drive, lack)]
    if drive is not None:
        raise ConfigError(f"--drive: runner '{table.runner}' does not use a drive")
    program = PROGRAMS[_variant(table, board, server)]
    executable = _installed(program)
    if executable is None:
        executable = program.names[0]
        lack(ToolError(f"'{executable}' is not installed, or not on PATH: {program.install}"))
    image = Image.of(elf)
    words = {
        "image": str(_converted(elf, program.image, image)),
        "address": image.address,
        "target": table.target,
        "offset": table.offset,
        "port": port,
        "port_name": port and PurePath(port).name,
        "server": server,
        "resets": (QEMU_RESET,) if simulated else GDB_RESETS,
        "interface": "JTAG" if board.startup == "riscv" else "SWD",
    }
    if program.script:
        script = elf.with_suffix(f".{table.runner}")
        lines = [_filled(line, words, board, table) for line in program.script]
        _write(script, "".join(f"{line}\n" for line in lines).encode())
        words["script"] = str(script)
    return [
        _command([executable, *_arguments(command, words, board, table)], program, words)
        for command in program.commands
    ]


def takes_port(table: FlashTable) -> bool:
    """Return whether a runner uses a serial port, which is then not the firmware's."""
    return table.runner in PROGRAMS and PROGRAMS[table.runner].has_placeholder("port")


def _variant(table: FlashTable, board: Board, server: str | None) -> str:
    if table.runner != "gdb":
        return table.runner
    if server is None:
        raise ConfigError("runner 'gdb' needs --gdb HOST:PORT")
    host, colon, number = server.rpartition(":")
    if host and colon and number.isdecimal():
        return f"gdb-{board.startup}"
    if "/" not in server:
        raise ConfigError(f"--gdb {server}: give HOST:PORT, or the serial port of a probe")
    return "gdb-probe"


def _installed(program: Program) -> str | None:
    return next((name for name in program.names if shutil.which(name) is not None), None)


def _copy(elf: Path, table: FlashTable, kind: Drive, drive: Path | None, lack: Lack) -> FlashStep:
    try:
        folder = find_drive(kind) if drive is None else check_drive(kind, drive)
    except DeviceError as error:
        lack(error)
        folder = Path("DRIVE")
    image = _converted(elf, "uf2" if kind == "uf2" else "hex", Image.of(elf), table.family)

    def run(timeout_s: float, say: Callable[[str], None]) -> None:
        copy(image, folder)
        say(f"{image.stat().st_size:,} bytes written; the board starts by itself")

    return FlashStep(shlex.join(["cp", str(image), str(folder)]), run)


def _command(command: list[str], program: Program, words: dict[str, Any]) -> FlashStep:
    peer = None
    if program.waiting_line:
        server = str(words["server"])
        name = f"the GDB server at {server}"
        peer = AwaitedPeer(program.waiting_line, name, _SILENCE_S, pace_of(server))

    def run(timeout_s: float, say: Callable[[str], None]) -> None:
        try:
            execute(command, timeout_s, say, program.failure_texts, peer)
        except ToolError as error:
            hint = program.hint.format_map(words)
            raise ToolError(f"{error}\nPossible cause: {hint}." if hint else str(error)) from error

    return FlashStep(shlex.join(command), run)


def _arguments(
    command: tuple[str, ...], words: dict[str, Any], board: Board, table: FlashTable
) -> list[str]:
    arguments: list[str] = []
    for word in command:
        if word == "{config}":
            arguments += [part for file in table.config for part in ("-f", file)]
        elif word == "{resets}":
            arguments += [part for line in words["resets"] for part in ("-ex", line)]
        else:
            arguments.append(_filled(word, words, board, table))
    return arguments


def _filled(text: str, words: dict[str, Any], board: Board, table: FlashTable) -> str:
    for word, option in (("target", "`target` in its [[flash]] table"), ("port", "--port")):
        if f"{{{word}" in text and words[word] is None:
            raise ConfigError(f"runner '{table.runner}' of board '{board.name}' needs {option}")
    return text.format_map(words)


def _converted(elf: Path, kind: str, image: Image, family: int | None = None) -> Path:
    if kind == "elf":
        return elf
    if kind == "uf2":
        assert family is not None  # ensured by the schema
        made = uf2(image, family)
    else:
        made = image.binary() if kind == "bin" else image.intel_hex()
    return _write(elf.with_suffix(f".{kind}"), made)


def _write(path: Path, content: bytes) -> Path:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"cannot write '{path}': {error.strerror}") from error
    return path

"""From a board's `[[flash]]` tables to what is done, in order."""

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
from smelt.boards.flash.process import Asked, execute
from smelt.boards.flash.programs import PROGRAMS, Program
from smelt.boards.flash.uf2 import uf2
from smelt.boards.ports import find_port
from smelt.boards.schema import FlashTable
from smelt.boards.simulation_timeout import pace_of
from smelt.errors import ConfigError, DeviceError, SmeltError, ToolError

GDB = FlashTable(runner="gdb")
"""For any board that a GDB server stands before."""

_MUTE_S = 5
"""How long a GDB server may take for its first answer."""

Lack = Callable[[SmeltError], None]
"""Is told of a program, drive or port that is not there; where it returns, a name stands for it."""


def refuse(error: SmeltError) -> None:
    """Let nothing be missing."""
    raise error


_DRIVES: dict[str, Drive] = {kind: kind for kind in MARKS}


@dataclass(frozen=True)
class FlashStep:
    """One thing that is done.

    Attributes:
        text: for the user: a command line for the shell, or a sentence.
        run: does it within so many seconds, and calls back with every line that a program writes;
            raises `ToolError` or `DeviceError` where it fails.
    """

    text: str
    run: Callable[[float, Callable[[str], None]], None]


@dataclass(frozen=True)
class Way:
    """How firmware is put on a board; what is None is chosen by the board and what is installed.

    Attributes:
        runner: the program's name, or `uf2` or `drag`.
        port: serial port of the board's boot loader, where the runner speaks to that.
        server: HOST:PORT of a GDB server, or the serial port of a probe that has one inside.
        drive: the folder of the board's drive.
        timeout_s: seconds that a program may take.
    """

    runner: str | None = None
    port: str | None = None
    server: str | None = None
    drive: Path | None = None
    timeout_s: float = 120

    def steps(self, elf: Path, board: Board, lack: Lack = refuse) -> list[FlashStep]:
        """What puts `elf` on the board; see `choose` and `plan`, and `find_port`."""
        table = choose(board, self.runner, self.server, lack)
        port = self.port
        if takes_port(table) and port is None:
            try:
                port = find_port(board)
            except (ConfigError, DeviceError) as error:
                lack(error)
                port = "PORT"
        return plan(elf, board, table, port=port, server=self.server, drive=self.drive, lack=lack)

    def flash(self, elf: Path, board: Board, say: Callable[[str], None]) -> None:
        """Put `elf` on the board; `say` gets every command, and every line that it writes."""
        for step in self.steps(elf, board):
            say(f"$ {step.text}")
            step.run(self.timeout_s, say)


def choose(board: Board, runner: str | None, server: str | None, lack: Lack = refuse) -> FlashTable:
    """How a board is flashed.

    Args:
        board: the one that is.
        runner: its name; None: by GDB where there is a server, otherwise the first of the board's
            that needs no program, or one that is installed.
        server: HOST:PORT of a GDB server, or the serial port of a probe that has one inside.
        lack: is told that no program for the board is installed; the first is taken if it returns.

    Raises:
        ConfigError: the board has no such runner, or a GDB server is missing or not asked for.
        ToolError: no program for the board is installed.
    """
    if runner is None and server is not None:
        runner = "gdb"
    if (runner == "gdb") != (server is not None):
        raise ConfigError(
            "runner 'gdb' needs --gdb HOST:PORT"
            if server is None
            else f"--gdb is of runner 'gdb', not of '{runner}'"
        )
    tables = {table.runner: table for table in reversed((*board.flash, GDB))}
    if runner is not None:
        for name, table in tables.items():
            if name == runner:
                return table
        known = ", ".join([*(table.runner for table in board.flash), "gdb"])
        raise ConfigError(f"board '{board.name}' is not flashed by '{runner}', but by {known}")
    if not board.flash:
        raise ConfigError(
            f"board '{board.name}' says no program that flashes it ([[flash]]); with a GDB server "
            "in front of it, give --gdb HOST:PORT"
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
    drive: Path | None = None,
    lack: Lack = refuse,
) -> list[FlashStep]:
    """What puts `elf` on the board, in order; files made of it are written beside it.

    Args:
        elf: the linked firmware.
        board: the one that it was built for.
        table: how it is flashed; see `choose`.
        port: serial port of the board's boot loader, where the runner speaks to that.
        server: see `choose`.
        drive: the folder of the board's drive; None: the only one that is mounted.
        lack: is told that the program is not installed, or no drive mounted.

    Raises:
        ConfigError: an option is missing that the runner needs, or given in vain.
        DeviceError: no drive is there.
        ToolError: the ELF cannot be read, or the program is not installed.
    """
    kind = _DRIVES.get(table.runner)
    if kind is not None:
        return [_copy(elf, table, kind, drive, lack)]
    if drive is not None:
        raise ConfigError(f"--drive: runner '{table.runner}' copies nothing to a drive")
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
    """Whether a runner flashes through a serial port, which is then not the firmware's."""
    return table.runner in PROGRAMS and PROGRAMS[table.runner].asks_for("port")


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
    asked = None
    if program.asks:
        server = str(words["server"])
        asked = Asked(program.asks, f"the GDB server at {server}", _MUTE_S, pace_of(server))

    def run(timeout_s: float, say: Callable[[str], None]) -> None:
        try:
            execute(command, timeout_s, say, program.refusals, asked)
        except ToolError as error:
            hint = program.hint.format_map(words)
            raise ToolError(f"{error}\nPerhaps: {hint}." if hint else str(error)) from error

    return FlashStep(shlex.join(command), run)


def _arguments(
    command: tuple[str, ...], words: dict[str, Any], board: Board, table: FlashTable
) -> list[str]:
    arguments: list[str] = []
    for word in command:
        if word == "{config}":
            arguments += [part for file in table.config for part in ("-f", file)]
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
        assert family is not None  # the schema sees to it
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

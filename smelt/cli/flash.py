"""`smelt flash`: a project, or a network that is built first, goes onto a board and must answer."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from smelt import boards
from smelt.api.compile import compile_model
from smelt.boards import Board
from smelt.boards.flash import Way, choose, takes_port
from smelt.boards.ports import find_port
from smelt.cli.options import BuildGroup, QuietOption
from smelt.cli.output import notes, progress_console, say
from smelt.codegen.emit.destination import REPORT
from smelt.errors import ConfigError, DeviceError
from smelt.proof.rig import built


@dataclass(frozen=True)
class FlashGroup:
    """How firmware is put on a board."""

    runner: Annotated[
        str | None,
        typer.Option(
            "--runner", help="What flashes [default: the first of the board's that is installed]."
        ),
    ] = None
    port: Annotated[
        str | None,
        typer.Option("--port", help="Serial port of the board [default: found by its USB ids]."),
    ] = None
    gdb: Annotated[
        str | None,
        typer.Option(
            "--gdb", help="Flash by a GDB server: HOST:PORT, or a Black Magic Probe's serial port."
        ),
    ] = None
    drive: Annotated[
        Path | None,
        typer.Option("--drive", help="Folder of the board's drive [default: the one mounted]."),
    ] = None
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds that the program may take.")
    ] = 120

    def way(self) -> Way:
        """The same, as the runners take it."""
        return Way(self.runner, self.port, self.gdb, self.drive, self.timeout)


@dataclass(frozen=True)
class FlashedFirmware:
    """What is flashed: the ELF, the board that it was built for, the hash of its network."""

    elf: Path
    board: Board
    hash: str


def flash(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|MODEL",
            help="A project that `smelt build --compile` wrote, or a network to build.",
            show_default=False,
        ),
    ],
    *,
    way: FlashGroup,
    check: Annotated[
        bool, typer.Option(help="Whether the board must answer on its serial port afterwards.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be run, and do not run it.")
    ] = False,
    network: BuildGroup,
    quiet: QuietOption = False,
) -> None:
    """Put firmware on a board.

    `smelt flash out --board nucleo-f446re`

    `smelt flash model.tflite --board pico --runner uf2`

    `smelt flash out --board mps2-an386 --gdb localhost:1234 --dry-run`
    """
    console = progress_console(quiet)
    with firmware(source, network, console, keep=dry_run) as made:
        if dry_run:
            _print_steps(made, way, console)
            if not source.is_dir():
                folder = made.elf.parents[2]
                say(console, f"note: the files are in {folder}, which stays until you remove it")
            return
        done = put_on_board(made, way, console, check=check)
    if not quiet:
        typer.echo(done)


def _print_steps(made: FlashedFirmware, way: FlashGroup, console: Console) -> None:
    """What would be run; what is missing for it is a note."""
    lacking: dict[str, None] = {}
    steps = way.way().steps(made.elf, made.board, lambda error: lacking.update({str(error): None}))
    for lack in lacking:
        say(console, f"note: {lack}")
    for step in steps:
        typer.echo(step.text)


def put_on_board(
    made: FlashedFirmware, way: FlashGroup, console: Console, *, check: bool = True
) -> str:
    """Flash firmware; what was done, and with `check` what the board answers afterwards."""
    way.way().flash(made.elf, made.board, lambda line: say(console, line))
    table = choose(made.board, way.runner, way.gdb)
    done = f"{made.board.name}: flashed by {table.runner}"
    if check and not takes_port(table):
        done += _answer(made, way.port, console)
    return done


@contextmanager
def firmware(
    source: Path, network: BuildGroup, console: Console, *, keep: bool = False
) -> Generator[FlashedFirmware]:
    """The firmware of a project's folder, or of a network that is built for the occasion.

    With `keep` what was built stays, in a folder of its own.
    """
    if source.is_dir():
        yield _of_project(source, network)
        return
    options = network.build_options()
    if options.board is None:
        raise ConfigError("--board says what is flashed, see `smelt boards`")
    if network.dump_after is not None:
        raise ConfigError("--dump-after is of `smelt build`")
    with ExitStack() as stack:
        with console.status(f"building {source.name}"):
            artefact = compile_model(source, options)
            if artefact.board is None:
                raise ConfigError(f"--board {options.board} is not a device that can be flashed")
            elf = stack.enter_context(built(artefact, keep=keep))
        notes(console, artefact.notes)
        yield FlashedFirmware(elf.path, artefact.board, artefact.network.hash)


def _of_project(folder: Path, network: BuildGroup) -> FlashedFirmware:
    """The firmware of a project's folder; `ConfigError` unless it is one for that board."""
    if network != BuildGroup(board=network.board):
        raise ConfigError(
            f"'{folder}' is built already: of the options of a build only --board may be given"
        )
    try:
        report: Any = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        name, hash_ = str(report["network"]["name"]), str(report["network"]["hash"])
        built_for: str | None = report["board"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"'{folder}' is not a project that `smelt build` wrote: its {REPORT} is missing or "
            "broken"
        ) from error
    if built_for is None:
        raise ConfigError(f"'{folder}' was built for no board: build it with --board")
    board = boards.load(network.board or built_for)
    if board.name != built_for:
        raise ConfigError(
            f"'{folder}' was built for board '{built_for}', not '{board.name}': build it again"
        )
    elf = folder / "build" / f"{name}.elf"
    if not elf.is_file():
        raise ConfigError(f"'{elf}' is not there: run `make` in '{folder}'")
    return FlashedFirmware(elf, board, hash_)


def _answer(firmware: FlashedFirmware, port: str | None, console: Console) -> str:
    """What to say about the board's answer; the firmware that answers must be what was flashed."""
    if port is None:
        try:
            port = find_port(firmware.board)
        except (ConfigError, DeviceError) as error:
            say(console, f"note: whether it runs was not checked: {error}")
            return ""
    try:
        with boards.open_device(None, port, firmware.board, expected_hash=firmware.hash) as device:
            return f"; {device.info.name} ({firmware.hash}) answers on {port}"
    except DeviceError as error:
        raise DeviceError(
            f"{error}\nThe board was flashed; --no-check leaves out the question whether it answers"
        ) from error

"""`smelt flash`: flash a project or a network onto a board, and check that it responds."""

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
from smelt.boards.flash import FlashOptions, choose, takes_port
from smelt.boards.ports import find_port
from smelt.cli.options import BuildGroup, QuietOption
from smelt.cli.output import notes, progress_console, say
from smelt.codegen.emit.destination import REPORT
from smelt.errors import ConfigError, DeviceError
from smelt.proof.rig import built


@dataclass(frozen=True)
class FlashGroup:
    """Options that say how to flash a board."""

    runner: Annotated[
        str | None,
        typer.Option(
            "--runner",
            help="Tool that flashes [default: the board's first runner that is installed].",
        ),
    ] = None
    port: Annotated[
        str | None,
        typer.Option("--port", help="Serial port of the board [default: found by USB ids]."),
    ] = None
    gdb: Annotated[
        str | None,
        typer.Option(
            "--gdb",
            help="Flash through a GDB server: HOST:PORT, or the serial port of a Black Magic "
            "Probe.",
        ),
    ] = None
    drive: Annotated[
        Path | None,
        typer.Option(
            "--drive", help="Mount point of the board's USB drive [default: auto-detected]."
        ),
    ] = None
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Timeout of the flashing tool in seconds.")
    ] = 120

    def options(self) -> FlashOptions:
        """Return these options in the form that the runners take."""
        return FlashOptions(self.runner, self.port, self.gdb, self.drive, self.timeout)


@dataclass(frozen=True)
class FlashedFirmware:
    """Firmware to flash: its ELF file, its board, and the hash of its network."""

    elf: Path
    board: Board
    hash: str


def flash(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|MODEL",
            help="Folder of a project from `smelt build --compile`, or a network to build first.",
            show_default=False,
        ),
    ],
    *,
    flashing: FlashGroup,
    check: Annotated[
        bool, typer.Option(help="Afterwards, check that the board responds on its serial port.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands without running them.")
    ] = False,
    network: BuildGroup,
    quiet: QuietOption = False,
) -> None:
    """Flash firmware onto a board.

    `smelt flash out --board nucleo-f446re`

    `smelt flash model.tflite --board pico --runner uf2`

    `smelt flash out --board mps2-an386 --gdb localhost:1234 --dry-run`
    """
    console = progress_console(quiet)
    with firmware(source, network, console, keep=dry_run) as made:
        if dry_run:
            _print_steps(made, flashing, console)
            if not source.is_dir():
                folder = made.elf.parents[2]
                say(console, f"note: the files are in {folder}; remove it when you are done")
            return
        done = put_on_board(made, flashing, console, check=check)
    if not quiet:
        typer.echo(done)


def _print_steps(made: FlashedFirmware, flashing: FlashGroup, console: Console) -> None:
    """Print the flashing commands, with a note for each tool or device that is missing."""
    lacking: dict[str, None] = {}
    steps = flashing.options().steps(
        made.elf, made.board, lambda error: lacking.update({str(error): None})
    )
    for lack in lacking:
        say(console, f"note: {lack}")
    for step in steps:
        typer.echo(step.text)


def put_on_board(
    made: FlashedFirmware, flashing: FlashGroup, console: Console, *, check: bool = True
) -> str:
    """Flash firmware and return a message. With `check`, also check that the board responds."""
    flashing.options().flash(made.elf, made.board, lambda line: say(console, line))
    table = choose(made.board, flashing.runner, flashing.gdb)
    done = f"{made.board.name}: flashed by {table.runner}"
    if check and not takes_port(table):
        done += _answer(made, flashing.port, console)
    return done


@contextmanager
def firmware(
    source: Path, network: BuildGroup, console: Console, *, keep: bool = False
) -> Generator[FlashedFirmware]:
    """Yield the firmware of a project folder, or build a network and yield its firmware.

    The build uses a temporary folder, which stays afterwards if `keep` is set.

    Raises:
        ConfigError: the firmware does not fit the options, or no board is given.
    """
    if source.is_dir():
        yield _of_project(source, network)
        return
    options = network.build_options()
    if options.board is None:
        raise ConfigError("--board is missing: give the board to flash, see `smelt boards`")
    if network.dump_after is not None:
        raise ConfigError("--dump-after works with `smelt build` only: remove it")
    with ExitStack() as stack:
        with console.status(f"building {source.name}"):
            artifact = compile_model(source, options)
            if artifact.board is None:
                raise ConfigError(f"--board {options.board} cannot be flashed: it is a computer")
            elf = stack.enter_context(built(artifact, keep=keep))
        notes(console, artifact.notes)
        yield FlashedFirmware(elf.path, artifact.board, artifact.network.hash)


def _of_project(folder: Path, network: BuildGroup) -> FlashedFirmware:
    """Return the firmware of a project folder. Raise a `ConfigError` if it is for another board."""
    if network != BuildGroup(board=network.board):
        raise ConfigError(
            f"'{folder}' is already built: of the build options, only --board may be given"
        )
    try:
        report: Any = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        name, hash_ = str(report["network"]["name"]), str(report["network"]["hash"])
        built_for: str | None = report["board"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"'{folder}' is not a project of `smelt build`: its {REPORT} is missing or damaged"
        ) from error
    if built_for is None:
        raise ConfigError(f"'{folder}' was not built for a board: build it again with --board")
    board = boards.load(network.board or built_for)
    if board.name != built_for:
        raise ConfigError(
            f"'{folder}' was built for board '{built_for}', not '{board.name}': build it again"
        )
    elf = folder / "build" / f"{name}.elf"
    if not elf.is_file():
        raise ConfigError(f"'{elf}' does not exist: run `make` in '{folder}'")
    return FlashedFirmware(elf, board, hash_)


def _answer(firmware: FlashedFirmware, port: str | None, console: Console) -> str:
    """Return a message about the board's response. Raise unless it runs the flashed firmware."""
    if port is None:
        try:
            port = find_port(firmware.board)
        except (ConfigError, DeviceError) as error:
            say(console, f"note: did not check whether the firmware runs: {error}")
            return ""
    try:
        with boards.open_device(None, port, firmware.board, expected_hash=firmware.hash) as device:
            return f"; {device.info.name} ({firmware.hash}) answers on {port}"
    except DeviceError as error:
        raise DeviceError(
            f"{error}\nThe board was flashed; use --no-check to skip this check"
        ) from error

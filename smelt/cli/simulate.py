"""`smelt simulate`: simulate a board, with a serial port and a GDB server."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer

from smelt import boards
from smelt.boards import Board
from smelt.boards.simulate import Simulator
from smelt.cli.flash import firmware
from smelt.cli.options import BuildGroup, QuietOption
from smelt.cli.output import progress_console
from smelt.errors import ConfigError


def simulate(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR|MODEL]",
            help="What to run: a project folder from `smelt build --compile`, or a network to "
            "build first [default: nothing; the board waits for `smelt flash --gdb`].",
            show_default=False,
        ),
    ] = None,
    *,
    pty: Annotated[
        bool, typer.Option("--pty", help="Use a pseudo-terminal as the UART instead of a socket.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0, help="Stop after this time.")
    ] = None,
    network: BuildGroup,
    quiet: QuietOption = False,
) -> None:
    """Simulate a board in QEMU until Ctrl-C, with a serial port and a GDB server for flashing.

    `smelt simulate --board mps2-an386 --pty`

    `smelt simulate model.tflite --board mps2-an386 --pty`
    """
    console = progress_console(quiet)
    with ExitStack() as stack:
        if source is None:
            if network.board is None:
                raise ConfigError("--board is missing: give the board to simulate (`smelt boards`)")
            board, elf = boards.load(network.board), None
        else:
            made = stack.enter_context(firmware(source, network, console))
            board, elf = made.board, made.elf
        serve(board, elf, pty=pty, seconds=seconds)


def serve(board: Board, elf: Path | None, *, pty: bool, seconds: float | None) -> None:
    """Simulate a board until Ctrl-C, or for a number of seconds, and print its serial port.

    One instruction takes about one cycle of the board's clock, so that measured times are
    plausible. If the UART is a pseudo-terminal, wait until the firmware has started: a host would
    take its startup output for the reply to the first command.
    """
    with suppress(KeyboardInterrupt), Simulator(board, elf, pty=pty, clocked=True) as simulator:
        if pty and elf is not None:
            with boards.open_device(None, simulator.port, board):
                pass
        typer.echo(f"port {simulator.port}")
        if simulator.gdb is not None:
            typer.echo(f"gdb {simulator.gdb}")
        end = None if seconds is None else time.monotonic() + seconds
        while end is None or time.monotonic() < end:
            simulator.check()
            time.sleep(0.1)

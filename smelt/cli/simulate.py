"""`smelt simulate`: a board that is not there, for whatever speaks to boards."""

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
            help="What it executes: a project that `smelt build --compile` wrote, or a network to "
            "build [default: nothing; it waits for `smelt flash --gdb`].",
            show_default=False,
        ),
    ] = None,
    *,
    pty: Annotated[
        bool, typer.Option("--pty", help="Its UART is a pseudo-terminal in place of a socket.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0, help="End by itself after so many.")
    ] = None,
    network: BuildGroup,
    quiet: QuietOption = False,
) -> None:
    """Let QEMU stand in for a board, until Ctrl-C: a port to open, and a GDB server to flash by.

    `smelt simulate --board mps2-an386 --pty`

    `smelt simulate model.tflite --board mps2-an386 --pty`
    """
    console = progress_console(quiet)
    with ExitStack() as stack:
        if source is None:
            if network.board is None:
                raise ConfigError("--board says what is simulated, see `smelt boards`")
            board, elf = boards.load(network.board), None
        else:
            made = stack.enter_context(firmware(source, network, console))
            board, elf = made.board, made.elf
        serve(board, elf, pty=pty, seconds=seconds)


def serve(board: Board, elf: Path | None, *, pty: bool, seconds: float | None) -> None:
    """Simulate a board until Ctrl-C, or for so many seconds; print where its UART is.

    An instruction takes about a cycle of the board's clock, so that its times are plausible.
    Firmware on a pseudo-terminal has started by then: what it says first, a host that takes it for
    the answer to its first command would never see the end of.
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

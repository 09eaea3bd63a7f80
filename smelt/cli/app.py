"""The `smelt` command: registers the commands in the order of `--help`, and reports errors."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer
from rich.console import Console

from smelt.cli.board import board
from smelt.cli.boards import boards
from smelt.cli.build import build
from smelt.cli.commands import Commands
from smelt.cli.deploy import deploy
from smelt.cli.explore import explore
from smelt.cli.export import export
from smelt.cli.flash import flash
from smelt.cli.inspect import inspect
from smelt.cli.mlperf_tiny import mlperf_tiny
from smelt.cli.ops import ops
from smelt.cli.options import grouped
from smelt.cli.partition import partition
from smelt.cli.profile import profile
from smelt.cli.quantize import quantize
from smelt.cli.run import run
from smelt.cli.simulate import simulate
from smelt.cli.targets import targets
from smelt.cli.tune import tune
from smelt.cli.verify import verify
from smelt.errors import DeviceError, SmeltError, ToolError
from smelt.terminal import one_line, plain
from smelt.version import __version__

app = typer.Typer(
    cls=Commands,
    name="smelt",
    help="Turn trained TFLite and ONNX networks into C projects for microcontrollers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


app.command()(grouped(build))
app.command()(grouped(quantize))
app.command()(grouped(flash))
app.command()(grouped(verify))
app.command()(grouped(deploy))
app.command()(grouped(simulate))
app.command()(grouped(tune))
app.add_typer(board, name="board")
app.command()(grouped(export))
app.command("mlperf-tiny")(grouped(mlperf_tiny))
app.command()(grouped(run))
app.command()(grouped(profile))
app.command()(grouped(partition))
app.command()(grouped(explore))
app.command()(grouped(inspect))
app.command()(ops)
app.command()(boards)
app.command()(targets)


def main() -> None:
    """Run the command line. Print a `SmeltError` as a message and exit with code 1."""
    signal.signal(signal.SIGTERM, _end)
    try:
        app(standalone_mode=True)
    except SmeltError as error:
        Console(stderr=True).print(f"[bold red]{error.kind}[/]: ", end="", highlight=False)
        # Output of a tool or a device may span lines. Other messages quote names, which may not.
        shown = plain if isinstance(error, ToolError | DeviceError) else one_line
        sys.stderr.write(f"{shown(str(error))}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _end(number: int, _: object) -> None:
    """Exit through `SystemExit`, so that cleanup code runs and child processes end too."""
    sys.exit(128 + number)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"smelt {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Turn trained TFLite and ONNX networks into C projects for microcontrollers."""


if __name__ == "__main__":
    main()

"""`smelt board`: create and check board files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smelt.boards import load
from smelt.boards.skeleton import check_name, copied, skeleton
from smelt.cli.show import boards as show
from smelt.errors import ConfigError
from smelt.files import write_files

board = typer.Typer(help="Create and check your own board files.", no_args_is_help=True)


@board.command()
def new(
    name: Annotated[
        str,
        typer.Argument(help="Name of the board: lower-case letters, digits, `-` and `_`."),
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Board file to write [default: NAME.toml]."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Target of the board's core (`smelt targets`).")
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", help="Known board to copy from (`smelt boards`).")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file if it exists.")
    ] = False,
) -> None:
    """Create a board file to edit, from a target or from a similar board.

    `smelt board new my-board --target cortex-m4`

    `smelt board new my-board --like nucleo-f446re`
    """
    check_name(name)
    path = Path(f"{name}.toml") if output is None else output
    if path.suffix != ".toml":
        raise ConfigError(f"-o {path}: the name of a board file must end in .toml")
    if path.exists() and not force:
        raise ConfigError(f"'{path}' exists: use --force to overwrite it")
    if (target is None) == (like is None):
        raise ConfigError("give either --target TARGET or --like BOARD")
    text = skeleton(name, target, path) if target is not None else copied(name, like or "", path)
    write_files({path: text.encode()})
    typer.echo(f"wrote {path}: edit the guessed values, then run `smelt board check {path}`")


@board.command()
def check(
    name: Annotated[str, typer.Argument(help="Path of a board file, or name of a known board.")],
) -> None:
    """Check a board file and print its contents.

    `smelt board check my-board.toml`
    """
    show.board(Console(), load(name))


__all__ = ["board"]

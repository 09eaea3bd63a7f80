"""`smelt board`: board files of the user's own."""

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

board = typer.Typer(help="Board files of your own.", no_args_is_help=True)


@board.command()
def new(
    name: Annotated[str, typer.Argument(help="Of the board: small letters, digits, `-`, `_`.")],
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file [default: NAME.toml].")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="What its core is (`smelt targets`).")
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", help="Board that it resembles (`smelt boards`).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Write a board file to start from, and check it.

    `smelt board new my-board --target cortex-m4`

    `smelt board new my-board --like nucleo-f446re`
    """
    check_name(name)
    path = Path(f"{name}.toml") if output is None else output
    if path.suffix != ".toml":
        raise ConfigError(f"-o {path}: a board file's name ends in .toml")
    if path.exists() and not force:
        raise ConfigError(f"'{path}' exists; --force replaces it")
    if (target is None) == (like is None):
        raise ConfigError("give --target, or the board that it is --like")
    text = skeleton(name, target, path) if target is not None else copied(name, like or "", path)
    write_files({path: text.encode()})
    typer.echo(f"wrote {path}: change what it guesses, then `smelt board check {path}`")


@board.command()
def check(
    name: Annotated[str, typer.Argument(help="A board file, or a board's name.")],
) -> None:
    """Check a board file, and show what it says.

    `smelt board check my-board.toml`
    """
    show.board(Console(), load(name))


__all__ = ["board"]

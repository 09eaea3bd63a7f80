"""Output of the commands: progress and notes on standard error, results on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn

from smelt.codegen.passes import PASSES
from smelt.errors import ConfigError
from smelt.files import write_files
from smelt.ir import Graph
from smelt.ir.text import print_graph
from smelt.terminal import one_line


def progress_console(quiet: bool) -> Console:
    """Return the console for progress and notes."""
    return Console(stderr=True, quiet=quiet)


def results_console(quiet: bool) -> Console:
    """Return the console for results."""
    return Console(quiet=quiet)


def say(console: Console, text: str) -> None:
    """Print one line without markup. Control characters and newlines are escaped."""
    console.print(one_line(text), highlight=False, markup=False, soft_wrap=True)


def notes(console: Console, sentences: Iterable[str]) -> None:
    """Print each note on its own line."""
    for note in sentences:
        say(console, f"note: {note}")


@contextmanager
def spinner(console: Console, text: str) -> Generator[None]:
    """Show a spinner until the context ends."""
    with console.status(text):
        yield


@contextmanager
def bars(console: Console) -> Generator[Callable[[str, int, int], None]]:
    """Show progress bars if the console is a terminal; call the yielded (text, done, total)."""
    text = TextColumn("{task.description}", markup=False)
    columns = SpinnerColumn(), text, BarColumn(), MofNCompleteColumn()
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        tasks: dict[str, TaskID] = {}

        def advance(text: str, done: int, total: int) -> None:
            if text not in tasks:
                tasks[text] = progress.add_task(text)
            progress.update(tasks[text], completed=done, total=total)

        yield advance


@contextmanager
def bar(console: Console, text: str, total: int) -> Generator[Callable[[int], None]]:
    """Show one progress bar if the console is a terminal; call the yielded (done)."""
    with bars(console) as advance:
        advance(text, 0, total)
        yield lambda done: advance(text, done, total)


def print_json(data: object) -> None:
    """Print JSON on standard output."""
    typer.echo(json.dumps(data, indent=2))


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """Write JSON to a file atomically. Raise a `ConfigError` if it cannot be written."""
    write_files({path: (json.dumps(report, indent=2) + "\n").encode()})


def dumper(name: str | None) -> Callable[[str, Graph], None] | None:
    """Return a function that prints the graph after the named pass, or None if `name` is None.

    Raises:
        ConfigError: there is no pass of that name.
    """
    if name is None:
        return None
    known = [transform.__name__ for transform in PASSES]
    if name not in known:
        raise ConfigError(f"--dump-after '{name}': no such pass; choose from {', '.join(known)}")

    def dump(done: str, graph: Graph) -> None:
        if done == name:
            typer.echo(print_graph(graph, {}), nl=False)

    return dump

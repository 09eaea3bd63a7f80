"""What commands say: progress and notes on standard error, results on standard output."""

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
    """For progress and notes."""
    return Console(stderr=True, quiet=quiet)


def results_console(quiet: bool) -> Console:
    """For results."""
    return Console(quiet=quiet)


def say(console: Console, text: str) -> None:
    """Print a line as it is, but for what a terminal would obey; names stay on it."""
    console.print(one_line(text), highlight=False, markup=False, soft_wrap=True)


def notes(console: Console, sentences: Iterable[str]) -> None:
    """What the user should know, a line each."""
    for note in sentences:
        say(console, f"note: {note}")


@contextmanager
def spinner(console: Console, text: str) -> Generator[None]:
    """Something turns while the context lasts."""
    with console.status(text):
        yield


@contextmanager
def bars(console: Console) -> Generator[Callable[[str, int, int], None]]:
    """Progress bars, on a terminal only; call what comes with a text, what is done, and of what."""
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
    """A progress bar, on a terminal only; call what comes with the number that is done."""
    with bars(console) as advance:
        advance(text, 0, total)
        yield lambda done: advance(text, done, total)


def print_json(data: object) -> None:
    """JSON on standard output."""
    typer.echo(json.dumps(data, indent=2))


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """JSON into a file that appears whole or not at all; `ConfigError` if it cannot be written."""
    write_files({path: (json.dumps(report, indent=2) + "\n").encode()})


def dumper(name: str | None) -> Callable[[str, Graph], None] | None:
    """Prints the graph after the pass of that name; `ConfigError` if there is none."""
    if name is None:
        return None
    known = [transform.__name__ for transform in PASSES]
    if name not in known:
        raise ConfigError(f"--dump-after '{name}' is not a pass; the passes are {', '.join(known)}")

    def dump(done: str, graph: Graph) -> None:
        if done == name:
            typer.echo(print_graph(graph, {}), nl=False)

    return dump

"""The fuzzer's command line: see `python -m tests.fuzz --help`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy

import typer

from tests.fuzz import report
from tests.fuzz.campaign import Campaign, run
from tests.fuzz.case import Case, cases
from tests.fuzz.forked import FAILURES, FUZZER, Limits, Result, tried, warm
from tests.fuzz.formats import ALL, BY_NAME
from tests.fuzz.shrink import shrunk


def main(
    *,
    minutes: Annotated[float | None, typer.Option(help="End after this time.")] = None,
    files: Annotated[int | None, typer.Option(help="End after this number of files.")] = None,
    format_: Annotated[
        list[str] | None,
        typer.Option("--format", help=f"{', '.join(BY_NAME)}; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 1,
    small: Annotated[
        bool, typer.Option("--small", help="Start from the repository's own small files only.")
    ] = False,
    output: Annotated[Path, typer.Option(help="Folder for files that reproduce failures.")] = Path(
        "build/fuzz"
    ),
    replay: Annotated[Path | None, typer.Option(help="Try this file only.")] = None,
) -> None:
    """Try damaged files; write a minimal file that reproduces each failure."""
    if replay is not None:
        raise typer.Exit(_replay(replay))
    unknown = set(format_ or ()) - set(BY_NAME)
    if unknown:
        raise typer.BadParameter(f"no format {', '.join(sorted(unknown))}; {', '.join(BY_NAME)}")
    if minutes is None and files is None:
        minutes = 1.0
    chosen = [BY_NAME[name] for name in format_] if format_ else list(ALL)
    warm(chosen)
    source = islice(cases(chosen, seed, wide=not small), files)
    campaign = Campaign()
    with suppress(KeyboardInterrupt):  # report what was found until then
        run(_until(source, minutes), BY_NAME, Limits(), jobs, _observe, campaign)
    for line in report.table(campaign):
        typer.echo(line)
    for number, failure in enumerate(campaign.failures.values()):
        typer.echo(f"\n{failure.count} x {report.line(failure.case, failure.result)}")
        if failure.result.kind == "crash" and FUZZER in failure.result.place:
            continue  # there is no file: making it failed
        case = shrunk(failure.case, BY_NAME[failure.case.format], failure.result, Limits())
        path = report.write(output, number, failure, case)
        typer.echo(f"python -m tests.fuzz --replay {path}")
    raise typer.Exit(1 if campaign.failures else 0)


def _until(source: Iterator[Case], minutes: float | None) -> Iterator[Case]:
    end = None if minutes is None else time.monotonic() + 60 * minutes
    for case in source:
        if end is not None and time.monotonic() > end:
            return
        yield case


def _observe(campaign: Campaign, case: Case, result: Result, new: bool) -> None:
    if new:
        typer.echo(f"{campaign.files:,}: {report.line(case, result)}")
    elif campaign.files % 5000 == 0:
        typer.echo(f"{campaign.files:,}: {len(campaign.failures)} failures")


def _replay(path: Path) -> int:
    """Try a file in the way that the notes beside it describe; return 1 if it fails."""
    failed = False
    for case, result in tried(report.read(path), BY_NAME, Limits()):
        typer.echo(report.line(case, result))
        typer.echo(f"{result.seconds:.2f} s of the CPU, {result.peak >> 20} MiB")
        typer.echo(result.trace)
        failed |= result.kind in FAILURES
    return int(failed)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()

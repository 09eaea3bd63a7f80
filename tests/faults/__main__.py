"""`python -m tests.faults`: plant every fault in a copy of the tree; exit 1 if one is missed."""

from __future__ import annotations

from typing import Annotated

import typer

from tests.faults import FAULTS
from tests.faults.run import Outcome, run_all
from tests.faults.table import markdown


def main(
    words: Annotated[
        list[str] | None, typer.Argument(help="Only faults whose part, text or file has these.")
    ] = None,
    *,
    jobs: Annotated[int, typer.Option(min=1, help="Faults at a time.")] = 2,
    table: Annotated[bool, typer.Option("--markdown", help="Write the table of the docs.")] = False,
) -> None:
    """Plant every fault in a copy of the tree, and run the quick tests that must find it."""

    def has(text: str) -> bool:
        return all(word in text for word in words or ())

    chosen = [f for f in FAULTS if has(f"{f.part} {f.says} {f.file}")]
    if not chosen:
        raise typer.BadParameter("no fault has these words")
    outcomes, broken = run_all(chosen, jobs, _tell)
    if table:
        typer.echo(markdown(outcomes))
    missed = sum(not outcome.found_by for outcome in outcomes)
    typer.echo(
        f"{len(outcomes) - missed} of {len(outcomes)} faults found by the quick tier (make test)",
        err=True,
    )
    for test in broken:
        typer.echo(f"fails without any fault: {test}", err=True)
    raise typer.Exit(1 if missed or broken else 0)


def _tell(outcome: Outcome) -> None:
    fault = outcome.fault
    verdict = f"found by {outcome.found_by}" if outcome.found_by else "NOT FOUND"
    typer.echo(f"{fault.part}: {fault.says}: {verdict}", err=True)
    if not outcome.found_by:
        typer.echo(outcome.said, err=True)


if __name__ == "__main__":
    typer.run(main)

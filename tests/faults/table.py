"""The table of planted faults in docs/reliability.md."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.fault import Fault
from tests.faults.run import Outcome

HEAD = ("| part | planted fault | file | found by |", "| --- | --- | --- | --- |")


def row(fault: Fault) -> str:
    """Return a fault's cells that do not depend on the test that finds it."""
    return f"| {fault.part} | {fault.says} | `{fault.file}` |"


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return the table in Markdown."""
    rows = (f"{row(o.fault)} {_by(o.found_by)} |" for o in outcomes)
    return "\n".join((*HEAD, *rows))


def _by(test: str) -> str:
    """Return a test's id without its folder and parameters, which may hold any character."""
    return f"`{test.partition('[')[0].removeprefix('tests/')}`" if test else "**nothing**"

"""The table of planted faults in docs/reliability.md."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.fault import Fault
from tests.faults.run import Outcome

HEAD = ("| part | planted fault | file | found by |", "| --- | --- | --- | --- |")


def row(fault: Fault) -> str:
    """The cells of a fault that do not depend on who finds it."""
    return f"| {fault.part} | {fault.says} | `{fault.file}` |"


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The table."""
    rows = (f"{row(o.fault)} {_by(o.found_by)} |" for o in outcomes)
    return "\n".join((*HEAD, *rows))


def _by(test: str) -> str:
    """A test without its folder and parameters, which may hold any character."""
    return f"`{test.partition('[')[0].removeprefix('tests/')}`" if test else "**nothing**"

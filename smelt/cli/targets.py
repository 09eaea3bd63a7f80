"""`smelt targets`: list the targets."""

from __future__ import annotations

from rich.console import Console

from smelt.cli.options import JsonOption
from smelt.cli.output import print_json
from smelt.cli.show import boards as show


def targets(json_: JsonOption = False) -> None:
    """List the targets that Smelt generates code for."""
    table = show.targets()
    if json_:
        print_json(table.records())
    else:
        table.print(Console())

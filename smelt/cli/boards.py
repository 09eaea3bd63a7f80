"""`smelt boards`: list the known boards."""

from __future__ import annotations

from rich.console import Console

from smelt.cli.options import JsonOption
from smelt.cli.output import print_json
from smelt.cli.show import boards as show


def boards(json_: JsonOption = False) -> None:
    """List the known boards."""
    table = show.boards()
    if json_:
        print_json(table.records())
    else:
        table.print(Console())

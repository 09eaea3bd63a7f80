"""`smelt ops`: list the supported operators."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from smelt.cli.options import JsonOption
from smelt.cli.output import print_json
from smelt.cli.show import operators as show


def ops(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown instead of tables.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """List the operators that Smelt imports, and the backends that support each."""
    imported, served = show.imported(), show.served()
    if json_:
        print_json({"imported": imported.records(), "served": served.records()})
    elif markdown:
        typer.echo(show.support_page(imported, served), nl=False)
    else:
        imported.print(Console())
        typer.echo()
        served.print(Console())

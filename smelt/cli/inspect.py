"""`smelt inspect`: show the layers of a network."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from smelt.api.plugins import load_plugins
from smelt.cli.options import InputGroup, JsonOption, Model
from smelt.cli.output import print_json
from smelt.cli.show import inspect as show
from smelt.frontend import load as load_model
from smelt.ir.text import print_graph


def inspect(
    model: Model,
    *,
    ir: Annotated[
        bool, typer.Option("--ir", help="Print the intermediate representation (IR) as text.")
    ] = False,
    network: InputGroup,
    json_: JsonOption = False,
) -> None:
    """Show the inputs, outputs and layers of a network.

    `smelt inspect model.tflite`

    `smelt inspect model.tflite --ir`
    """
    load_plugins(network.plugin_files())
    imported = load_model(model, inputs=network.options())
    if ir:
        typer.echo(print_graph(imported.graph, {}), nl=False)
    elif json_:
        print_json(show.description(imported))
    else:
        show.show(Console(), imported)

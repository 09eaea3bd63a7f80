"""`smelt explore`: show what less RAM costs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smelt.api.explore import memory_frontier
from smelt.cli.options import BuildGroup, JsonOption, Model
from smelt.cli.output import bar, print_json, progress_console, say
from smelt.cli.show import explore as show
from smelt.files import write_files


def explore(
    model: Model,
    *,
    points: Annotated[
        int, typer.Option("--points", min=2, help="How many limits of RAM to try.")
    ] = 6,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Draw the points into this file.")
    ] = None,
    network: BuildGroup,
    json_: JsonOption = False,
) -> None:
    """Show how many cycles a network takes with less RAM; `--max-ram` then chooses a point.

    `smelt explore model.tflite --board mps2-an386`

    `smelt explore model.tflite --target cortex-m4 --points 10 --svg ram.svg`
    """
    options = network.build_options()
    console = progress_console(json_)
    with bar(console, "compiling", points) as advance:
        found = memory_frontier(model, options, points, advance)
    if svg is not None:
        write_files({svg: show.drawing(found).encode()})
        say(console, f"wrote {svg}")
    if json_:
        print_json([asdict(point) for point in found])
    else:
        show.table(found).print(Console())

"""`smelt explore`: show what less RAM costs."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smelt.cli.options import BuildGroup, DeviceOption, JsonOption, Model, OnOption
from smelt.cli.output import bar, print_json, progress_console, say
from smelt.cli.show import explore as show
from smelt.errors import ConfigError, SmeltError
from smelt.files import require_place, write_files
from smelt.proof.explore import Frontier, MemoryBuild, memory_frontier, runs_on
from smelt.proof.farm import local_workers


def explore(
    model: Model,
    *,
    points: Annotated[
        int, typer.Option("--points", min=2, help="How many limits of RAM to try, besides none.")
    ] = 6,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only compile, and show estimated cycles.")
    ] = False,
    on: OnOption = None,
    device: DeviceOption = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            help="Builds at a time [default: one per CPU core; one if a board or this computer "
            "is timed].",
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Draw the points into this file.")
    ] = None,
    network: BuildGroup,
    json_: JsonOption = False,
) -> None:
    """Show what a network costs with less RAM; `--max-ram` then chooses a point.

    Each point is built and runs one inference: instructions in a simulator, or time on a device.
    Without a board that can be simulated, or a device, the cost is estimated.

    `smelt explore model.tflite --board mps2-an386`

    `smelt explore model.tflite --target cortex-m4 --points 10 --svg ram.svg`
    """
    if estimate and (on is not None or device is not None):
        raise ConfigError("--estimate runs nothing: remove --on and --device")
    if svg is not None:
        require_place(svg)
    options = network.build_options()
    where = None if estimate else runs_on(options, on, device)
    plugins = tuple(path.resolve() for path in network.plugin_files())
    build = MemoryBuild(str(model.resolve()), where, options, plugins, device)
    cores = os.cpu_count() or 1 if where in (None, "qemu") else 1
    console = progress_console(json_)
    with (
        local_workers(min(jobs or cores, points)) as executor,
        bar(console, "building", points + 1) as advance,
    ):
        found = memory_frontier(build, points, executor, advance)
    if svg is not None and found.points:
        write_files({svg: show.drawing(found.points).encode()})
        say(console, f"wrote {svg}")
    if json_:
        print_json(asdict(found))
    elif found.points:
        show.table(found.points).print(Console())
    _require_all(found)


def _require_all(found: Frontier) -> None:
    """Raise a `SmeltError` that lists the builds that failed, if there are any."""
    limits: dict[str, list[str]] = {}
    for failed in found.failed:
        limits.setdefault(failed.error, []).append(failed.limit or "no limit")
    if limits:
        each = "; ".join(f"{', '.join(names)}: {error}" for error, names in limits.items())
        raise SmeltError(f"{len(found.failed)} of {found.tried} builds failed: {each}")

"""`smelt export`: write a network as a library for an existing build."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smelt.api.compile import compile_model
from smelt.cli.options import BuildGroup, ForceOption, QuietOption
from smelt.cli.output import say
from smelt.cli.shared_arena import Models
from smelt.codegen.emit.destination import check_destination
from smelt.codegen.emit.export import Package, export_project, find_format, formats
from smelt.errors import ConfigError

FormatOption = Annotated[
    str,
    typer.Option("--format", metavar="FORMAT", help=f"Kind of library: {', '.join(formats())}."),
]


def export(
    models: Models,
    *,
    share_arena: Annotated[bool, typer.Option("--share-arena", hidden=True)] = False,
    format_: FormatOption,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the library.")],
    force: ForceOption = False,
    version: Annotated[
        str, typer.Option("--version", help="Version of the library, for package managers.")
    ] = Package.version,
    vendor: Annotated[
        str, typer.Option("--vendor", help="Vendor of the library, for package managers: one word.")
    ] = Package.vendor,
    network: BuildGroup,
    quiet: QuietOption = False,
) -> None:
    """Write a network as a library for your own project.

    `smelt export model.tflite --format cmake -o digits --target cortex-m4`

    `smelt export model.tflite --format arduino -o ~/Arduino/libraries/digits --board nano-33-ble`
    """
    if share_arena or len(models) > 1:
        raise ConfigError(
            "a library contains one network: export each network to a folder of its own, without "
            "--share-arena. Networks that run one after the other can be given the same array as "
            "`arena`, as large as the largest NAME_ARENA_BYTES"
        )
    (model,) = models
    options = network.build_options()
    if network.dump_after is not None:
        raise ConfigError("--dump-after works with `smelt build` only: remove it")
    chosen, package = find_format(format_), Package(version, vendor)
    check_destination(output, force=force, remedy="--force")
    console = Console(stderr=True, quiet=quiet)
    with console.status(f"compiling {model.name}"):
        artifact = compile_model(model, options)
        library = export_project(
            artifact.project, artifact.platform, options.optimize, chosen, package
        )
        library.write(output, force=force)
    for note in artifact.notes:
        say(console, f"note: {note}")
    if not quiet:
        typer.echo(f"wrote {output}: {chosen.summary}; see its README.md")

"""`smelt build`: write a C project for a network."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.cli.options import BuildGroup, ForceOption, JsonOption, LimitGroup, QuietOption
from smelt.cli.output import dumper, notes, print_json, progress_console, results_console, spinner
from smelt.cli.shared_arena import Models, ShareArenaOption, compile_shared, only
from smelt.cli.show import report as show
from smelt.codegen.emit.destination import check_destination
from smelt.errors import ConfigError
from smelt.proof.mlperf_tiny import benchmark_of, with_benchmark_firmware
from smelt.proof.run import write_project
from smelt.proof.shared_arena import write_shared


class Protocol(StrEnum):
    """Protocols of the firmware on its serial line."""

    wire = "wire"
    mlperf = "mlperf"


def build(
    models: Models,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the C project.")],
    force: ForceOption = False,
    compile_: Annotated[
        bool,
        typer.Option("--compile", help="Also run `make`, and report the measured sizes."),
    ] = False,
    protocol: Annotated[
        Protocol,
        typer.Option(
            "--protocol",
            help="Protocols of the firmware: Smelt's own, or MLPerf Tiny's in addition "
            "(see `smelt mlperf-tiny`).",
        ),
    ] = Protocol.wire,
    share_arena: ShareArenaOption = False,
    network: BuildGroup,
    limits: LimitGroup,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a C project for a network: a library, and with --board firmware around it.

    `smelt build model.tflite -o out`

    `smelt build model.tflite -o out --board mps2-an386 --optimize size --compile`

    `smelt build model.tflite -o out --board mps2-an386 --max-arena 16384 --max-flash 65536`

    `smelt build kws.tflite vww.tflite --share-arena -o both --target cortex-m4`
    """
    if protocol is Protocol.mlperf and network.board is None:
        raise ConfigError("--protocol mlperf needs --board: without one there is no firmware")
    if protocol is Protocol.mlperf and share_arena:
        raise ConfigError("--protocol mlperf is for one network: remove --share-arena")
    if not share_arena:
        only(models)
    check_destination(output, force=force, remedy="--force")
    console = progress_console(quiet or json_)
    most = limits.build_limits()
    with spinner(console, f"compiling {', '.join(model.name for model in models)}"):
        if share_arena:
            shared = compile_shared(models, network)
            report = write_shared(shared, output, force=force, compile_=compile_, limits=most)
        else:
            artifact = _compiled(models[0], network, protocol)
            report = write_project(artifact, output, force=force, compile_=compile_, limits=most)
    notes(console, report["notes"])
    if json_:
        print_json(report)
    else:
        show.build(results_console(quiet), output, report)


def _compiled(model: Path, network: BuildGroup, protocol: Protocol) -> Artifact:
    """Compile one network, with firmware for the protocol."""
    artifact = compile_model(model, network.build_options(), dumper(network.dump_after))
    if protocol is Protocol.mlperf:
        return with_benchmark_firmware(artifact, benchmark_of(artifact.graph, model.stem))
    return artifact

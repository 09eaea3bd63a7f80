"""`smelt mlperf-tiny`: build firmware for the runner of the MLPerf Tiny benchmarks."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smelt.api.compile import compile_model
from smelt.cli.flash import FlashedFirmware, FlashGroup, put_on_board
from smelt.cli.options import BuildGroup, ForceOption, Model, QuietOption
from smelt.cli.output import dumper, notes, progress_console, say, spinner
from smelt.cli.simulate import serve
from smelt.codegen.emit.destination import check_destination
from smelt.errors import ConfigError
from smelt.proof.deploy import board_of
from smelt.proof.mlperf_tiny import benchmark_of, describe_input, with_benchmark_firmware
from smelt.proof.rig import built
from smelt.proof.run import write_project

if TYPE_CHECKING:
    from smelt.api.artifact import Artifact


def mlperf_tiny(
    model: Model,
    *,
    id_: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="Benchmark: kws01, vww01, ic01, ad01 or strww01 [default: by the input's shape].",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the compiled C project.")
    ] = None,
    force: ForceOption = False,
    flash: Annotated[bool, typer.Option("--flash", help="Flash the firmware.")] = False,
    flashing: FlashGroup,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Run the firmware in QEMU until Ctrl-C.")
    ] = False,
    pty: Annotated[
        bool,
        typer.Option(
            "--pty",
            help="With --simulate: use a pseudo-terminal, which the benchmark's runner needs.",
        ),
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0, help="With --simulate: stop after this time."),
    ] = None,
    network: BuildGroup,
    quiet: QuietOption = False,
) -> None:
    """Build firmware for an MLPerf Tiny benchmark, for use with its runner.

    `smelt mlperf-tiny kws_int8.tflite --board nucleo-l4r5zi -o kws --flash`

    `smelt mlperf-tiny kws_int8.tflite --board mps2-an386 --simulate --pty`
    """
    if flash == simulate and (flash or output is None):
        raise ConfigError("give -o DIR, --flash or --simulate (the last two exclude each other)")
    if (pty or seconds is not None) and not simulate:
        raise ConfigError("--pty and --seconds need --simulate")
    if flashing != FlashGroup() and not flash:
        raise ConfigError("--runner, --port, --gdb, --drive and --timeout need --flash")
    if output is not None:
        check_destination(output, force=force, remedy="--force")
    console = progress_console(quiet)
    with spinner(console, f"compiling {model.name}"):
        artifact = compile_model(model, network.build_options(), dumper(network.dump_after))
        board = board_of(artifact)
        benchmark = benchmark_of(artifact.graph, model.stem, id_)
        artifact = with_benchmark_firmware(artifact, benchmark)
    notes(console, artifact.notes)
    say(console, f"{benchmark.id}: {describe_input(benchmark, artifact.graph)}")
    with _linked(artifact, output, force=force) as elf:
        if flash:
            made = FlashedFirmware(elf, board, artifact.network.hash)
            typer.echo(put_on_board(made, flashing, console))
        elif simulate:
            serve(board, elf, pty=pty, seconds=seconds)
        elif not quiet:
            typer.echo(f"{elf}: {benchmark.id} for {board.name}")


@contextmanager
def _linked(artifact: Artifact, output: Path | None, *, force: bool) -> Generator[Path]:
    """Yield the ELF of a project, compiled in `output` or in a temporary folder."""
    if output is None:
        with built(artifact) as elf:
            yield elf.path
        return
    write_project(artifact, output, force=force, compile_=True)
    yield output / "build" / f"{artifact.network.title}.elf"

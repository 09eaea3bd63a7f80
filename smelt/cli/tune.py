"""`smelt tune`: measure the layers of a network on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smelt.cli.options import BuildGroup, DeviceOption, Model, QuietOption
from smelt.cli.output import progress_console, results_console, say, spinner
from smelt.cli.show.tables import TextTable
from smelt.codegen.lower.device import TUNING
from smelt.files import require_place, write_files
from smelt.proof.tune import MeasuredLayer, Tuned
from smelt.proof.tune import tune as tune_model


def tune(
    model: Model,
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File for the measurements.")
    ] = Path(TUNING),
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", min=1, help="Number of inferences to measure; Smelt uses each median."
        ),
    ] = 20,
    device: DeviceOption = None,
    network: BuildGroup,
    quiet: QuietOption = False,
) -> None:
    """Measure each layer on a GPU, with several block sizes, and on the CPU.

    `smelt tune model.onnx --target vulkan -o tuning.json`

    `smelt build --tuning` reads the result. Each layer is measured on the GPU and on the CPU;
    `--backends`, `--place` and `--tuning` have no effect here.
    """
    require_place(output)
    with spinner(progress_console(quiet), "measuring"):
        found = tune_model(model, network.build_options(), rounds, device)
    write_files({output: found.tuning.text.encode()})
    console = results_console(quiet)
    _table(found).print(console)
    count, submit = len(found.tuning.blocks), found.tuning.submit_ns / 1e3
    say(
        console,
        f"wrote {output}: {len(found.layers)} distinct layers, {count} with another block size "
        f"than profile '{found.tuning.profile}' chooses; {submit:.1f} us per submission to "
        f"{found.tuning.device}",
    )


def _table(found: Tuned) -> TextTable:
    """Return a table of the microseconds of each distinct layer."""
    columns = ("layer", "", "by profile", "us", "fastest block", "us", "us on CPU")
    return TextTable(columns, tuple(_row(layer) for layer in found.layers))


def _row(layer: MeasuredLayer) -> tuple[object, ...]:
    kind, found = layer.kind, layer.found
    return (
        f"{kind.node.op.name} {kind.node.output.type}",
        f"x {kind.count}" if kind.count > 1 else "",
        "-" if kind.call.block is None else kind.call.block.text,
        f"{layer.own_ns / 1e3:.1f}",
        "" if found.block is None else found.block.text,
        f"{found.device_ns / 1e3:.1f}",
        "-" if found.cpu_ns is None else f"{found.cpu_ns / 1e3:.1f}",
    )

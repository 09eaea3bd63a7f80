"""`smelt tune`."""

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
        Path, typer.Option("-o", "--output", help="File of what was measured.")
    ] = Path(TUNING),
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", min=1, help="Inferences of each program; the median of each layer counts."
        ),
    ] = 20,
    device: DeviceOption = None,
    network: BuildGroup,
    quiet: QuietOption = False,
) -> None:
    """Measure every layer on a GPU, in several blocks, and on the CPU, for `smelt build --tuning`.

    `smelt tune model.onnx --target vulkan -o tuning.json`

    Every layer is measured in both places, whatever `--backends`, `--place` and `--tuning` say.
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
        f"wrote {output}: {len(found.layers)} kinds of layers, {count} with other blocks than the "
        f"profile '{found.tuning.profile}' has; {submit:.1f} us a submission to "
        f"{found.tuning.device}",
    )


def _table(found: Tuned) -> TextTable:
    """What each kind of layer takes, in microseconds."""
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

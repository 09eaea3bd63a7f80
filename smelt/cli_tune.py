"""`smelt tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smelt.cli_options import BuildGroup, DeviceOption, Model, QuietOption
from smelt.cli_output import progress_console, results_console, spinner
from smelt.codegen.tuning import FILE
from smelt.files import write_files
from smelt.tune import tune as tune_model


def tune(
    model: Model,
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File of what was measured.")
    ] = Path(FILE),
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Inferences; the median of each layer counts.")
    ] = 20,
    device: DeviceOption = None,
    network: BuildGroup,
    quiet: QuietOption = False,
) -> None:
    """Measure every layer on a GPU and on the CPU beside it, for `smelt build --tuning FILE`.

    `smelt tune model.onnx --target vulkan -o tuning.json`
    """
    with spinner(progress_console(quiet), "measuring"):
        found = tune_model(model, network.build_options(), rounds, device)
    write_files({output: found.text.encode()})
    count, submit = len(found.layers), found.submit_ns / 1e3
    results_console(quiet).print(f"{output}: {count} kinds of layers, {submit:.1f} us a submission")

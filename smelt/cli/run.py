"""`smelt run`: compute the outputs of a network for given inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smelt.api.compile import compile_model
from smelt.cli.options import (
    BuildGroup,
    DeviceOption,
    JsonFileOption,
    LimitGroup,
    Model,
    OnOption,
    QuietOption,
)
from smelt.cli.output import bar, dumper, notes, progress_console, results_console, write_json
from smelt.cli.show import report as show
from smelt.proof.rig import Rig
from smelt.proof.run import run as run_model
from smelt.samples import bind_samples, load_arrays, named_outputs, save_arrays


def run(
    model: Model,
    *,
    inputs: Annotated[Path, typer.Option("--inputs", help=".npz file of inputs.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the outputs to this .npz file.")
    ] = None,
    on: OnOption = None,
    device: DeviceOption = None,
    dequantize: Annotated[
        bool, typer.Option("--dequantize", help="Convert int8 outputs to real numbers.")
    ] = False,
    network: BuildGroup,
    limits: LimitGroup,
    json_: JsonFileOption = None,
    quiet: QuietOption = False,
) -> None:
    """Build a network, run it on every sample, and print or save the outputs.

    `smelt run model.tflite --inputs in.npz -o out.npz --board mps2-an386`
    """
    options = network.build_options()
    console = progress_console(quiet)
    artifact = compile_model(model, options, dumper(network.dump_after))
    samples, batched = bind_samples(artifact.graph, load_arrays(inputs))
    with bar(console, "running", len(samples)) as advance:
        result = run_model(artifact, samples, Rig(on, device_number=device), advance)
    outputs = named_outputs(artifact.graph, result.outputs, batched=batched, real=dequantize)
    if output is not None:
        save_arrays(output, outputs)
    if json_ is not None:
        write_json(json_, result.report)
    notes(console, artifact.notes)
    limits.build_limits().check(result.report)
    show.run(results_console(quiet), outputs, result.report, batched=batched)

"""`smelt profile`: measure the cost of each layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.report import Report
from smelt.cli.options import (
    BuildGroup,
    DeviceOption,
    JsonOption,
    LimitGroup,
    Model,
    OnOption,
    QuietOption,
)
from smelt.cli.output import dumper, notes, print_json, progress_console, spinner
from smelt.cli.show import profile as show_profile
from smelt.cli.show import report as show
from smelt.cli.show import verify as show_verify
from smelt.errors import ConfigError
from smelt.proof.deploy import time_layers
from smelt.proof.profile import profile_model, profiled
from smelt.proof.rig import Rig
from smelt.proof.run import run as run_model
from smelt.samples import Sample, random_samples


def profile(
    model: Model,
    *,
    on: OnOption = None,
    device: DeviceOption = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random input.")] = 0,
    cycles: Annotated[
        bool,
        typer.Option(
            "--cycles", help="Estimate cycles, and milliseconds at the board's clock frequency."
        ),
    ] = False,
    wait_states: Annotated[
        int,
        typer.Option(
            "--wait-states", min=0, help="With --cycles: wait states of the board's flash memory."
        ),
    ] = 0,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write an HTML report to this file.")
    ] = None,
    network: BuildGroup,
    limits: LimitGroup,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure one inference: instructions or time of each layer, stack, arena and flash.

    `smelt profile model.tflite --board mps2-an386`

    `smelt profile model.tflite --board mps2-an386 --cycles --html profile.html`
    """
    options = network.build_options()
    console = progress_console(quiet or json_)
    if wait_states and not cycles:
        raise ConfigError("--wait-states needs --cycles")
    artifact = compile_model(model, options, dumper(network.dump_after))
    rig = Rig(on, device_number=device)
    rig.check(artifact)
    where = artifact.on if on is None else on
    counts = where == "qemu" and artifact.platform.firmware == "cortexm"
    if not counts and (cycles or html is not None):
        raise ConfigError(
            "--cycles and --html need instruction counts: choose a --board with a Cortex-M that "
            "QEMU simulates (`smelt boards`), and no --on but qemu"
        )
    (sample,) = random_samples(artifact.graph, 1, seed)
    with spinner(console, "running"):
        if counts:
            counted = profile_model(artifact, sample)
            report = profiled(artifact.report, counted, cycles=cycles, wait_states=wait_states)
        else:
            report = _timed(artifact, sample, rig, built=where in ("host", "qemu"))
    notes(console, artifact.notes)
    limits.build_limits().check(report)
    if html is not None:
        show_profile.write_html(html, report)
    if json_:
        print_json(report)
    else:
        _show(report, console)


def _timed(artifact: Artifact, sample: Sample, rig: Rig, *, built: bool) -> Report:
    """Run one inference and return its report, with layer times if the firmware has taps."""
    ran = run_model(artifact, [sample], rig)
    timed = time_layers(artifact, sample, rig) if built or ran.taps else {}
    return {**ran.report, **timed}


def _show(report: Report, console: Console) -> None:
    if "profile" in report:
        show_profile.show(Console(), report)
    elif "timer" in report:
        show_verify.layers(report).print(Console())
    else:
        console.print(
            "note: this firmware cannot time single layers; `smelt deploy --layers` flashes "
            "firmware that can"
        )
    show.measured(Console(), report)

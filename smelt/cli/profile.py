"""`smelt profile`: measure the cost of each layer."""

from __future__ import annotations

from functools import partial
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
    OnOption,
    QuietOption,
)
from smelt.cli.output import dumper, notes, print_json, progress_console, spinner
from smelt.cli.shared_arena import (
    Models,
    ShareArenaOption,
    compile_shared,
    only,
    refuse_for_several,
)
from smelt.cli.show import profile as show_profile
from smelt.cli.show import report as show
from smelt.cli.show import verify as show_verify
from smelt.errors import ConfigError
from smelt.proof.deploy import time_layers
from smelt.proof.profile import profile_model, profiled
from smelt.proof.rig import Rig
from smelt.proof.run import run as run_model
from smelt.proof.shared_arena import profile_shared
from smelt.samples import Sample, random_samples


def profile(
    models: Models,
    *,
    share_arena: ShareArenaOption = False,
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

    `smelt profile kws.tflite vww.tflite --share-arena --board mps2-an386`
    """
    console = progress_console(quiet or json_)
    if wait_states and not cycles:
        raise ConfigError("--wait-states needs --cycles")
    rig = Rig(on, device_number=device)

    measured = partial(
        _measured, rig=rig, on=on, seed=seed, cycles=cycles, wait_states=wait_states,
        console=console, counts_needed=cycles or html is not None or share_arena,
    )  # fmt: skip
    if share_arena:
        refuse_for_several(html=html)
        shared = compile_shared(models, network)
        report = profile_shared(shared, measured)
        notes(console, shared.report["notes"])
    else:
        artifact = compile_model(only(models), network.build_options(), dumper(network.dump_after))
        report = measured(artifact, dict(artifact.report))
        notes(console, artifact.notes)
    limits.build_limits().check(report)
    if html is not None:
        show_profile.write_html(html, report)
    if json_:
        print_json(report)
        return
    for one in report.get("networks", [report]):
        _show(one, console)


def _measured(
    artifact: Artifact,
    planned: Report,
    *,
    rig: Rig,
    on: str | None,
    seed: int,
    cycles: bool,
    wait_states: int,
    console: Console,
    counts_needed: bool,
) -> Report:
    """Run one inference; return the report with counts of instructions, or with times.

    Raises:
        ConfigError: counts are needed, but the device cannot give them.
    """
    rig.check(artifact)
    where = artifact.on if on is None else on
    counts = where == "qemu" and artifact.platform.firmware == "cortexm"
    if not counts and counts_needed:
        raise ConfigError(
            "--cycles, --html and --share-arena need instruction counts: choose a --board with "
            "a Cortex-M that QEMU simulates (`smelt boards`), and no --on but qemu"
        )
    (sample,) = random_samples(artifact.graph, 1, seed)
    with spinner(console, "running"):
        if not counts:
            return _timed(artifact, sample, rig, built=where in ("host", "qemu"))
        counted = profile_model(artifact, sample)
        return profiled(planned, counted, cycles=cycles, wait_states=wait_states)


def _timed(artifact: Artifact, sample: Sample, rig: Rig, *, built: bool) -> Report:
    """Run one inference and return its report, with layer times if the firmware traces."""
    ran = run_model(artifact, [sample], rig)
    timed = time_layers(artifact, sample, rig) if built or ran.trace else {}
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

"""`smelt deploy`: build, flash, verify and measure a network on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

from smelt.api.artifact import Artifact
from smelt.cli.flash import FlashGroup
from smelt.cli.output import progress_console, say
from smelt.cli.proof import ProofGroup, compiled, judge, judge_shared
from smelt.cli.shared_arena import Models, ShareArenaOption, only, refuse_for_several
from smelt.cli.show import verify as show_verify
from smelt.errors import ConfigError
from smelt.proof.deploy import VirtualRig, flashing_rig, time_layers
from smelt.proof.rig import Rig
from smelt.samples import random_samples


def deploy(
    models: Models,
    *,
    share_arena: ShareArenaOption = False,
    flashing: FlashGroup,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", help="Serial port of the running firmware [default: --port, or auto-detected]."
        ),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Use a board simulated by QEMU, flashed through GDB."),
    ] = False,
    pty: Annotated[
        bool,
        typer.Option("--pty", help="With --simulate: use a pseudo-terminal as the serial port."),
    ] = False,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers", help="First flash firmware that times each layer, and print the times."
        ),
    ] = False,
    proof: ProofGroup,
) -> None:
    """Build, flash, verify and measure on a device, in one command.

    `smelt deploy model.tflite --board nucleo-f446re`

    `smelt deploy model.tflite --board mps2-an386 --simulate --layers`

    `smelt deploy kws.tflite vww.tflite --share-arena --board nucleo-f446re`
    """
    console = progress_console(proof.quiet)

    def rig_of(artifact: Artifact) -> Rig:
        return _deploying(artifact, flashing, on, console, simulate=simulate, pty=pty)

    if share_arena:
        refuse_for_several(layers=layers or None)
        judge_shared(models, proof, console, rig_of)
        return
    artifact = compiled(only(models), proof, console)
    rig = rig_of(artifact)
    timed: Mapping[str, Any] = {}
    if layers:
        (sample,) = random_samples(artifact.graph, 1, proof.seed)
        timed = time_layers(artifact, sample, rig)
    report = judge(artifact, proof, rig, console, timed)
    if layers:
        show_verify.layers(report).print(Console())
    say(Console(), show_verify.headline(report))


def _deploying(
    artifact: Artifact,
    flashing: FlashGroup,
    on: str | None,
    console: Console,
    *,
    simulate: bool,
    pty: bool,
) -> Rig:
    def tell(line: str) -> None:
        say(console, line)

    if not simulate:
        if pty:
            raise ConfigError("--pty needs --simulate")
        return flashing_rig(artifact, flashing.options(), on, tell)
    if flashing != FlashGroup(timeout=flashing.timeout) or on is not None:
        raise ConfigError(
            "--simulate chooses the board's port and GDB server itself: remove --on, --port, "
            "--gdb, --runner and --drive"
        )
    return VirtualRig(say=tell, pty=pty, timeout_s=flashing.timeout)

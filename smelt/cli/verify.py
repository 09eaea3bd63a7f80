"""`smelt verify` and `smelt deploy`: a device has what was built and computes what it should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

from smelt.api.artefact import Artefact
from smelt.cli.farm import ONE_PLACE, verify_all
from smelt.cli.flash import FlashGroup
from smelt.cli.options import DeviceOption, Model, OnOption
from smelt.cli.output import progress_console, say
from smelt.cli.proof import ProofGroup, compiled, judge
from smelt.cli.show import verify as show_verify
from smelt.errors import ConfigError
from smelt.proof.deploy import VirtualRig, flashing_rig, time_layers
from smelt.proof.run import Rig
from smelt.samples import random_samples


def verify(
    model: Model,
    *,
    on: OnOption = None,
    device: DeviceOption = None,
    boards: Annotated[
        list[str] | None,
        typer.Option(
            "--boards",
            help="Verify on several side by side, as `mps2-an386,host,nucleo-f446re=/dev/ttyACM0`.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, help="How many at a time [default: one a core]."),
    ] = None,
    any_build: Annotated[
        bool,
        typer.Option(
            "--any-build",
            help="Accept another build of the network on a device that was flashed before; its "
            "memory is then not compared.",
        ),
    ] = False,
    proof: ProofGroup,
) -> None:
    """Check that the device holds what was built, and on samples computes what the model says.

    Every byte of its weights, tables and code is compared; outputs, on the samples, bit for bit.

    `smelt verify model.tflite --board mps2-an386 --samples 4`

    `smelt verify model.tflite --inputs in.npz --expect out.npz`

    `smelt verify model.tflite --boards mps2-an386,mps3-an547,host --jobs 2 --junit verify.xml`
    """
    if boards is not None:
        if on is not None:
            raise ConfigError(ONE_PLACE)
        if device is not None:
            raise ConfigError("--device is for one target at a time: leave --boards out")
        verify_all(model, boards, jobs, proof, any_build=any_build)
        return
    if jobs is not None:
        raise ConfigError("--jobs needs --boards, which says what is done side by side")
    console = progress_console(proof.quiet)
    artefact = compiled(model, proof, console)
    rig = Rig(on, device_number=device)
    if any_build and rig.loads(artefact):
        raise ConfigError(
            "--any-build is for a device that was flashed before, at --on PORT: leave it out, for "
            "here the firmware is built and started now"
        )
    report = judge(artefact, proof, rig, console, any_build=any_build)
    line = f"{show_verify.place(artefact, on, report)}: {report['verification']['message']}"
    say(Console(), line)


def deploy(
    model: Model,
    *,
    way: FlashGroup,
    on: Annotated[
        str | None,
        typer.Option("--on", help="Port where the firmware answers [default: --port, or found]."),
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="QEMU stands in for the board; GDB flashes it.")
    ] = False,
    pty: Annotated[
        bool, typer.Option("--pty", help="With --simulate, over a pseudo-terminal.")
    ] = False,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers", help="First flash firmware that times every layer, and show what it says."
        ),
    ] = False,
    proof: ProofGroup,
) -> None:
    """Build, flash, verify and measure on the device, in one go.

    `smelt deploy model.tflite --board nucleo-f446re`

    `smelt deploy model.tflite --board mps2-an386 --simulate --layers`
    """
    console = progress_console(proof.quiet)
    artefact = compiled(model, proof, console)
    rig = _deploying(artefact, way, on, console, simulate=simulate, pty=pty)
    timed: Mapping[str, Any] = {}
    if layers:
        (sample,) = random_samples(artefact.graph, 1, proof.seed)
        timed = time_layers(artefact, sample, rig)
    report = judge(artefact, proof, rig, console, timed)
    if layers:
        show_verify.layers(report).print(Console())
    say(Console(), show_verify.headline(report))


def _deploying(
    artefact: Artefact,
    way: FlashGroup,
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
            raise ConfigError("--pty is of --simulate")
        return flashing_rig(artefact, way.way(), on, tell)
    if way != FlashGroup(timeout=way.timeout) or on is not None:
        raise ConfigError(
            "--simulate brings its own board, port and GDB server: leave --on, --port, --gdb, "
            "--runner and --drive out"
        )
    return VirtualRig(say=tell, pty=pty, timeout_s=way.timeout)

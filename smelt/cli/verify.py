"""`smelt verify`: a device has what was built, and computes what it should."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from smelt.cli.farm import ONE_PLACE, verify_all
from smelt.cli.options import DeviceOption, Model, OnOption
from smelt.cli.output import progress_console, say
from smelt.cli.proof import ProofGroup, compiled, judge
from smelt.cli.show import verify as show_verify
from smelt.errors import ConfigError
from smelt.proof.rig import Rig


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

"""`smelt verify`: compare a device's memory and outputs with the build and the model."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from smelt.cli.farm import ONE_PLACE, verify_all
from smelt.cli.options import DeviceOption, OnOption
from smelt.cli.output import progress_console, say
from smelt.cli.proof import ProofGroup, compiled, judge, judge_shared
from smelt.cli.shared_arena import Models, ShareArenaOption, only
from smelt.cli.show import verify as show_verify
from smelt.errors import ConfigError
from smelt.proof.rig import Rig


def verify(
    models: Models,
    *,
    share_arena: ShareArenaOption = False,
    on: OnOption = None,
    device: DeviceOption = None,
    boards: Annotated[
        list[str] | None,
        typer.Option(
            "--boards",
            help="Verify on several boards in parallel, as "
            "`mps2-an386,host,nucleo-f446re=/dev/ttyACM0`.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", min=1, help="With --boards: boards at a time [default: one per CPU core]."
        ),
    ] = None,
    any_build: Annotated[
        bool,
        typer.Option(
            "--any-build",
            help="Accept a device that was flashed with another build of this network; skips the "
            "comparison of its memory.",
        ),
    ] = False,
    proof: ProofGroup,
) -> None:
    """Check that a device contains the build and computes the same outputs as the model.

    Every byte of weights, tables and code is compared. On all samples, integer outputs must be
    bit-exact, and float outputs within a small tolerance.

    `smelt verify model.tflite --board mps2-an386 --samples 4`

    `smelt verify model.tflite --inputs in.npz --expect out.npz`

    `smelt verify model.tflite --boards mps2-an386,mps3-an547,host --jobs 2 --junit verify.xml`

    `smelt verify kws.tflite vww.tflite --share-arena --board mps2-an386`
    """
    if share_arena:
        if boards is not None or jobs is not None or any_build:
            raise ConfigError("--share-arena cannot be combined with --boards, --jobs, --any-build")
        console = progress_console(proof.quiet)
        judge_shared(models, proof, console, lambda _: Rig(on, device_number=device))
        return
    model = only(models)
    if boards is not None:
        if on is not None:
            raise ConfigError(ONE_PLACE)
        if device is not None:
            raise ConfigError("--device cannot be combined with --boards")
        verify_all(model, boards, jobs, proof, any_build=any_build)
        return
    if jobs is not None:
        raise ConfigError("--jobs needs --boards")
    console = progress_console(proof.quiet)
    artifact = compiled(model, proof, console)
    rig = Rig(on, device_number=device)
    if any_build and rig.loads(artifact):
        raise ConfigError(
            "--any-build is for a device that was flashed earlier, at --on PORT: remove it, "
            "because the firmware is built now"
        )
    report = judge(artifact, proof, rig, console, any_build=any_build)
    line = f"{show_verify.place(artifact, on, report)}: {report['verification']['message']}"
    say(Console(), line)

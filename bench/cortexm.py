"""Instructions, estimated cycles, arena and flash of an inference beside TFLite Micro's.

Cycles are estimated from Arm's published timings. The peer's figures (`tflm_cmsis_nn.json`, TFLite
Micro with CMSIS-NN) were counted with the same compiler and simulator; its `live_bytes_bound` is
the smallest arena of whole tensors that any order of memory can reach.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from smelt.pipeline import Options, compile_model
from smelt.profile import profile_model
from smelt.samples import random_samples
from smelt.show import Table
from smelt.targets import Optimize
from tests.shared import SHARED

PEER = json.loads((Path(__file__).parent / "tflm_cmsis_nn.json").read_text())
LIVE_BYTES_BOUND = {"kws": 16_000, "vww": 55_296, "ic": 49_152, "ad": 768, "sww": 6_656}
GOALS = {
    "m0": (0.38, 0.22, 0.40, 0.55, 0.42),
    "m3": (0.42, 0.25, 0.42, 0.50, 0.45),
    **dict.fromkeys(("m4", "m7", "m33"), (0.38, 0.22, 0.38, 0.46, 0.42)),
    "m55": (0.35, 0.20, 0.42, 0.33, 0.42),
}
"""Ratios of instructions to reach, of kws, vww, ic, ad, sww; of cycles, 1.1 times as much."""
PEER_CYCLES = 1.3
"""Cycles that an instruction of the peer's is taken to need, whose profile we do not have."""
CORES = {
    "m0": ("mps2-an385", "cortex-m0"),
    "m3": ("mps2-an385", "cortex-m3"),
    "m4": ("mps2-an386", "cortex-m4"),
    "m7": ("mps2-an500", "cortex-m7"),
    "m33": ("mps2-an505", "cortex-m33"),
    "m55": ("mps3-an547", "cortex-m55"),
}


def main(
    networks: Annotated[list[str] | None, typer.Argument(help="kws, vww, …; all.")] = None,
    core: Annotated[list[str] | None, typer.Option("--core", help="m0, m3, …; all.")] = None,
    optimize: Annotated[str, typer.Option("--optimize", help="speed, size or ram.")] = "speed",
    backends: Annotated[
        list[str] | None,
        typer.Option("--backends", help="cortexm, c, cmsis_nn; the best of the target's."),
    ] = None,
) -> None:
    """Instructions, estimated cycles, arena and flash on each core, beside TFLM with CMSIS-NN."""
    console = Console(width=180)
    rows: list[tuple[object, ...]] = []
    for network in networks or LIVE_BYTES_BOUND:
        model = SHARED / f"models/mlperf_tiny/{network}_int8.tflite"
        if not model.exists():
            console.print(f"{network}: not in the shared folder (SMELT_SHARED), left out")
            continue
        for name, kernels in product(_cores(core), backends or (None,)):
            if "cmsis_nn" in (kernels or "") and not os.environ.get("CMSIS_NN_DIR"):
                console.print("cmsis_nn: CMSIS_NN_DIR does not say where the library is, left out")
                continue
            with console.status(f"{network} on {name}"):
                rows.append(_measure(model, network, name, _mode(optimize), kernels))
    columns = (
        "network", "core", "backends", "instructions", "TFLM", "ratio", "a MAC", "cycles",
        "ratio to 1.3 x", "goal", "ms", "arena", "bound", "TFLM arena", "flash", "TFLM flash",
        "ratio ", "stack",
    )  # fmt: skip
    title = "One inference, --optimize " + optimize + "; flash is code and weights"
    Table(columns, tuple(rows), title).print(console)


def _measure(
    model: Path, network: str, core: str, optimize: Optimize, backends: str | None
) -> tuple[object, ...]:
    board, target = CORES[core]
    wanted = None if backends is None else tuple(backends.split(","))
    options = Options(target, board, optimize, network, backends=wanted)
    artefact = compile_model(model, options)
    profile = profile_model(artefact, random_samples(artefact.graph, 1, 0)[0])
    report: dict[str, Any] = dict(artefact.report)
    peer = PEER["models"][network][core]
    instructions, cycles = profile.instructions, profile.total_cycles()
    flash = profile.measured.flash_network or 0
    peer_flash = peer["code_bytes"] + peer["model_bytes"]
    return (
        network,
        core,
        backends or "best",
        instructions,
        peer["instructions"],
        f"{instructions / peer['instructions']:.3f}",
        f"{instructions / artefact.graph.macs:.2f}",
        cycles,
        f"{cycles / peer['instructions'] / PEER_CYCLES:.3f}",
        _verdict(network, core, instructions, cycles),
        f"{1e3 * cycles / profile.clock_hz:.1f}",
        report["arena"]["bytes"],
        LIVE_BYTES_BOUND[network],
        peer["arena_bytes"],
        flash,
        peer_flash,
        f"{flash / peer_flash:.2f}",
        profile.measured.stack,
    )


def _verdict(network: str, core: str, instructions: int, cycles: int) -> str:
    """The goal, and whether instructions and cycles keep to it."""
    goal = GOALS[core][tuple(LIVE_BYTES_BOUND).index(network)]
    peer = PEER["models"][network][core]["instructions"]
    missed = [
        what
        for what, ratio, limit in (
            ("instructions", instructions / peer, goal),
            ("cycles", cycles / peer / PEER_CYCLES, 1.1 * goal),
        )
        if ratio > limit
    ]
    return f"{goal:.2f} {'missed by ' + ' and '.join(missed) if missed else 'reached'}"


def _cores(names: list[str] | None) -> Sequence[str]:
    """The cores asked for; `BadParameter` for one that there is not."""
    for name in names or ():
        if name not in CORES:
            raise typer.BadParameter(f"there is no core '{name}'; there are {', '.join(CORES)}")
    return names or tuple(CORES)


def _mode(name: str) -> Optimize:
    match name:
        case "speed" | "size" | "ram":
            return name
        case _:
            raise typer.BadParameter(f"'{name}' is none of speed, size, ram")

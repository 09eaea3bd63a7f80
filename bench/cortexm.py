"""Instructions, estimated cycles, arena and flash of an inference beside TFLite Micro's.

Cycles are estimated from Arm's published timings. The peer's figures (TFLite Micro
with CMSIS-NN, see `bench/peers.py`) were counted with the same compiler and simulator. The bound of
the arena is the smallest one of whole tensors that any order of memory can reach.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.cores import CORES
from bench.peers import CYCLES_AN_INSTRUCTION, TFLM_CMSIS_NN
from bench.shared_folder import SHARED, absent
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.cli.show.tables import TextTable
from smelt.proof.profile import profile_model
from smelt.samples import random_samples
from smelt.targets import Optimize, get

LIVE_BYTES_BOUND = {"kws": 16_000, "vww": 55_296, "ic": 49_152, "ad": 768, "sww": 6_656}
GOALS = {
    "m0": (0.38, 0.22, 0.40, 0.55, 0.42),
    "m3": (0.42, 0.25, 0.42, 0.50, 0.45),
    **dict.fromkeys(("m4", "m7", "m33"), (0.38, 0.22, 0.38, 0.46, 0.42)),
    "m55": (0.35, 0.20, 0.42, 0.33, 0.42),
}
"""Ratios of instructions to reach, of kws, vww, ic, ad, sww; of cycles, 1.1 times as much.

Cores without peers' figures are not compared.
"""
FLASH_GOALS = {"kws": 0.38, "vww": 0.35, "ic": 0.65}
"""Ratios of flash to reach on M4 with `--optimize size`."""
WINOGRAD = 0.26
"""The ratio for `ic` on cores with the DSP extension, with weights that may take more flash."""
KERNEL_SCRATCH = 4096
"""Bytes of arena that kernels may take beyond the bound."""


def main(
    networks: Annotated[list[str] | None, typer.Argument(help="kws, vww, …; all.")] = None,
    core: Annotated[list[str] | None, typer.Option("--core", help="m0, m3, …; all.")] = None,
    optimize: Annotated[str, typer.Option("--optimize", help="speed, size or ram.")] = "speed",
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            metavar="BACKENDS",
            help="A row with these, as `cmsis_nn`, `own` (the core's) or `own,c`; once a row "
            "[default: the "
            "best of the target's].",
        ),
    ] = None,
    expand: Annotated[
        bool, typer.Option("--expand-weights", help="Winograd's weights may take more flash.")
    ] = False,
) -> None:
    """Instructions, estimated cycles, arena and flash on each core, beside TFLM with CMSIS-NN."""
    console = Console(width=180)
    rows: list[tuple[object, ...]] = []
    for network in networks or LIVE_BYTES_BOUND:
        model = SHARED / f"models/mlperf_tiny/{network}_int8.tflite"
        if not model.exists():
            console.print(f"{absent(model.name)}, left out")
            continue
        for name, kernels in product(_cores(core), compare or (None,)):
            if "cmsis_nn" in (kernels or "") and not os.environ.get("CMSIS_NN_DIR"):
                console.print("cmsis_nn: CMSIS_NN_DIR does not say where the library is, left out")
                continue
            board, target = CORES[name]
            wanted = None if kernels is None else _backends(kernels, target)
            options = Options(
                target, board, _mode(optimize), network, backends=wanted, expand_weights=expand
            )
            with console.status(f"{network} on {name}"):
                rows.append(_measure(model, name, options))
    columns = (
        "network", "core", "backends", "instructions", "TFLM", "ratio", "a MAC", "cycles",
        "ratio to 1.3 x", "goal", "ms", "arena", "bound", "TFLM arena", "flash", "TFLM flash",
        "ratio ", "stack",
    )  # fmt: skip
    expanded = ", --expand-weights" if expand else ""
    title = f"One inference, --optimize {optimize}{expanded}; flash is code and weights"
    TextTable(columns, tuple(rows), title).print(console)


def _backends(names: str, target: str) -> tuple[str, ...]:
    """The backends that are named; `own` are those for the target's core."""
    own = get(target).backends[:-1]
    named = (own if name == "own" else (name,) for name in names.split(","))
    return tuple(name for group in named for name in group)


def _measure(model: Path, core: str, options: Options) -> tuple[object, ...]:
    network = options.name or ""
    artefact = compile_model(model, options)
    profile = profile_model(artefact, random_samples(artefact.graph, 1, 0)[0])
    report: dict[str, Any] = dict(artefact.report)
    peer = TFLM_CMSIS_NN[network][core]
    instructions, cycles = profile.instructions, profile.total_cycles()
    arena, bound = report["arena"]["bytes"], LIVE_BYTES_BOUND[network]
    flash = profile.measured.flash_network or 0
    peer_flash = peer["code_bytes"] + peer["model_bytes"]
    ratio, cycle_ratio = (
        n / peer["instructions"] for n in (instructions, cycles / CYCLES_AN_INSTRUCTION)
    )
    found = {
        "instructions": ratio,
        "cycles": cycle_ratio,
        "flash": flash / peer_flash,
        "arena": arena - bound,
    }
    return (
        network,
        core,
        ",".join(options.backends or ("best",)),
        instructions,
        peer["instructions"],
        f"{ratio:.3f}",
        f"{instructions / artefact.graph.macs:.2f}",
        cycles,
        f"{cycle_ratio:.3f}",
        _verdict(found, _goals(network, core, options)),
        f"{1e3 * cycles / profile.clock_hz:.1f}",
        arena,
        bound,
        peer["arena_bytes"],
        flash,
        peer_flash,
        f"{flash / peer_flash:.2f}",
        profile.measured.stack,
    )


def _goals(network: str, core: str, options: Options) -> dict[str, float]:
    """The most that each ratio may be, and bytes of arena beyond the bound; what counts first."""
    if options.optimize != "speed":
        goals = FLASH_GOALS if (options.optimize, core) == ("size", "m4") else {}
        return {"flash": goals[network]} if network in goals else {}
    goal = GOALS[core][tuple(LIVE_BYTES_BOUND).index(network)]
    flash = {"flash": 1.0}
    if options.expand_weights and network == "ic" and core in ("m4", "m7", "m33"):
        goal, flash = WINOGRAD, {}
    return {"instructions": goal, "cycles": 1.1 * goal, **flash, "arena": KERNEL_SCRATCH}


def _verdict(found: Mapping[str, float], goals: Mapping[str, float]) -> str:
    if not goals:
        return "-"
    missed = [name for name, most in goals.items() if found[name] > most]
    name, goal = next(iter(goals.items()))
    return f"{name} {goal:.2f} {'missed by ' + ', '.join(missed) if missed else 'reached'}"


def _cores(names: list[str] | None) -> Sequence[str]:
    """The cores asked for; `BadParameter` for one that there is not."""
    for name in names or ():
        if name not in GOALS:
            raise typer.BadParameter(f"there is no core '{name}'; there are {', '.join(GOALS)}")
    return names or tuple(GOALS)


def _mode(name: str) -> Optimize:
    match name:
        case "speed" | "size" | "ram":
            return name
        case _:
            raise typer.BadParameter(f"'{name}' is none of speed, size, ram")

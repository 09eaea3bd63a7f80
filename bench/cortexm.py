"""Instructions, estimated cycles, arena and flash of an inference, compared with TFLite Micro's.

Cycles are estimated from Arm's published timings. The peer's figures (TFLite Micro with CMSIS-NN,
see `bench/peers.py`) were counted with the same compiler and simulator. The bound of the arena is
the size below which no placement of whole tensors can go.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench import random_weights, records
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
"""Least bytes of an arena of whole tensors, by network, if no layer writes over its input."""
GOALS = {
    "m0": (0.38, 0.22, 0.40, 0.55, 0.42),
    "m3": (0.42, 0.25, 0.42, 0.50, 0.45),
    **dict.fromkeys(("m4", "m7", "m33"), (0.38, 0.22, 0.38, 0.46, 0.42)),
    "m55": (0.35, 0.20, 0.42, 0.33, 0.42),
}
"""Goals by core: the largest ratio of instructions to the peer's for kws, vww, ic, ad and sww.

Cores for which there are no figures of the peer are missing.
"""
FLASH_GOALS = {"kws": 0.38, "vww": 0.35, "ic": 0.65}
"""Goals: largest ratios of flash on M4 with `--optimize size`."""
PEER_NETWORK = {random_weights.NAME: "vww"}
"""For a network without figures of the peer: the peer's network with the same layers and shapes."""
NETWORKS = (*LIVE_BYTES_BOUND, random_weights.NAME)
WINOGRAD = 0.26
"""Goal: the ratio for `ic` with `--expand-weights` on cores with the DSP extension."""
KERNEL_SCRATCH = 4096
"""Goal: bytes of arena that kernels may use beyond the bound."""


@dataclass(frozen=True)
class IntegerInference:
    """One inference of an int8 network on a simulated core.

    Attributes:
        network: Name of the network.
        core: Name of the core, such as `m4`.
        backends: The allowed backends, separated by commas; `best` for all of the target's.
        macs: Multiply-accumulates after all passes.
        instructions: Instructions of one inference.
        cycles: Estimated from the instructions.
        arena: Bytes of activations and scratch.
        flash: Bytes of the network's code and weights.
        stack: Largest number of bytes of stack.
    """

    network: str
    core: str
    backends: str
    macs: int
    instructions: int
    cycles: int
    arena: int
    flash: int
    stack: int


@dataclass(frozen=True)
class PeerInference:
    """An inference by TFLite Micro with CMSIS-NN; `arena` and `flash` are in bytes."""

    instructions: int
    arena: int
    flash: int


def peer(network: str, core: str) -> PeerInference:
    """Return the figures of TFLite Micro with CMSIS-NN for a network on a core."""
    found = TFLM_CMSIS_NN[PEER_NETWORK.get(network, network)][core]
    flash = found["code_bytes"] + found["model_bytes"]
    return PeerInference(found["instructions"], found["arena_bytes"], flash)


def main(
    networks: Annotated[
        list[str] | None, typer.Argument(help="kws, vww, … [default: all].")
    ] = None,
    core: Annotated[
        list[str] | None, typer.Option("--core", help="m0, m3, … [default: all].")
    ] = None,
    optimize: Annotated[str, typer.Option("--optimize", help="speed, size or ram.")] = "speed",
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            metavar="BACKENDS",
            help="Allowed backends: `cmsis_nn`, `own` (the core's own), `own,c`, …; each use "
            "of this option adds a table row [default: all backends of the target].",
        ),
    ] = None,
    expand: Annotated[
        bool, typer.Option("--expand-weights", help="Allow Winograd, which takes more flash.")
    ] = False,
    write: records.WriteOption = False,
    note: records.NoteOption = "",
) -> None:
    """Measure instructions, cycles, arena and flash on each core, beside TFLM with CMSIS-NN."""
    if write and networks:
        raise typer.BadParameter(
            "a record contains all networks: with --write, omit the names of networks"
        )
    console = Console(width=180)
    rows: list[IntegerInference] = []
    with tempfile.TemporaryDirectory() as folder:
        for network in networks or NETWORKS:
            model = _model(network, Path(folder))
            if not model.exists():
                console.print(f"{absent(model.name)}, skipped")
                continue
            for name, kernels in product(_cores(core), compare or (None,)):
                if "cmsis_nn" in (kernels or "") and not os.environ.get("CMSIS_NN_DIR"):
                    console.print(
                        f"{network} with {kernels} skipped: set CMSIS_NN_DIR to CMSIS-NN's folder"
                    )
                    continue
                board, target = CORES[name]
                wanted = None if kernels is None else _backends(kernels, target)
                options = Options(
                    target, board, _mode(optimize), network, backends=wanted, expand_weights=expand
                )
                with console.status(f"{network} on {name}"):
                    rows.append(_measure(model, name, options))
    expanded = ", --expand-weights" if expand else ""
    title = f"One inference, --optimize {optimize}{expanded}; flash is code and weights"
    table = tuple(_line(row, _goals(row, optimize, expand)) for row in rows)
    TextTable(_COLUMNS, table, title).print(console)
    if write:
        _write(rows, optimize, compare or (), expand=expand, note=note)


_COLUMNS = (
    "network", "core", "backends", "instructions", "TFLM", "ratio", "per MAC", "cycles",
    "cycle ratio", "goal", "arena", "bound", "TFLM arena", "flash", "TFLM flash",
    "ratio ", "stack",
)  # fmt: skip


def _model(network: str, folder: Path) -> Path:
    """Return the network's file; the one with random weights is written to the folder."""
    if network == random_weights.NAME and random_weights.SOURCE.exists():
        random_weights.write(folder / f"{network}.tflite")
        return folder / f"{network}.tflite"
    return SHARED / f"models/mlperf_tiny/{network}_int8.tflite"


def record_name(
    core: str, optimize: str = "speed", kernels: Sequence[str] = (), *, expand: bool = False
) -> str:
    """Return the name of the record of a core's results under these options."""
    expanded = ("expanded",) if expand else ()
    words = ("cortexm", optimize, *expanded, *kernels, core)
    return "_".join(words).replace(",", "_")


def _write(
    rows: Sequence[IntegerInference],
    optimize: str,
    kernels: Sequence[str],
    *,
    expand: bool,
    note: str,
) -> None:
    """Store a record for each core; the command in a record measures that core only."""
    compiler = records.version("arm-none-eabi-gcc")
    simulator = records.version("qemu-system-arm")
    options = [f" --compare {names}" for names in kernels] + [" --expand-weights"] * expand
    for core in dict.fromkeys(row.core for row in rows):
        run = records.this_run(
            f"cortexm --core {core} --optimize {optimize}{''.join(options)} --write",
            compiler,
            f"{simulator}, board {CORES[core][0]}",
            note,
        )
        own = [row for row in rows if row.core == core]
        records.write(record_name(core, optimize, kernels, expand=expand), run, own)


def _backends(names: str, target: str) -> tuple[str, ...]:
    """Return the named backends; `own` means all of the target's but the last, `c`."""
    own = get(target).backends[:-1]
    named = (own if name == "own" else (name,) for name in names.split(","))
    return tuple(name for group in named for name in group)


def _measure(model: Path, core: str, options: Options) -> IntegerInference:
    artifact = compile_model(model, options)
    profile = profile_model(artifact, random_samples(artifact.graph, 1, 0)[0])
    report: dict[str, Any] = dict(artifact.report)
    return IntegerInference(
        network=options.name or "",
        core=core,
        backends=",".join(options.backends or ("best",)),
        macs=artifact.graph.macs,
        instructions=profile.instructions,
        cycles=profile.total_cycles(),
        arena=report["arena"]["bytes"],
        flash=profile.measured.flash_network or 0,
        stack=profile.measured.stack or 0,
    )


def _line(row: IntegerInference, goals: Mapping[str, float]) -> tuple[object, ...]:
    """Return the table's line for a row: its figures, the peer's, ratios and goals."""
    theirs = peer(row.network, row.core)
    bound = _bound(row.network)
    found = {
        "instructions": row.instructions / theirs.instructions,
        "cycles": row.cycles / CYCLES_AN_INSTRUCTION / theirs.instructions,
        "flash": row.flash / theirs.flash,
        "arena": row.arena - bound,
    }
    return (
        row.network,
        row.core,
        row.backends,
        row.instructions,
        theirs.instructions,
        f"{found['instructions']:.3f}",
        f"{row.instructions / row.macs:.2f}",
        row.cycles,
        f"{found['cycles']:.3f}",
        _verdict(found, goals),
        row.arena,
        bound,
        theirs.arena,
        row.flash,
        theirs.flash,
        f"{found['flash']:.2f}",
        row.stack,
    )


def _bound(network: str) -> int:
    return LIVE_BYTES_BOUND[PEER_NETWORK.get(network, network)]


def _goals(row: IntegerInference, optimize: str, expand: bool) -> dict[str, float]:
    """Return upper limits of ratios and of bytes of arena beyond the bound, most important first.

    The network with random weights has no goals.
    """
    if row.network not in LIVE_BYTES_BOUND:
        return {}
    if optimize != "speed":
        goals = FLASH_GOALS if (optimize, row.core) == ("size", "m4") else {}
        return {"flash": goals[row.network]} if row.network in goals else {}
    goal = GOALS[row.core][tuple(LIVE_BYTES_BOUND).index(row.network)]
    flash = {"flash": 1.0}
    if expand and row.network == "ic" and row.core in ("m4", "m7", "m33"):
        goal, flash = WINOGRAD, {}
    return {"instructions": goal, "cycles": 1.1 * goal, **flash, "arena": KERNEL_SCRATCH}


def _verdict(found: Mapping[str, float], goals: Mapping[str, float]) -> str:
    if not goals:
        return "-"
    missed = [name for name, most in goals.items() if found[name] > most]
    name, goal = next(iter(goals.items()))
    return f"{name} {goal:.2f}; {'missed: ' + ', '.join(missed) if missed else 'all reached'}"


def _cores(names: list[str] | None) -> Sequence[str]:
    """Return the named cores, or all; raise BadParameter if one does not exist."""
    for name in names or ():
        if name not in GOALS:
            raise typer.BadParameter(f"unknown core '{name}'; known: {', '.join(GOALS)}")
    return names or tuple(GOALS)


def _mode(name: str) -> Optimize:
    match name:
        case "speed" | "size" | "ram":
            return name
        case _:
            raise typer.BadParameter(f"'{name}' is not one of speed, size, ram")

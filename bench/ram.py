"""What less RAM costs: instructions and flash of networks in less than whole tensors need."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from bench import records
from bench.cores import CORES
from bench.shared_folder import SHARED, absent
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.cli.show.tables import TextTable
from smelt.proof.profile import profile_model
from smelt.samples import random_samples

CORE = "m4"
LIMITS: dict[str, tuple[int | None, ...]] = {
    "kws": (None, 12_000, 9_400, 0),
    "vww": (None, 40_000, 32_000, 28_300, 0),
    "ic": (None, 32_000, 23_100, 18_400, 0),
    "sww": (None, 6_000, 4_900, 0),
    "ad": (None, 0),
}
"""`--max-ram` by network, in bytes: None for no limit, 0 for the smallest arena that is found."""


@dataclass(frozen=True)
class InferenceInRam:
    """One inference of an int8 network within a limit of RAM.

    Attributes:
        network: Name of the network.
        limit: What limits the arena: `none`, a number of bytes, or `smallest`.
        layers: Layers that are computed a few rows at a time.
        arena: Bytes of activations and scratch.
        instructions: Instructions of one inference.
        flash: Bytes of the network's code and weights.
        stack: Largest number of bytes of stack.
    """

    network: str
    limit: str
    layers: int
    arena: int
    instructions: int
    flash: int
    stack: int


def main(*, write: records.WriteOption = False, note: records.NoteOption = "") -> None:
    """Measure instructions, arena and flash within limits of RAM on a Cortex-M4."""
    console = Console(width=120)
    rows: list[InferenceInRam] = []
    for network, limits in LIMITS.items():
        if not (SHARED / _model(network)).exists():
            console.print(f"{absent(_model(network))}, skipped")
            continue
        for limit in limits:
            with console.status(f"{network}: {_text(limit)}"):
                rows.append(_measure(network, limit))
    columns = ("network", "RAM", "layers in bands", "arena", "instructions", "flash", "stack")
    lines = tuple(
        (r.network, r.limit, r.layers, r.arena, r.instructions, r.flash, r.stack) for r in rows
    )
    TextTable(columns, lines).print(console)
    if write:
        device = f"{records.version('qemu-system-arm')}, board {CORES[CORE][0]}"
        compiler = records.version("arm-none-eabi-gcc")
        records.write(f"ram_{CORE}", records.this_run("ram --write", compiler, device, note), rows)


def _model(network: str) -> str:
    return f"models/mlperf_tiny/{network}_int8.tflite"


def _text(limit: int | None) -> str:
    return "none" if limit is None else str(limit) if limit else "smallest"


def _measure(network: str, limit: int | None) -> InferenceInRam:
    board, target = CORES[CORE]
    artifact = compile_model(
        SHARED / _model(network),
        Options(target, board, "speed" if limit != 0 else "ram", network, max_ram=limit or None),
    )
    profile = profile_model(artifact, random_samples(artifact.graph, 1, 0)[0])
    return InferenceInRam(
        network=network,
        limit=_text(limit),
        layers=sum(step.bands is not None for step in artifact.schedule.calls),
        arena=artifact.network.arena_bytes,
        instructions=profile.instructions,
        flash=profile.measured.flash_network or 0,
        stack=profile.measured.stack or 0,
    )

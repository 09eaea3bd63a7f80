"""Instructions and flash of networks in less RAM than their whole tensors need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rich.console import Console

from bench import records
from bench.cores import CORES
from bench.shared_folder import SHARED, absent
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.cli.show.tables import TextTable
from smelt.frontend import Imported
from smelt.proof.profile import profile_model
from smelt.samples import random_samples

CORE = "m4"
FASTEST = 2**40
"""`--max-ram` with which the fastest kernels fit."""

LIMITS: dict[str, tuple[int | None, ...]] = {
    "kws": (FASTEST, None, 9_400, 5_600, 5_000, 4_500, 0),
    "vww": (FASTEST, None, 40_000, 32_000, 28_300, 0),
    "ic": (FASTEST, None, 32_000, 23_100, 18_400, 15_500, 13_500, 0),
    "sww": (FASTEST, None, 6_000, 4_900, 0),
    "ad": (FASTEST, None, 0),
}
"""`--max-ram` by network, in bytes: None for no limit, 0 for the smallest arena that is found."""

STREAMED: dict[str, tuple[int | None, ...]] = {
    "kws": (None, 5_000, 4_200, 0),
    "vww": (None, 15_000, 12_500, 0),
    "ic": (None, 18_400, 13_400, 0),
    "sww": (None, 0),
}
"""The same for streamed inputs (`--stream-input`)."""


@dataclass(frozen=True)
class InferenceInRam:
    """One inference of a network within a limit of RAM.

    Attributes:
        network: Name of the network.
        input: Whether the arena holds the `whole` input, or rows are `streamed`.
        limit: See `limit_name`.
        layers: Layers that are computed a few rows at a time.
        arena: Bytes of activations and scratch.
        macs: Multiply-accumulates of one inference.
        instructions: Instructions of one inference.
        flash: Bytes of the network's code and weights.
        stack: Largest number of bytes of stack.
    """

    network: str
    input: str
    limit: str
    layers: int
    arena: int
    macs: int
    instructions: int
    flash: int
    stack: int


def main(*, write: records.WriteOption = False, note: records.NoteOption = "") -> None:
    """Measure instructions, arena and flash within limits of RAM on a Cortex-M4."""
    console = Console(width=120)
    rows: list[InferenceInRam] = []
    for network, limits in LIMITS.items():
        model = SHARED / f"models/mlperf_tiny/{network}_int8.tflite"
        if not model.exists():
            console.print(f"{absent(f'{model.relative_to(SHARED)}')}, skipped")
            continue
        streamed = [(limit, True) for limit in STREAMED.get(network, ())]
        for limit, streams in (*((limit, False) for limit in limits), *streamed):
            with console.status(f"{network}: {limit_name(limit)}"):
                rows.append(measure(model, network, limit, streams=streams))
    show(console, rows, "ram", note, write=write)


def show(
    console: Console, rows: Sequence[InferenceInRam], bench: str, note: str, *, write: bool
) -> None:
    """Print inferences, and write them to the record of a bench if `write` is set."""
    columns = tuple(field.name for field in fields(InferenceInRam))
    lines = tuple(tuple(getattr(row, name) for name in columns) for row in rows)
    TextTable(columns, lines).print(console)
    if write:
        device = f"{records.version('qemu-system-arm')}, board {CORES[CORE][0]}"
        compiler = records.version("arm-none-eabi-gcc")
        run = records.this_run(f"{bench} --write", compiler, device, note)
        records.write(f"{bench}_{CORE}", run, rows)


def limit_name(limit: int | None) -> str:
    """Return a limit's name in tables: `fastest`, `none`, `smallest` for 0, or a number."""
    names = {None: "none", FASTEST: "fastest", 0: "smallest"}
    return names.get(limit, str(limit))


def measure(
    model: Path | Imported, network: str, limit: int | None, *, streams: bool
) -> InferenceInRam:
    """Build a network within a limit of RAM, and run one inference in the simulator.

    Args:
        model: The network, or its file.
        network: Its name.
        limit: `--max-ram` in bytes: None for no limit, 0 for the smallest arena.
        streams: Whether its input is delivered a few rows at a time.
    """
    board, target = CORES[CORE]
    options = Options(
        target,
        board,
        "speed" if limit != 0 else "ram",
        network,
        max_ram=limit or None,
        stream_input=streams,
    )
    artifact = compile_model(model, options)
    profile = profile_model(artifact, random_samples(artifact.graph, 1, 0)[0])
    return InferenceInRam(
        network=network,
        input="streamed" if streams else "whole",
        limit=limit_name(limit),
        layers=sum(step.bands is not None for step in artifact.schedule.calls),
        arena=artifact.network.arena_bytes,
        macs=artifact.schedule.graph.macs,
        instructions=profile.instructions,
        flash=profile.measured.flash_network or 0,
        stack=profile.measured.stack or 0,
    )

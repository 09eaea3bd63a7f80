"""Planning of many tensors: the time, and the gap to the lower bound.

The goal is less than 5 s and less than 5 % for 4,000 tensors that overlap heavily.
"""

from __future__ import annotations

import csv
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import records
from smelt.cli.show.tables import TextTable
from smelt.codegen.arena import Buffer, InPlace, Memory, Problem, Span, plan, validate
from smelt.codegen.arena.conflict import make_arena

TENSORS = 4_000
SEEDS = 3
ROWS = 8
"""Steps in which a tensor of `banded` grows, and in which it shrinks."""


@dataclass(frozen=True)
class PlannedTensors:
    """Plans of one kind of problem, with all seeds.

    Attributes:
        kind: The kind, or the name of a file.
        tensors: The number of tensors.
        pairs: The number of pairs that are live at the same time, in the problem that has most.
        gap: The largest excess over the lower bound, as a fraction.
        seconds: The longest processor time of a plan.
    """

    kind: str
    tensors: int
    pairs: int
    gap: float
    seconds: float


def whole(lifetime: float, seed: int) -> Problem:
    """Return tensors that begin at random steps, with exponentially distributed lifetimes.

    Args:
        lifetime: The mean lifetime in steps. About as many tensors are live at the same time.
        seed: The seed of the random numbers. The sizes are log-uniform from 32 bytes to 16 KiB.
    """
    dice = random.Random(seed)
    buffers: list[Buffer] = []
    for i in range(TENSORS):
        start = dice.randrange(TENSORS)
        end = start + 1 + int(dice.expovariate(1 / lifetime))
        size = 16 * (1 + int(2 ** (10 * dice.random())))
        buffers.append(Buffer(f"t{i}", size, start, end, "sram"))
    return Problem((Memory("sram"),), tuple(buffers))


def at_random(seed: int) -> Problem:
    """Return tensors that begin and end at random steps: at most 2,000 are live at once."""
    dice = random.Random(seed)
    buffers: list[Buffer] = []
    for i in range(TENSORS):
        start, end = sorted(dice.sample(range(TENSORS + 1), 2))
        size = 16 * (1 + int(2 ** (10 * dice.random())))
        buffers.append(Buffer(f"t{i}", size, start, end, "sram"))
    return Problem((Memory("sram"),), tuple(buffers))


def banded(lifetime: float, seed: int) -> Problem:
    """Return a chain of layers that are computed row by row.

    A tensor grows in the steps in which its operand shrinks. Half of the tensors are used again
    after `lifetime` layers (the mean), and three of ten may lie in place of their operand.
    """
    dice = random.Random(seed)
    buffers: list[Buffer] = []
    pairs: list[InPlace] = []
    for i in range(TENSORS):
        row = 16 * (1 + int(2 ** (6 * dice.random())))
        last = i + 1 + (int(dice.expovariate(1 / lifetime)) if dice.random() < 0.5 else 0)
        made, read = ROWS * i, ROWS * last
        spans = [Span(made + k, made + k + 1, 0, (k + 1) * row) for k in range(ROWS)]
        if last > i + 1:
            spans.append(Span(made + ROWS, read, 0, ROWS * row))
        spans += [Span(read + k, read + k + 1, k * row, ROWS * row) for k in range(ROWS)]
        name = f"t{i}"
        buffers.append(Buffer(name, ROWS * row, made, read + ROWS, "sram", spans=tuple(spans)))
        if i and dice.random() < 0.3:
            pairs.append(InPlace(f"t{i - 1}", name))
    return Problem((Memory("sram"),), tuple(buffers), tuple(pairs))


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "whole, 10 at once": lambda seed: whole(10, seed),
    "whole, 100 at once": lambda seed: whole(100, seed),
    "whole, 500 at once": lambda seed: whole(500, seed),
    "whole, 950 at once": lambda seed: whole(950, seed),
    "whole, 2,000 at once": at_random,
    "banded, 3 at once": lambda seed: banded(2, seed),
    "banded, 12 at once": lambda seed: banded(20, seed),
    "banded, 50 at once": lambda seed: banded(100, seed),
}
"""Problems by name; each is made from a seed."""

MINIMALLOC = 1 << 20
"""Bytes into which each of MiniMalloc's challenging benchmarks is known to fit."""


def main(
    *,
    write: records.WriteOption = False,
    note: records.NoteOption = "",
    minimalloc: Annotated[
        Path | None,
        typer.Option(
            "--minimalloc",
            metavar="FOLDER",
            help="Also plan the CSV files of a folder: MiniMalloc's benchmarks/challenging.",
        ),
    ] = None,
) -> None:
    """Measure the planner's processor time and gap to the lower bound for 4,000 tensors."""
    console = Console(width=120)
    rows = [
        _measure(kind, [make(seed) for seed in range(SEEDS)]) for kind, make in PROBLEMS.items()
    ]
    if minimalloc is not None:
        rows += _measured_files(minimalloc)
    columns = ("problems", "tensors", "pairs", "gap", "CPU time, s")
    TextTable(columns, tuple(cells(rows))).print(console)
    if write:
        device = f"{records.processor()}, Python {platform.python_version()}"
        run = records.this_run("planning --write", "no C compiler", device, note)
        records.write("planning", run, rows)


def cells(rows: Sequence[PlannedTensors]) -> list[tuple[object, ...]]:
    """Return the cells of a table: kind, tensors, pairs, gap in percent, and seconds."""
    return [
        (row.kind, row.tensors, row.pairs, f"{row.gap:.1%}", f"{row.seconds:.2f}") for row in rows
    ]


def _measure(kind: str, problems: list[Problem], bound: int = 0) -> PlannedTensors:
    """Plan problems; `bound` replaces their lower bound if it is larger."""
    gap = seconds = 0.0
    pairs = 0
    for problem in problems:
        start = time.process_time()
        found = plan(problem)
        seconds = max(seconds, time.process_time() - start)
        validate(problem, found)
        gap = max(gap, found.bytes / max(bound, found.lower_bound) - 1)
        pairs = max(pairs, make_arena(problem.buffers, problem.in_place).pair_count)
    return PlannedTensors(kind, len(problems[0].buffers), pairs, gap, seconds)


def _measured_files(folder: Path) -> Iterator[PlannedTensors]:
    """Plan the problems of MiniMalloc's files; the gap is that to the bytes that they fit into."""
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            buffers = tuple(
                Buffer(f"t{i}", int(r["size"]), int(r["lower"]), int(r["upper"]), "sram")
                for i, r in enumerate(csv.DictReader(file))
            )
        problem = Problem((Memory("sram"),), buffers)
        yield _measure(f"MiniMalloc {path.stem.partition('.')[0]}", [problem], MINIMALLOC)

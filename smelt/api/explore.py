"""The trade between RAM and cycles: a network compiled within several limits of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from smelt.api.compile import Compiled, compile_model
from smelt.api.options import Options
from smelt.errors import ConfigError
from smelt.frontend import load


@dataclass(frozen=True)
class MemoryPoint:
    """What a network takes within a limit of memory.

    Attributes:
        ram: Bytes of arena and states.
        cycles: Estimated cycles of an inference; None if the target has no prices.
        weights: Bytes of constants.
        banded: Layers that are computed a few rows at a time.
        layers: Layers that call kernels.
    """

    ram: int
    cycles: int | None
    weights: int
    banded: int
    layers: int


def memory_frontier(
    model: str | Path,
    options: Options,
    count: int,
    progress: Callable[[int], None] | None = None,
) -> tuple[MemoryPoint, ...]:
    """Compile a network within several limits of memory, from the smallest to the fastest.

    Args:
        model: The path of the file.
        options: Options of the build; `optimize` must be `speed`, without `max_ram`.
        count: How many limits are tried. They are evenly spaced between the smallest arena that is
            found and the one of the fastest kernels.
        progress: Called with the number of finished builds.

    Returns:
        The points by rising memory. Each takes fewer cycles than the one before it, as far as the
        target has prices.

    Raises:
        ConfigError: The options choose a point already, or `count` is too small.
        DoesNotFit: The smallest arena is too large for the board.
    """
    if options.optimize != "speed" or options.max_ram is not None:
        raise ConfigError("--optimize and --max-ram choose one of these points: omit them")
    if count < _FEWEST:
        raise ConfigError(f"--points must be at least {_FEWEST}, not {count}")
    imported = model if options.quantize else load(model, options.name, options.inputs)
    finished = 0

    def point(own: Options) -> MemoryPoint:
        nonlocal finished
        artifact = compile_model(imported, own)
        finished += 1
        if progress is not None:
            progress(finished)
        return _point(artifact)

    smallest, fastest = point(replace(options, optimize="ram")), point(options)
    points = [smallest, fastest]
    for number in range(1, count - 1):
        limit = smallest.ram + (fastest.ram - smallest.ram) * number // (count - 1)
        points.append(point(replace(options, max_ram=limit)))
    return _frontier(points)


_FEWEST = 2
"""Fewest points: the smallest arena, and the fastest kernels."""


def _point(artifact: Compiled) -> MemoryPoint:
    calls = artifact.schedule.calls
    cycles = [step.cycles for step in calls]
    return MemoryPoint(
        ram=artifact.network.arena_bytes + artifact.network.state_bytes,
        cycles=None if None in cycles else sum(filter(None, cycles)),
        weights=artifact.network.weights_bytes,
        banded=sum(step.bands is not None for step in calls),
        layers=len(calls),
    )


def _frontier(points: Sequence[MemoryPoint]) -> tuple[MemoryPoint, ...]:
    """Return the points that no other one beats in memory and cycles, by rising memory."""
    found: list[MemoryPoint] = []
    for point in sorted(points, key=lambda p: (p.ram, p.cycles or 0)):
        last = found[-1] if found else None
        faster = last is None or point.cycles is None or point.cycles < (last.cycles or 0)
        if last is None or (faster and last.ram < point.ram):
            found.append(point)
    return tuple(found)

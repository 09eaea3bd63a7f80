"""The trade between RAM, instructions and flash: a network built within several limits of memory.

Builds and their results are picklable, so any executor works, as in `smelt.proof.farm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.api.report import arena_bytes
from smelt.boards import find_computer, load
from smelt.boards.flash import FlashOptions
from smelt.errors import ConfigError, SmeltError
from smelt.proof.deploy import flashing_rig
from smelt.proof.farm import compile_with_plugins, finished
from smelt.proof.rig import Rig
from smelt.proof.run import run
from smelt.samples import random_samples
from smelt.targets import HOST

Measure = Literal["instructions", "seconds", "estimated_cycles"]


@dataclass(frozen=True)
class MemoryBuild:
    """Work of one worker: compile a network and, if it can run, measure one inference.

    Attributes:
        model: path of the file on the worker's machine, or its bytes.
        on: where it runs: `host`, `qemu`, `board`, or the port of a board that is flashed first.
            None estimates instead.
        options: options of the build; the worker sets `kernels`.
        plugins: plugin files.
        device: number of this computer's accelerator; None selects the default.
    """

    model: str | bytes
    on: str | None
    options: Options
    plugins: tuple[Path, ...] = ()
    device: int | None = None

    @property
    def limit(self) -> str:
        """Return the option that chooses this build, or an empty text if none is needed."""
        if self.options.max_ram == _UNLIMITED:
            return "largest --max-ram"
        if self.options.max_ram is not None:
            return f"--max-ram {self.options.max_ram}"
        return "" if self.options.optimize == "speed" else f"--optimize {self.options.optimize}"


@dataclass(frozen=True)
class MemoryPoint:
    """What a network takes within a limit of memory.

    Attributes:
        limit: the option that chooses this point, or an empty text if none is needed.
        ram: bytes of arena and states.
        instructions: instructions of an inference in a simulator, or None.
        seconds: duration of an inference on a real board or this computer, or None.
        estimated_cycles: cycles of an inference; None if the target has no prices.
        flash: bytes of code and constants; None if it was only estimated.
        stack: bytes of stack that an inference used, or None.
        weights: bytes of constants.
        banded: layers that are computed a few rows at a time.
        layers: layers that call kernels.
    """

    limit: str
    ram: int
    instructions: int | None
    seconds: float | None
    estimated_cycles: int | None
    flash: int | None
    stack: int | None
    weights: int
    banded: int
    layers: int

    @property
    def measure(self) -> Measure:
        """Return the name of the field that points are compared by."""
        if self.instructions is not None:
            return "instructions"
        return "estimated_cycles" if self.seconds is None else "seconds"

    @property
    def cost(self) -> float | None:
        """Return the instructions, the seconds, or else the estimated cycles."""
        return getattr(self, self.measure)


@dataclass(frozen=True)
class BuildResult:
    """Result of a build.

    Attributes:
        limit: that of the build.
        ram: bytes of arena and states, or None if the network could not be compiled.
        point: the figures; None if the build failed.
        error: why it failed, or an empty text.
    """

    limit: str
    ram: int | None
    point: MemoryPoint | None
    error: str = ""


@dataclass(frozen=True)
class Frontier:
    """Result of an exploration.

    Attributes:
        points: by rising memory; each costs less than the one before it, as far as that is known.
            No other build needs as little memory at as little cost.
        failed: builds that failed.
        tried: number of builds.
    """

    points: tuple[MemoryPoint, ...]
    failed: tuple[BuildResult, ...]
    tried: int


def runs_on(options: Options, on: str | None = None, device: int | None = None) -> str | None:
    """Return where builds run to be measured: at `on`, or else in a simulator or on this computer.

    None means nowhere: there is no board, or it cannot be simulated.
    """
    if on is not None:
        return on
    if device is not None:
        return "host"
    if options.board is None:
        return None
    if options.board == HOST.name or find_computer(options.board) is not None:
        return "host"
    return None if load(options.board).qemu is None else "qemu"


def memory_frontier(
    build: MemoryBuild,
    count: int,
    executor: Executor,
    progress: Callable[[int], None] | None = None,
) -> Frontier:
    """Build a network within several limits of memory, from the smallest to the fastest.

    Args:
        build: the network; `optimize` must be `speed`, without `max_ram`.
        count: how many limits are tried: the smallest arena that is found, the one of the fastest
            kernels, half of the rest in equal ratios between them, and then the other half where
            less memory costs most.
        executor: runs the builds: first these two and the one without options, then each half.
        progress: called with the number of finished builds.

    Raises:
        ConfigError: the options choose a point already, or `count` is too small.
    """
    options = build.options
    if options.optimize != "speed" or options.max_ram is not None:
        raise ConfigError("--optimize and --max-ram choose one of these points: omit them")
    if count < _FEWEST:
        raise ConfigError(f"--points must be at least {_FEWEST}, not {count}")
    results: list[BuildResult] = []

    def add(several: Sequence[Options]) -> None:
        builds = [replace(build, options=replace(one, kernels={})) for one in several]
        found: dict[str, BuildResult] = {}
        for done, result in finished(measure_build, builds, executor):
            if isinstance(result, Exception):
                result = BuildResult(done.limit, None, None, f"the worker failed: {result}")
            found[done.limit] = result
            if progress is not None:
                progress(len(results) + len(found))
        results.extend(found[one.limit] for one in builds)

    add([replace(options, optimize="ram"), options, replace(options, max_ram=_UNLIMITED)])
    ends = [result.ram for result in results if result.ram is not None]
    if len(ends) == len(results):
        limits = _between(min(ends), max(ends), (count - 1) // 2)
        add([replace(options, max_ram=limit) for limit in limits])
        known = dict(zip((*ends, *limits), (r.point for r in results), strict=True))
        steep = _within_steps(known, count - 2 - len(limits))
        add([replace(options, max_ram=limit) for limit in steep])
    return Frontier(
        points=_frontier([result.point for result in results if result.point is not None]),
        failed=tuple(result for result in results if result.point is None),
        tried=len(results),
    )


_FEWEST = 2
"""Fewest limits: the smallest arena, and the fastest kernels."""

_UNLIMITED = 2**40
"""`max_ram` for the fastest kernels. Without a limit, slightly slower ones may save memory."""


def _between(least: int, most: int, count: int) -> list[int]:
    """Return `count` limits between two, in equal ratios; fewer if the two are close."""
    ratio = most / least if least else 1
    limits = {round(least * ratio ** (i / (count + 1))) for i in range(1, count + 1)}
    return sorted(limits - {least, most})


def _within_steps(points: Mapping[int, MemoryPoint | None], count: int) -> list[int]:
    """Return `count` more limits, in the middle of the largest steps of cost.

    There are fewer if all limits are close.

    Args:
        points: the points so far, by limit. If one has no cost, the largest steps of memory count
            instead.
        count: how many limits are wanted.
    """
    costs = {limit: None if point is None else point.cost for limit, point in points.items()}
    by_cost = None not in costs.values()
    places = {limit: (cost or 0) if by_cost else -limit for limit, cost in sorted(costs.items())}
    steps = [(places[a] - places[b], a, b) for a, b in pairwise(places)]
    found: list[int] = []
    while steps and len(found) < count:
        steps.sort()
        height, least, most = steps.pop()
        middle = (least + most) // 2
        if least < middle:
            found.append(middle)
            steps += [(height / 2, least, middle), (height / 2, middle, most)]
    return sorted(found)


def measure_build(build: MemoryBuild) -> BuildResult:
    """Compile a network, and run one inference of it. A `SmeltError` becomes part of the result."""
    ram: int | None = None
    try:
        artifact = compile_with_plugins(build.model, build.options, build.plugins)
        report: Mapping[str, Any] = artifact.report
        ram = _ram(report)
        if build.on is not None:
            samples = random_samples(artifact.graph, 1, seed=0)
            report = run(artifact, samples, _rig(artifact, build.on, build.device)).report
        return BuildResult(build.limit, ram, _point(build, artifact, report))
    except SmeltError as problem:
        return BuildResult(build.limit, ram, None, f"{problem.kind}: {problem}")


def _rig(artifact: Artifact, on: str, device: int | None) -> Rig:
    """Return where a build runs. A real board is flashed first, because each build differs."""
    if on in ("host", "qemu"):
        return Rig(on, device_number=device)
    port = None if on == "board" else on
    return replace(
        flashing_rig(artifact, FlashOptions(), port, lambda _: None), device_number=device
    )


def _ram(report: Mapping[str, Any]) -> int:
    return arena_bytes(report) + report["state"]["bytes"]


def _point(build: MemoryBuild, artifact: Artifact, report: Mapping[str, Any]) -> MemoryPoint:
    calls, inference = artifact.schedule.calls, report["inference"]
    cycles = [step.cycles for step in calls]
    latency = inference["latency"]
    unlimited = build.options.max_ram == _UNLIMITED
    return MemoryPoint(
        limit=f"--max-ram {_ram(report)}" if unlimited else build.limit,
        ram=_ram(report),
        instructions=inference["instructions"],
        seconds=None if latency is None else latency["seconds"]["mean"],
        estimated_cycles=None if None in cycles else sum(filter(None, cycles)),
        flash=report["flash"]["network"],
        stack=inference["stack"],
        weights=artifact.network.weights_bytes,
        banded=sum(step.bands is not None for step in calls),
        layers=len(calls),
    )


def _frontier(points: Sequence[MemoryPoint]) -> tuple[MemoryPoint, ...]:
    """Return the points that no other one beats in memory and cost, by rising memory."""
    found: list[MemoryPoint] = []
    for point in sorted(points, key=lambda p: (p.ram, p.cost or 0)):
        last = found[-1] if found else None
        cheaper = last is None or point.cost is None or point.cost < (last.cost or 0)
        if last is None or (cheaper and last.ram < point.ram):
            found.append(point)
    return tuple(found)

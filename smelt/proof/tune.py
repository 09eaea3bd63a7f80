"""Measures the layers of a network on an accelerator, in several blocks, and on the CPU beside it.

The network is built once for each rank of a layer's blocks: every layer in its best by the profile,
every layer in another one, and so on. All these programs take turns, so that whatever else the
computer does meets them alike. What seems faster is measured once more, for of many candidates one
is always lucky.

Where layers are watched, each is a submission of its own, and what that takes differs between two
processes by more than many a layer takes. So the smallest layer is every program's yardstick: it
keeps its block, and what it takes is counted as the submission's and taken off all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles

from smelt.api.artefact import Artefact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.accelerator import Accelerator, devices_beside, targets_beside
from smelt.codegen.lower.device import (
    MOST_TRIED,
    DeviceCall,
    LayerTimes,
    Measurements,
    layer_key,
)
from smelt.codegen.lower.kernel import Tiling
from smelt.errors import ConfigError
from smelt.frontend import Imported
from smelt.ir import Node
from smelt.proof.rig import Rig
from smelt.proof.run import device_inputs, set_sizes
from smelt.samples import random_samples

MARGIN = 0.02
"""The part of a layer's time that another block must save to be worth a change."""

_STEPS = 2
"""How often neighbours of the best are tried."""

_PROMISING = 0.9
"""The part of a layer's time below which the profile is so wrong that neighbours are tried."""

Times = Mapping[str, Sequence[float]]
"""Nanoseconds of a layer in each round, by `layer_key`."""


@dataclass(frozen=True)
class LayerKind:
    """The first of equal layers on the device, how it is computed, and how many they are."""

    node: Node
    call: DeviceCall
    count: int


@dataclass(frozen=True)
class MeasuredLayer:
    """What a kind of layer takes, in nanoseconds.

    Attributes:
        kind: which layers these are, with the block that the profile chooses.
        own_ns: on the device with that block.
        found: what is stored of it.
    """

    kind: LayerKind
    own_ns: float
    found: LayerTimes


@dataclass(frozen=True)
class Tuned:
    """What was measured: for builds, and for the one who asked."""

    tuning: Measurements
    layers: tuple[MeasuredLayer, ...]


def tune(
    model: str | Path | Imported, options: Options, rounds: int, device: int | None = None
) -> Tuned:
    """Run every layer on the device, in its candidate blocks, and on the CPU; keep the fastest.

    Args:
        model: the network.
        options: for a target with an accelerator; backends, places and the fallback do not count.
        rounds: inferences of each program, of which the median is taken for each layer.
        device: number of the accelerator; one is chosen where None.

    Raises:
        ConfigError: the target has no accelerator, or it serves no layer.
        ToolError, DeviceError: as for a run.
    """
    free = replace(options, place={}, tuning=None, backends=None, cpu_fallback=False)
    compiled = compile_model(model, free)
    target = compiled.platform.target
    accelerator, profile = compiled.accelerator, target.device
    if accelerator is None or profile is None:
        raise ConfigError(
            f"target '{target.name}' has no {devices_beside()} to tune for: give {targets_beside()}"
        )
    own = _again(compiled, backends=target.backends)
    kinds = kinds_of(own)
    if not kinds:
        raise ConfigError(
            f"the {profile.noun} serves no layer of this network: `smelt partition` says why"
        )
    seeming = _fastest(own, accelerator, kinds, rounds, device)
    on_cpu = _again(own, backends=target.backends[-1:])
    changed = _with_blocks(own, accelerator, seeming) if seeming else own
    run = _times((own, changed, on_cpu), rounds, device)
    *both, cpu = run.times
    before, after = (ProgramTimes.of(times, kinds) for times in both)
    best = {k: block for k, block in seeming.items() if after.saves(before, k)}
    layers = {
        k: LayerTimes(
            device_ns=(after if k in best else before).median(k),
            cpu_ns=median(cpu[k]) if k in cpu else None,
            block=best.get(k),
        )
        for k in kinds
    }
    rows = (MeasuredLayer(kind, before.median(k), layers[k]) for k, kind in kinds.items())
    tuning = accelerator.tuning(profile.name, run.device, before.submit_ns, layers)
    return Tuned(tuning, tuple(rows))


def kinds_of(artefact: Artefact) -> dict[str, LayerKind]:
    """The layers on the device by `layer_key`."""
    steps = artefact.schedule.calls
    counts = Counter(layer_key(step.node) for step in steps)
    found: dict[str, LayerKind] = {}
    for step in steps:
        key = layer_key(step.node)
        if isinstance(step.call, DeviceCall) and key not in found:
            found[key] = LayerKind(step.node, step.call, counts[key])
    return found


def _yardstick(kinds: Mapping[str, LayerKind]) -> str:
    """The layer that does least, one without blocks if there is any; none where all are alike."""

    def size(key: str) -> tuple[bool, int]:
        node = kinds[key].node
        return bool(kinds[key].call.candidates), node.macs + node.output.type.size

    return min(kinds, key=size) if len(kinds) > 1 else ""


@dataclass(frozen=True)
class ProgramTimes:
    """What layers take on the device in each round beside their submission, and what that takes."""

    times: Times
    submit_ns: float

    @staticmethod
    def of(times: Times, kinds: Mapping[str, LayerKind]) -> ProgramTimes:
        """From what they take with it."""
        yardstick = _yardstick(kinds)
        submit = median(times[yardstick]) if yardstick else 0.0
        return ProgramTimes({k: [ns - submit for ns in times[k]] for k in kinds}, submit)

    def median(self, key: str) -> float:
        """What a layer takes."""
        return max(median(self.times[key]), 0.0)

    def saves(self, other: ProgramTimes, key: str) -> bool:
        """Whether more than the margin is saved, and something in three rounds of four."""
        saved = [b - a for a, b in zip(self.times[key], other.times[key], strict=True)]
        lower = quantiles(saved, n=4)[0] if len(saved) > 1 else saved[0]
        return lower > 0 and median(saved) > MARGIN * (other.median(key) + other.submit_ns)


def _fastest(
    own: Artefact,
    accelerator: Accelerator,
    kinds: Mapping[str, LayerKind],
    rounds: int,
    device: int | None,
) -> dict[str, Tiling]:
    """The blocks that seem faster than what the profile chooses.

    Where the profile is far off, neighbours of what is better are tried too.
    """
    yardstick = _yardstick(kinds)
    free = {k: v.call.candidates for k, v in kinds.items() if v.call.candidates and k != yardstick}
    tries = {k: accelerator.worth_measuring(v) for k, v in free.items()}
    tried = {k: {blocks[0]} for k, blocks in free.items()}
    found: dict[str, tuple[float, Tiling]] = {}
    for _ in range(1 + _STEPS):
        better = (
            _better(own, accelerator, kinds, tries, found, rounds, device)
            if any(tries.values())
            else {}
        )
        found |= better
        for k, blocks in tries.items():
            tried[k].update(blocks)
        tries = {
            k: tuple(b for b in accelerator.neighbours(block, free[k]) if b not in tried[k])[
                :MOST_TRIED
            ]
            for k, (part, block) in better.items()
            if part < _PROMISING
        }
    return {k: block for k, (_, block) in found.items()}


def _better(
    own: Artefact,
    accelerator: Accelerator,
    kinds: Mapping[str, LayerKind],
    tries: Mapping[str, Sequence[Tiling]],
    known: Mapping[str, tuple[float, Tiling]],
    rounds: int,
    device: int | None,
) -> dict[str, tuple[float, Tiling]]:
    """Blocks that are faster than the profile's and than known ones, with their part of its time.

    One program is built for the first try of every layer, one for the second, and so on.
    """
    ranks = [
        {k: blocks[rank] for k, blocks in tries.items() if rank < len(blocks)}
        for rank in range(max(map(len, tries.values())))
    ]
    runs = (own, *(_with_blocks(own, accelerator, blocks) for blocks in ranks))
    first, *others = (ProgramTimes.of(times, kinds) for times in _times(runs, rounds, device).times)
    found: dict[str, tuple[float, Tiling]] = {}
    for blocks, program in zip(ranks, others, strict=True):
        for k, block in blocks.items():
            best = found.get(k) or known.get(k)
            part = program.median(k) / first.median(k) if first.median(k) else 1.0
            if program.saves(first, k) and (best is None or part < best[0]):
                found[k] = part, block
    return found


def _with_blocks(own: Artefact, accelerator: Accelerator, blocks: Mapping[str, Tiling]) -> Artefact:
    """The network with other blocks, all else the same."""
    layers = {k: LayerTimes(device_ns=0, cpu_ns=0, block=block) for k, block in blocks.items()}
    profile = own.platform.target.device
    name = "" if profile is None else profile.name
    return _again(own, tuning=accelerator.tuning(name, "", 0, layers))


def _again(own: Artefact, **changes: object) -> Artefact:
    """The same network, already imported and quantized, with other options."""
    options = replace(own.options, quantize=None, **changes)
    return compile_model(own.imported, options)


@dataclass(frozen=True)
class TunedRun:
    """What each layer of each program takes, and which device computed."""

    times: Sequence[Times]
    device: str


def _times(artefacts: Sequence[Artefact], rounds: int, device: int | None) -> TunedRun:
    """What each layer of each program takes, round by round, all programs in turns."""
    found: list[dict[str, list[float]]] = [{} for _ in artefacts]
    with ExitStack() as stack:
        # The number says nothing of the program that measures the CPU, and would be refused.
        rigs = [Rig(device_number=None if a.network.device is None else device) for a in artefacts]
        opened = zip(rigs, artefacts, strict=True)
        boards = [stack.enter_context(rig.open(a, taps=True))[1] for rig, a in opened]
        (sample,) = random_samples(artefacts[0].graph, 1, seed=0)
        for artefact, board in zip(artefacts, boards, strict=True):
            set_sizes(board, artefact.graph, sample)
        for number in range(1 + rounds):
            for artefact, board, times in zip(artefacts, boards, found, strict=True):
                board.load_all(device_inputs(artefact.graph, sample))
                laps, scale = board.laps(), 1e9 / board.info.timer_hz
                together: dict[str, list[float]] = {}
                for step in artefact.schedule.steps:
                    if step.index in laps:
                        kind = layer_key(step.node)
                        together.setdefault(kind, []).append(laps[step.index] * scale)
                if number:  # in the first, drivers compile
                    for kind, ns in together.items():
                        times.setdefault(kind, []).append(sum(ns) / len(ns))
        names = (board.info.accelerator for board in boards)
        return TunedRun(found, next(name for name in names if name))

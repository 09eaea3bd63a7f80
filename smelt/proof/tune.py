"""Measures a network's layers on an accelerator, with several block sizes, and on the CPU.

Each layer has a list of candidate blocks, the profile's choice first. Program n uses candidate n of
every layer. All programs run alternately, so that other load on the computer affects them equally.
Candidates that seem faster are measured again, because among many candidates one is fast by chance.

To measure layers, each is submitted on its own. The time of a submission varies between processes
by more than many layers take. So the smallest layer keeps its block in all programs. Its time is
taken as the time of a submission, and subtracted from the times of all other layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.accelerator import Accelerator, accelerator_nouns, accelerator_targets
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
"""Minimum fraction of a layer's time that another block must save."""

_STEPS = 2
"""Number of rounds in which neighbors of the best block are tried."""

_PROMISING = 0.9
"""Neighbors are tried if a block takes less than this fraction of the profile's block."""

Times = Mapping[str, Sequence[float]]
"""Nanoseconds of a layer in each round, by `layer_key`."""


@dataclass(frozen=True)
class LayerKind:
    """The first of several equal layers on the device, its kernel call, and their number."""

    node: Node
    call: DeviceCall
    count: int


@dataclass(frozen=True)
class MeasuredLayer:
    """Measurements of several equal layers, in nanoseconds.

    Attributes:
        kind: the layers, with the block that the profile chooses.
        own_ns: time on the device with that block.
        found: the result to store.
    """

    kind: LayerKind
    own_ns: float
    found: LayerTimes


@dataclass(frozen=True)
class Tuned:
    """Result of tuning: measurements for later builds, and all layers for display."""

    tuning: Measurements
    layers: tuple[MeasuredLayer, ...]


def tune(
    model: str | Path | Imported, options: Options, rounds: int, device: int | None = None
) -> Tuned:
    """Measure each layer on the device with its candidate blocks, and on the CPU.

    Args:
        model: the network.
        options: options of the build, for a target with an accelerator; backends, places and the
            fallback are ignored.
        rounds: number of inferences of each program; each layer's median is used.
        device: number of the accelerator; None selects the default.

    Raises:
        ConfigError: the target has no accelerator, or the accelerator supports no layer.
        ToolError, DeviceError: a run failed.
    """
    free = replace(options, place={}, tuning=None, backends=None, cpu_fallback=False)
    compiled = compile_model(model, free)
    target = compiled.platform.target
    accelerator, profile = compiled.accelerator, target.device
    if accelerator is None or profile is None:
        raise ConfigError(
            f"target '{target.name}' has no {accelerator_nouns()} to tune for: use "
            f"{accelerator_targets()}"
        )
    own = _recompiled(compiled, backends=target.backends)
    kinds = kinds_of(own)
    if not kinds:
        raise ConfigError(
            f"the {profile.noun} supports no layer of this network: see `smelt partition`"
        )
    seeming = _fastest(own, accelerator, kinds, rounds, device)
    on_cpu = _recompiled(own, backends=target.backends[-1:])
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


def kinds_of(artifact: Artifact) -> dict[str, LayerKind]:
    """Return the distinct layers on the device by `layer_key`."""
    steps = artifact.schedule.calls
    counts = Counter(layer_key(step.node) for step in steps)
    found: dict[str, LayerKind] = {}
    for step in steps:
        key = layer_key(step.node)
        if isinstance(step.call, DeviceCall) and key not in found:
            found[key] = LayerKind(step.node, step.call, counts[key])
    return found


def _reference_layer(kinds: Mapping[str, LayerKind]) -> str:
    """Return the smallest layer, preferably one without blocks; empty if there is only one."""

    def size(key: str) -> tuple[bool, int]:
        node = kinds[key].node
        return bool(kinds[key].call.candidates), node.macs + node.output.type.size

    return min(kinds, key=size) if len(kinds) > 1 else ""


@dataclass(frozen=True)
class ProgramTimes:
    """Times of layers on the device in each round, without submission, and a submission's time."""

    times: Times
    submit_ns: float

    @staticmethod
    def of(times: Times, kinds: Mapping[str, LayerKind]) -> ProgramTimes:
        """Subtract the time of a submission from measured times."""
        yardstick = _reference_layer(kinds)
        submit = median(times[yardstick]) if yardstick else 0.0
        return ProgramTimes({k: [ns - submit for ns in times[k]] for k in kinds}, submit)

    def median(self, key: str) -> float:
        """Return the median time of a layer in nanoseconds."""
        return max(median(self.times[key]), 0.0)

    def saves(self, other: ProgramTimes, key: str) -> bool:
        """Return whether it saves more than the margin, and anything in 3 of 4 rounds."""
        saved = [b - a for a, b in zip(self.times[key], other.times[key], strict=True)]
        lower = quantiles(saved, n=4)[0] if len(saved) > 1 else saved[0]
        return lower > 0 and median(saved) > MARGIN * (other.median(key) + other.submit_ns)


def _fastest(
    own: Artifact,
    accelerator: Accelerator,
    kinds: Mapping[str, LayerKind],
    rounds: int,
    device: int | None,
) -> dict[str, Tiling]:
    """Return the blocks that seem faster than the profile's choice.

    If a block is much faster than the profile's choice, its neighbors are tried too.
    """
    yardstick = _reference_layer(kinds)
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
            k: tuple(b for b in accelerator.neighbors(block, free[k]) if b not in tried[k])[
                :MOST_TRIED
            ]
            for k, (part, block) in better.items()
            if part < _PROMISING
        }
    return {k: block for k, (_, block) in found.items()}


def _better(
    own: Artifact,
    accelerator: Accelerator,
    kinds: Mapping[str, LayerKind],
    tries: Mapping[str, Sequence[Tiling]],
    known: Mapping[str, tuple[float, Tiling]],
    rounds: int,
    device: int | None,
) -> dict[str, tuple[float, Tiling]]:
    """Return blocks that are faster than the profile's and than `known`, with relative times.

    The first program uses the first try of every layer, the second program the second, and so on.
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


def _with_blocks(own: Artifact, accelerator: Accelerator, blocks: Mapping[str, Tiling]) -> Artifact:
    """Compile the network with other blocks and otherwise equal options."""
    layers = {k: LayerTimes(device_ns=0, cpu_ns=0, block=block) for k, block in blocks.items()}
    profile = own.platform.target.device
    name = "" if profile is None else profile.name
    return _recompiled(own, tuning=accelerator.tuning(name, "", 0, layers))


def _recompiled(own: Artifact, **changes: object) -> Artifact:
    """Compile the imported and quantized network again with other options."""
    options = replace(own.options, quantize=None, **changes)
    return compile_model(own.imported, options)


@dataclass(frozen=True)
class TunedRun:
    """Times of each layer in each program, and the name of the device."""

    times: Sequence[Times]
    device: str


def _times(artifacts: Sequence[Artifact], rounds: int, device: int | None) -> TunedRun:
    """Measure each layer of each program, round by round, alternating between the programs."""
    found: list[dict[str, list[float]]] = [{} for _ in artifacts]
    with ExitStack() as stack:
        # A program for the CPU alone refuses a device number.
        rigs = [Rig(device_number=None if a.network.device is None else device) for a in artifacts]
        opened = zip(rigs, artifacts, strict=True)
        boards = [stack.enter_context(rig.open(a, trace=True))[1] for rig, a in opened]
        (sample,) = random_samples(artifacts[0].graph, 1, seed=0)
        for artifact, board in zip(artifacts, boards, strict=True):
            set_sizes(board, artifact.graph, sample)
        for number in range(1 + rounds):
            for artifact, board, times in zip(artifacts, boards, found, strict=True):
                board.load_all(device_inputs(artifact.graph, sample))
                ticks, scale = board.step_ticks(), 1e9 / board.info.timer_hz
                together: dict[str, list[float]] = {}
                for step in artifact.schedule.steps:
                    if step.index in ticks:
                        kind = layer_key(step.node)
                        together.setdefault(kind, []).append(ticks[step.index] * scale)
                if number:  # skip the first round, in which the driver compiles shaders
                    for kind, ns in together.items():
                        times.setdefault(kind, []).append(sum(ns) / len(ns))
        names = (board.info.accelerator for board in boards)
        return TunedRun(found, next(name for name in names if name))

"""Measures the layers of a network on a GPU and on the CPU beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from smelt.codegen.devices import layer_key
from smelt.codegen.tuning import Tuning
from smelt.errors import ConfigError
from smelt.frontend import Imported
from smelt.pipeline import Artefact, Options, compile_model
from smelt.run import Rig, device_inputs, set_sizes
from smelt.samples import random_samples


def tune(
    model: str | Path | Imported, options: Options, rounds: int, device: int | None = None
) -> Tuning:
    """Run every layer on the GPU and on the CPU, and keep what each took.

    Where layers are watched, each is a submission of its own. What the fastest layer of the GPU
    takes is counted as the submission's, and taken off all of them.

    Args:
        model: the network.
        options: for a target with a GPU; backends and places are left out of account.
        rounds: inferences, of which the median is taken for each layer.
        device: number of the GPU; one is chosen where None.

    Raises:
        ConfigError: the target has no GPU, or the GPU serves no layer.
        ToolError, DeviceError: as for a run.
    """
    free = replace(options, place={}, tuning=None)
    target = compile_model(model, free).platform.target
    if not target.gpu:
        raise ConfigError(f"target '{target.name}' has no GPU to tune for: give --target vulkan")
    *there, here = target.backends
    on_gpu = _times(
        compile_model(model, replace(free, backends=(*there, here))), rounds, device, gpu=True
    )
    if not on_gpu:
        raise ConfigError("the GPU serves no layer of this network: `smelt partition` says why")
    on_cpu = _times(
        compile_model(model, replace(free, backends=(here,))), rounds, device, gpu=False
    )
    submit = min(on_gpu.values())
    layers = {key: (on_gpu[key] - submit, on_cpu[key]) for key in on_gpu if key in on_cpu}
    return Tuning(gpu=options.gpu or "default", submit_ns=submit, layers=layers)


def _times(
    artefact: Artefact, rounds: int, device: int | None, *, gpu: bool
) -> Mapping[str, float]:
    """Nanoseconds of the layers that the GPU, or the CPU, computes: the median of all rounds."""
    (sample,) = random_samples(artefact.graph, 1, seed=0)
    taken: dict[str, list[float]] = {}
    with Rig(gpu=device).open(artefact, taps=True) as (_, board):
        set_sizes(board, artefact.graph, sample)
        scale = 1e9 / board.info.timer_hz
        for _ in range(rounds):
            board.load_all(device_inputs(artefact.graph, sample))
            laps = board.laps()
            for step in artefact.schedule.steps:
                if (step.backend == "vulkan") == gpu and step.index in laps:
                    taken.setdefault(layer_key(step.node), []).append(laps[step.index] * scale)
    return {key: median(times) for key, times in taken.items()}

"""Runs a compiled network on samples and measures memory, instructions, time and energy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smelt.api.report import BuildLimits, Latency, Measured, Report, complete
from smelt.argument_checks import as_path
from smelt.boards import Device, ElfInfo, Invocation, compile_library, compile_project
from smelt.boards.build import link_library, network_objects
from smelt.boards.energy_meter import Meter, metered
from smelt.boards.stack_bound import StackBound, stack_bound
from smelt.errors import DoesNotFit, ToolError
from smelt.files import temporary_folder
from smelt.ir import Array, Graph, Value
from smelt.ops.run_time_lengths import cut, find_marks, padded, sizes_of
from smelt.proof.rig import Rig, built, connected, require_libraries, require_tools
from smelt.samples import Sample, random_samples

if TYPE_CHECKING:
    from smelt.api.artifact import Artifact

Progress = Callable[[int], None]
"""Called with the number of samples done so far."""
Inspect = Callable[[ElfInfo, Device], None]


@dataclass(frozen=True)
class Result:
    """Outputs of each sample, the measurements, and the report completed with them.

    Attributes:
        outputs: one array per output, for each sample.
        measured: the measurements.
        report: the completed report.
        seconds: duration on this computer, including the build.
        trace: whether the firmware can report single steps.
    """

    outputs: tuple[tuple[Array, ...], ...]
    measured: Measured
    report: Report
    seconds: float
    trace: bool


def write_project(
    artifact: Artifact,
    directory: str | Path,
    *,
    force: bool = False,
    compile_: bool = False,
    limits: BuildLimits | None = None,
) -> Report:
    """Write the C project, compile and run it if the options need that, and check the limits.

    Args:
        artifact: a compiled network.
        directory: folder of the project, which is written completely or not at all.
        force: replace the files of an earlier build; all other files are kept.
        compile_: also run `make` and measure the result. Limits on flash imply it.
        limits: limits of the build. Limits on stack or instructions run one inference.

    Raises:
        ConfigError: the folder cannot be written, or a limit needs a run and the target has no
            firmware without a board.
        ToolError: the compiler is missing or failed.
        DoesNotFit: the linked firmware is too large for the board, or a limit is exceeded.
    """
    limits = limits or BuildLimits()
    directory = as_path(directory, "directory")

    def finish(folder: Path) -> Report:
        report: Report = dict(artifact.report)
        if compile_ or limits.needs_build:
            report = complete(report, compiled(artifact, folder, limits))
        limits.check(report)
        return report

    return artifact.project.write(directory, force=force, finish=finish)


def compiled(
    artifact: Artifact, folder: Path, limits: BuildLimits, sources: Sequence[str] = ()
) -> Measured:
    """Run `make` in a written project, and measure what the limits need.

    If the project has several networks, `sources` names the C files of the network to measure;
    empty measures all networks.
    """
    libraries = artifact.options.library_folders
    if not artifact.has_firmware:
        require_libraries(artifact)
        flash = compile_library(
            folder, artifact.platform, libraries=libraries, measured_sources=sources
        )
        if not limits.needs_run:
            return Measured(flash, stack_bound=_bound_of_library(artifact, folder))
        with built(artifact) as elf, connected(elf, artifact, None) as device:
            return replace(_infer_once(artifact, elf, device), flash_network=flash, flash_elf=None)
    require_tools(artifact)
    elf = compile_project(folder, artifact.platform, libraries=libraries, measured_sources=sources)
    bound = bound_of(artifact, elf.path)
    if bound is not None:
        _require_stack(artifact, elf, bound)
    if not limits.needs_run:
        return Measured(elf.flash_network.total, elf.flash_elf, stack_bound=bound, ram=elf.ram)
    with connected(elf, artifact, None) as device:
        return _infer_once(artifact, elf, device)


def bound_of(
    artifact: Artifact, elf: Path, build: Path | None = None, *, trace: bool = False
) -> StackBound | None:
    """Return the most stack that an inference can use, or None for this computer's code.

    Args:
        artifact: the compiled network.
        elf: the program that it is linked into.
        build: folder with the program's object files; None if it is the ELF's own.
        trace: whether the firmware is called back after each step, so that there is no bound.
    """
    target = artifact.platform.target
    if not target.cross:
        return None
    if trace:
        return StackBound(None, reason="it calls the firmware after each step (TRACE=1)")
    objects = network_objects(build or elf.parent)
    return stack_bound(elf, objects, target, f"{artifact.network.name}_invoke")


def _bound_of_library(artifact: Artifact, folder: Path) -> StackBound | None:
    """Return the bound of a network in a compiled library, which is linked with its libraries."""
    if not artifact.platform.target.cross:
        return None
    with temporary_folder() as temporary:
        elf = Path(temporary) / "linked.elf"
        try:
            link_library(folder, artifact.platform, f"{artifact.network.name}_invoke", elf)
        except ToolError as error:
            return StackBound(None, reason=str(error).partition("\n")[0])
        return bound_of(artifact, elf, folder / "build")


def _require_stack(artifact: Artifact, elf: ElfInfo, bound: StackBound) -> None:
    """Check that an inference's stack fits into the firmware's.

    Raises:
        DoesNotFit: it may need more.
    """
    available = elf.sections.get(".smelt_stack", 0)
    needed = (bound.bytes or 0) + (bound.interrupts or 0)
    if needed > available:
        raise DoesNotFit(
            f"an inference may need {needed:,} bytes of stack, of which {bound.interrupts or 0:,} "
            f"are for interrupts, but {artifact.platform.name} has a stack of {available:,}: set a "
            "larger stack_bytes in the board's file",
            needed=needed,
            available=available,
        )


def _infer_once(artifact: Artifact, elf: ElfInfo, device: Device) -> Measured:
    (sample,) = random_samples(artifact.graph, 1, seed=0)
    _, invocation = device.run([array.tobytes() for array in sample])
    return _measured(artifact, elf, device, [invocation])


def step_sizes(artifact: Artifact) -> list[int]:
    """Return the size in bytes of each step's largest output."""
    steps = artifact.schedule.steps
    return [max((v.type.bytes for v in step.node.outputs), default=0) for step in steps]


def run(
    artifact: Artifact,
    samples: Sequence[Sample],
    rig: Rig | None = None,
    progress: Progress | None = None,
    inspect: Inspect | None = None,
) -> Result:
    """Run all samples on the rig's device and measure.

    Args:
        artifact: a compiled network.
        samples: for each sample, one array per input, of exactly the input's type.
        rig: device to run on; None selects the artifact's default.
        progress: called after each sample.
        inspect: called with the firmware and the device before the first sample.

    Raises:
        ToolError: the compiler or simulator is missing or failed.
        DeviceError: the device gives a wrong response.
        DoesNotFit: the linked firmware is too large for the board.
    """
    rig, start = rig or Rig(), time.monotonic()
    with rig.open(artifact) as (elf, device):
        if inspect is not None:
            inspect(elf, device)
        outputs: list[tuple[Array, ...]] = []
        invocations: list[Invocation] = []
        for sample in samples[:1]:
            warm_up(device, artifact, sample)
        for index, sample in enumerate(samples):
            found, invocation = infer(device, artifact.graph, sample, rig.meter)
            outputs.append(found)
            invocations.append(invocation)
            if progress is not None:
                progress(index + 1)
        measured = _measured(artifact, elf, device, invocations, rig.meter)
        trace = device.info.trace
    seconds = time.monotonic() - start
    return Result(tuple(outputs), measured, complete(artifact.report, measured), seconds, trace)


def infer(
    device: Device, graph: Graph, sample: Sample, meter: Meter | None = None
) -> tuple[tuple[Array, ...], Invocation]:
    """Run one inference on a device; return its outputs, of the sample's sizes, and its figures."""
    sizes, marks = set_sizes(device, graph, sample), find_marks(graph)
    device.load_all(device_inputs(graph, sample))
    with metered(meter):
        invocation = device.invoke()
    answers = [device.output(i) for i in range(len(graph.outputs))]
    values = zip(graph.outputs, map(_tensor, answers, graph.outputs), strict=True)
    return tuple(cut(value, array, marks, sizes) for value, array in values), invocation


def _measured(
    artifact: Artifact,
    elf: ElfInfo,
    device: Device,
    invocations: Sequence[Invocation],
    meter: Meter | None = None,
) -> Measured:
    last = invocations[-1]
    latency = None
    if not device.simulated:
        counts = artifact.board is not None and device.info.timer_hz == artifact.board.clock_hz
        latency = Latency(
            tuple(i.seconds for i in invocations),
            tuple(i.ticks for i in invocations) if counts else None,
        )
    depths = [i.stack_bytes for i in invocations if i.stack_bytes is not None]
    return Measured(
        flash_network=elf.flash_network.total,
        flash_elf=elf.flash_elf,
        instructions=last.instructions,
        stack=max(depths, default=None),
        stack_bound=bound_of(artifact, elf.path, trace=device.info.trace),
        ram=elf.ram if artifact.board is not None else None,
        latency=latency,
        energy_j=None if meter is None else meter.joules / len(invocations),
        device=device.info.accelerator,
    )


def warm_up(device: Device, artifact: Artifact, sample: Sample) -> None:
    """Run an unmeasured inference if there is an accelerator, so its driver compiles its code.

    Afterwards, reset the state of the network.
    """
    if artifact.network.device is None:
        return
    set_sizes(device, artifact.graph, sample)
    device.run(device_inputs(artifact.graph, sample))
    if artifact.graph.states:
        device.reset()


def set_sizes(device: Device, graph: Graph, sample: Sample) -> dict[str, int]:
    """Send the run-time sizes of a sample to the device, and return them by name."""
    sizes = sizes_of(graph, sample)
    device.set_lengths([sizes[length.name] for length in graph.lengths])
    return sizes


def device_inputs(graph: Graph, sample: Sample) -> list[bytes]:
    """Return a sample as bytes, with inputs padded to their largest size."""
    return [array.tobytes() for array in padded(graph, sample)]


def _tensor(data: bytes, value: Value) -> Array:
    return np.frombuffer(data, value.type.dtype.numpy).reshape(value.type.shape)

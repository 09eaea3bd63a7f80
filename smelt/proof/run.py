"""Builds a compiled network, runs it on the host, a simulator or a device, and measures it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smelt.api import device_options
from smelt.api.report import Gates, Latency, Measured, Report, complete
from smelt.arguments import as_path
from smelt.boards import Device, ElfInfo, Invocation, compile_project, open_device
from smelt.boards.build import library_folder
from smelt.boards.meter import Meter, metered
from smelt.codegen.accelerator import targets_beside
from smelt.errors import ConfigError, DeviceError, ToolError
from smelt.files import lasting_folder, temporary_folder
from smelt.ir import Array, Graph, Value
from smelt.ops.lengths import cut, padded, sizes_of, trace
from smelt.samples import Sample, random_samples

if TYPE_CHECKING:
    from smelt.api.artefact import Artefact

Progress = Callable[[int], None]
"""Called with the number of samples done so far."""
Inspect = Callable[[ElfInfo, Device], None]


@dataclass(frozen=True)
class Result:
    """What a run gave: outputs per sample, and the report completed by what was measured.

    Attributes:
        seconds: that it took on this computer, building included.
        taps: whether the firmware can tell of single steps.
    """

    outputs: tuple[tuple[Array, ...], ...]
    measured: Measured
    report: Report
    seconds: float
    taps: bool


def write_project(
    artefact: Artefact,
    directory: str | Path,
    *,
    force: bool = False,
    compile_: bool = False,
    gates: Gates | None = None,
) -> Report:
    """Write the C project, measure as much as is asked for, and check the gates.

    Args:
        artefact: a compiled network.
        directory: where the project appears, whole or not at all.
        force: replace the files of an earlier build; all others in the folder are kept.
        compile_: run `make` in it too, and measure the ELF; gates on flash do that anyway.
        gates: limits that the build must keep; those on stack and instructions run one inference.

    Raises:
        ConfigError: the directory cannot be written, or the ELF asked for is one without a board.
        ToolError: the compiler is missing or failed.
        DoesNotFit: the linked firmware is too large for the board, or a gate is exceeded.
    """
    gates = gates or Gates()
    directory = as_path(directory, "directory")

    def finish(folder: Path) -> Report:
        report: Report = dict(artefact.report)
        if compile_ or gates.needs_elf:
            _require_tools(artefact)
            libraries = artefact.options.library_folders
            elf = compile_project(folder, artefact.platform, libraries=libraries)
            measured = Measured(elf.flash_network.total, elf.flash_elf, ram=elf.ram)
            if gates.needs_run:
                with connected(elf, artefact, None) as device:
                    measured = _infer_once(artefact, elf, device)
            report = complete(report, measured)
        gates.check(report)
        return report

    return artefact.project.write(directory, force=force, finish=finish)


def _infer_once(artefact: Artefact, elf: ElfInfo, device: Device) -> Measured:
    (sample,) = random_samples(artefact.graph, 1, seed=0)
    _, invocation = device.run([array.tobytes() for array in sample])
    return _measured(artefact, elf, device, [invocation])


def _require_tools(artefact: Artefact) -> None:
    """Check that the project can be linked here: it has firmware, and the libraries it calls."""
    for library in artefact.network.external:
        known = library_folder(library, artefact.options.library_folders)
        if known and (Path(known) / library.header_path).is_file():
            continue
        where = f"'{known}' has no {library.header_path}" if known else "nothing says where it is"
        raise ConfigError(
            f"the network calls {library.title}, and {where}: give its folder by {library.option} "
            f"or by the environment variable {library.variable}"
        )
    if artefact.platform.firmware is None:
        raise ConfigError(
            f"a network for target '{artefact.platform.target.name}' is only a library without "
            "--board, and cannot be linked or run; see `smelt boards`"
        )


@contextmanager
def built(
    artefact: Artefact, *, taps: bool = False, extra_cflags: str = "", keep: bool = False
) -> Generator[ElfInfo]:
    """The linked ELF of an artefact in a temporary folder, gone afterwards unless `keep` is set."""
    _require_tools(artefact)
    with lasting_folder() if keep else temporary_folder() as folder:
        directory = Path(folder) / artefact.network.title
        artefact.write(directory)
        try:
            yield compile_project(
                directory,
                artefact.platform,
                taps=taps,
                extra_cflags=extra_cflags,
                libraries=artefact.options.library_folders,
            )
        except ToolError as error:
            if folder not in str(error):
                raise
            raise ToolError(
                f"{error}\n{folder} is gone again; `smelt build -o DIR --compile` with the same "
                "options leaves these files in DIR"
            ) from error


@contextmanager
def connected(
    elf: ElfInfo,
    artefact: Artefact,
    on: str | None,
    qemu_arguments: Sequence[str] = (),
    *,
    simulated: bool = False,
    device_number: int | None = None,
) -> Generator[Device]:
    """A device that runs the ELF: `host`, `qemu` (with these arguments too), `board` or a port.

    `device_number` is that of the accelerator that computes beside this computer's CPU.
    """
    accelerator = artefact.accelerator
    environment = None
    if device_number is not None and accelerator is not None:
        environment = accelerator.environment(device_number)
    where = artefact.on if on is None else on
    if where in ("qemu", "board") and artefact.board is None:
        raise ConfigError(f"--on {where} needs --board, see `smelt boards`")
    if where == "host" and artefact.platform.firmware != "host":
        raise ConfigError(
            f"--on host cannot run code for '{artefact.platform.name}': leave --board and "
            "--target out"
        )
    with open_device(
        elf.path,
        where,
        artefact.board,
        expected_hash=artefact.network.hash,
        qemu_arguments=qemu_arguments,
        simulated=simulated,
        environment=environment,
    ) as device:
        require_tensors(device, artefact.graph)
        if artefact.graph.states:
            device.reset()  # whoever spoke to it before has left a state
        yield device


def require_tensors(device: Device, graph: Graph) -> None:
    """Demand a device whose inputs and outputs are as large as the network's.

    Raises:
        DeviceError: they are not, although it says that it runs the network.
    """
    sides = (
        ("input", device.info.inputs, graph.inputs),
        ("output", device.info.outputs, graph.outputs),
    )
    for kind, said, values in sides:
        found, wanted = [t.bytes for t in said], [v.type.bytes for v in values]
        if found != wanted:
            raise DeviceError(
                f"the device announces {kind}s of {found} bytes, and the network has {wanted}: "
                "build and flash its firmware again"
            )


def step_sizes(artefact: Artefact) -> list[int]:
    """Bytes that an output of each step has at most."""
    steps = artefact.schedule.steps
    return [max((v.type.bytes for v in step.node.outputs), default=0) for step in steps]


@dataclass(frozen=True)
class Rig:
    """Where a compiled network runs, and how it gets there.

    Attributes:
        on: `host`, `qemu`, `board` or a serial port; the artefact's default where None.
        flash: puts linked firmware on the device; None where it is there already.
        simulated: whether QEMU answers at the port.
        meter: measures the energy of inferences.
        device_number: of this computer's accelerator that computes; one is chosen where None.
    """

    on: str | None = None
    flash: Callable[[ElfInfo], None] | None = None
    simulated: bool = False
    meter: Meter | None = None
    device_number: int | None = None

    def loads(self, artefact: Artefact) -> bool:
        """Whether the device gets the firmware here, so that it must be the one that is built."""
        where = artefact.on if self.on is None else self.on
        return self.flash is not None or where in ("host", "qemu")

    def check(self, artefact: Artefact) -> None:
        """Make sure that the device asked for by its number would compute.

        Raises:
            ConfigError: the network runs elsewhere, or nothing of it goes to a device.
        """
        if self.device_number is None:
            return
        where = artefact.on if self.on is None else self.on
        if where != "host" or artefact.accelerator is None:
            raise ConfigError(
                f"--device {self.device_number} chooses among this computer's GPUs, for "
                f"{targets_beside()}; this network is for '{artefact.platform.name}'"
            )
        if artefact.network.device is None:
            why = device_options.why_on_cpu(artefact.options, artefact.platform.target)
            raise ConfigError(
                f"--device {self.device_number} chooses the GPU that computes, and no layer of "
                f"this network goes to one: {why}; or leave --device out"
            )

    @contextmanager
    def open(self, artefact: Artefact, *, taps: bool = False) -> Generator[tuple[ElfInfo, Device]]:
        """Build, flash and connect."""
        self.check(artefact)
        with built(artefact, taps=taps) as elf:
            if self.flash is not None:
                self.flash(elf)
            with connected(
                elf, artefact, self.on, simulated=self.simulated, device_number=self.device_number
            ) as device:
                yield elf, device


def run(
    artefact: Artefact,
    samples: Sequence[Sample],
    rig: Rig | None = None,
    progress: Progress | None = None,
    inspect: Inspect | None = None,
) -> Result:
    """Run every sample where the rig says, and measure.

    Args:
        artefact: a compiled network.
        samples: one array per input each, of exactly its type.
        rig: where; the artefact's default where None.
        progress: called after every sample.
        inspect: called with the firmware and the device before the first.

    Raises:
        ToolError: compiler or simulator is missing or failed.
        DeviceError: the device does not answer as it should.
        DoesNotFit: the linked firmware is too large for the board.
    """
    rig, start = rig or Rig(), time.monotonic()
    with rig.open(artefact) as (elf, device):
        if inspect is not None:
            inspect(elf, device)
        outputs: list[tuple[Array, ...]] = []
        invocations: list[Invocation] = []
        marks = trace(artefact.graph)
        for sample in samples[:1]:
            warm_up(device, artefact, sample)
        for index, sample in enumerate(samples):
            sizes = set_sizes(device, artefact.graph, sample)
            device.load_all(device_inputs(artefact.graph, sample))
            with metered(rig.meter):
                invocations.append(device.invoke())
            answers = [device.output(i) for i in range(len(artefact.graph.outputs))]
            tensors = map(_tensor, answers, artefact.graph.outputs)
            values = zip(artefact.graph.outputs, tensors, strict=True)
            outputs.append(tuple(cut(value, array, marks, sizes) for value, array in values))
            if progress is not None:
                progress(index + 1)
        measured = _measured(artefact, elf, device, invocations, rig.meter)
        taps = device.info.taps
    seconds = time.monotonic() - start
    return Result(tuple(outputs), measured, complete(artefact.report, measured), seconds, taps)


def _measured(
    artefact: Artefact,
    elf: ElfInfo,
    device: Device,
    invocations: Sequence[Invocation],
    meter: Meter | None = None,
) -> Measured:
    last = invocations[-1]
    latency = None
    if not device.simulated:
        counts = artefact.board is not None and device.info.timer_hz == artefact.board.clock_hz
        latency = Latency(
            tuple(i.seconds for i in invocations),
            tuple(i.ticks for i in invocations) if counts else None,
        )
    depths = [i.stack_bytes for i in invocations if i.stack_bytes is not None]
    return Measured(
        elf.flash_network.total,
        elf.flash_elf,
        last.instructions,
        max(depths, default=None),
        elf.ram if artefact.board is not None else None,
        latency,
        None if meter is None else meter.joules / len(invocations),
        device.info.accelerator,
    )


def warm_up(device: Device, artefact: Artefact, sample: Sample) -> None:
    """An inference that does not count: in the first, drivers of devices compile what they left.

    Nothing where there is no accelerator. State is as it was at the start afterwards.
    """
    if artefact.network.device is None:
        return
    set_sizes(device, artefact.graph, sample)
    device.run(device_inputs(artefact.graph, sample))
    if artefact.graph.states:
        device.reset()


def set_sizes(device: Device, graph: Graph, sample: Sample) -> dict[str, int]:
    """Tell the device the sizes of a sample that are known at run time only; they are returned."""
    sizes = sizes_of(graph, sample)
    device.set_lengths([sizes[length.name] for length in graph.lengths])
    return sizes


def device_inputs(graph: Graph, sample: Sample) -> list[bytes]:
    """A sample as the device takes it."""
    return [array.tobytes() for array in padded(graph, sample)]


def _tensor(data: bytes, value: Value) -> Array:
    return np.frombuffer(data, value.type.dtype.numpy).reshape(value.type.shape)

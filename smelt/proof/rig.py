"""Where a compiled network runs: it is built, flashed where it must be, and connected to."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from smelt.api import device_options
from smelt.boards import Device, ElfInfo, compile_project, open_device
from smelt.boards.build import library_folder
from smelt.boards.energy_meter import Meter
from smelt.codegen.accelerator import devices_beside, targets_beside
from smelt.errors import ConfigError, DeviceError, ToolError
from smelt.files import lasting_folder, temporary_folder
from smelt.ir import Graph

if TYPE_CHECKING:
    from smelt.api.artefact import Artefact


def require_libraries(artefact: Artefact) -> None:
    """Check that the libraries that the network calls are on this computer.

    Raises:
        ConfigError: nothing says where one is, or it is not there.
    """
    for library in artefact.network.external:
        known = library_folder(library, artefact.options.library_folders)
        if known and (Path(known) / library.header_path).is_file():
            continue
        where = f"'{known}' has no {library.header_path}" if known else "nothing says where it is"
        raise ConfigError(
            f"the network calls {library.title}, and {where}: give its folder by {library.option} "
            f"or by the environment variable {library.variable}"
        )


def require_tools(artefact: Artefact) -> None:
    """Check that the network can be linked here: there is firmware, and the libraries it calls.

    Raises:
        ConfigError: there is no firmware for the target without a board, or a library is missing.
    """
    require_libraries(artefact)
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
    require_tools(artefact)
    with lasting_folder() if keep else temporary_folder() as folder:
        directory = Path(folder) / artefact.network.title
        artefact.with_firmware().write(directory)
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
                f"--device {self.device_number} chooses among this computer's "
                f"{devices_beside()}s, for {targets_beside()}; this network is for "
                f"'{artefact.platform.name}'"
            )
        if artefact.network.device is None:
            target = artefact.platform.target
            noun = devices_beside() if target.device is None else target.device.noun
            why = device_options.why_on_cpu(artefact.options, target)
            raise ConfigError(
                f"--device {self.device_number} chooses the {noun} that computes, and no layer of "
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

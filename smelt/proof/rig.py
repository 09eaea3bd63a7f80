"""Builds a compiled network, flashes it if necessary, and connects to the device."""

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
from smelt.codegen.accelerator import accelerator_nouns, accelerator_targets
from smelt.errors import ConfigError, DeviceError, ToolError
from smelt.files import lasting_folder, temporary_folder
from smelt.ir import Graph

if TYPE_CHECKING:
    from smelt.api.artifact import Artifact


def require_libraries(artifact: Artifact) -> None:
    """Check that the libraries that the network calls are on this computer.

    Raises:
        ConfigError: the folder of a library is unknown or has no such header.
    """
    for library in artifact.network.external:
        known = library_folder(library, artifact.options.library_folders)
        if known and (Path(known) / library.header_path).is_file():
            continue
        where = f"'{known}' has no {library.header_path}" if known else "its folder is unknown"
        raise ConfigError(
            f"the network calls {library.title}, but {where}: set it with {library.option} or "
            f"environment variable {library.variable}"
        )


def require_tools(artifact: Artifact) -> None:
    """Check that the network can be linked here: there is firmware, and the libraries it calls.

    Raises:
        ConfigError: there is no firmware for the target without a board, or a library is missing.
    """
    require_libraries(artifact)
    if artifact.platform.firmware is None:
        raise ConfigError(
            f"without --board, a network for target '{artifact.platform.target.name}' is only a "
            "library that cannot be linked or run; see `smelt boards`"
        )


@contextmanager
def built(
    artifact: Artifact, *, trace: bool = False, extra_cflags: str = "", keep: bool = False
) -> Generator[ElfInfo]:
    """Yield the linked ELF in a temporary folder, which is deleted afterwards unless `keep`."""
    require_tools(artifact)
    with lasting_folder() if keep else temporary_folder() as folder:
        directory = Path(folder) / artifact.network.title
        artifact.with_firmware().write(directory)
        try:
            yield compile_project(
                directory,
                artifact.platform,
                trace=trace,
                extra_cflags=extra_cflags,
                libraries=artifact.options.library_folders,
            )
        except ToolError as error:
            if folder not in str(error):
                raise
            raise ToolError(
                f"{error}\n{folder} was deleted; to keep these files, run `smelt build -o DIR "
                "--compile` with the same options"
            ) from error


@contextmanager
def connected(
    elf: ElfInfo,
    artifact: Artifact,
    on: str | None,
    qemu_arguments: Sequence[str] = (),
    *,
    simulated: bool = False,
    device_number: int | None = None,
) -> Generator[Device]:
    """Yield a device that runs the ELF.

    Args:
        elf: the firmware.
        artifact: the compiled network.
        on: `host`, `qemu`, `board` or a serial port; None selects the artifact's default.
        qemu_arguments: more arguments for QEMU.
        simulated: whether the device at a port is a simulator.
        device_number: number of this computer's accelerator; None selects the default.

    Raises:
        ConfigError: the code cannot run on that device.
        DeviceError: the device does not respond, or runs other firmware.
    """
    accelerator = artifact.accelerator
    environment = None
    if device_number is not None and accelerator is not None:
        environment = accelerator.environment(device_number)
    where = artifact.on if on is None else on
    if where in ("qemu", "board") and artifact.board is None:
        raise ConfigError(f"--on {where} needs --board, see `smelt boards`")
    if where == "host" and artifact.platform.firmware != "host":
        raise ConfigError(
            f"--on host cannot run code for '{artifact.platform.name}': remove --board and --target"
        )
    with open_device(
        elf.path,
        where,
        artifact.board,
        expected_hash=artifact.network.hash,
        qemu_arguments=qemu_arguments,
        simulated=simulated,
        environment=environment,
    ) as device:
        require_tensors(device, artifact.graph)
        if artifact.graph.states:
            device.reset()  # clear state left over from earlier inferences
        yield device


def require_tensors(device: Device, graph: Graph) -> None:
    """Check that a device's inputs and outputs have the same sizes as the network's.

    Raises:
        DeviceError: they differ, although the device reports the network's hash.
    """
    sides = (
        ("input", device.info.inputs, graph.inputs),
        ("output", device.info.outputs, graph.outputs),
    )
    for kind, reported, values in sides:
        found, wanted = [t.bytes for t in reported], [v.type.bytes for v in values]
        if found != wanted:
            raise DeviceError(
                f"the device reports {kind}s of {found} bytes, but the network has {wanted}: "
                "build and flash its firmware again"
            )


@dataclass(frozen=True)
class Rig:
    """Where a compiled network runs, and how its firmware gets there.

    Attributes:
        on: `host`, `qemu`, `board` or a serial port; None selects the artifact's default.
        flash: function that flashes linked firmware; None if the device is already flashed.
        simulated: whether the device at the port is simulated by QEMU.
        meter: energy meter, or None.
        device_number: number of this computer's accelerator; None selects the default.
    """

    on: str | None = None
    flash: Callable[[ElfInfo], None] | None = None
    simulated: bool = False
    meter: Meter | None = None
    device_number: int | None = None

    def loads(self, artifact: Artifact) -> bool:
        """Return whether this rig loads the firmware, so that the device must run this build."""
        where = artifact.on if self.on is None else self.on
        return self.flash is not None or where in ("host", "qemu")

    def check(self, artifact: Artifact) -> None:
        """Check that the accelerator selected by `device_number` would be used.

        Raises:
            ConfigError: the network runs elsewhere, or no layer runs on the accelerator.
        """
        if self.device_number is None:
            return
        where = artifact.on if self.on is None else self.on
        if where != "host" or artifact.accelerator is None:
            raise ConfigError(
                f"--device {self.device_number} selects one of this computer's "
                f"{accelerator_nouns()}s, for {accelerator_targets()}; this network is for "
                f"'{artifact.platform.name}'"
            )
        if artifact.network.device is None:
            target = artifact.platform.target
            noun = accelerator_nouns() if target.device is None else target.device.noun
            why = device_options.why_on_cpu(artifact.options, target)
            raise ConfigError(
                f"--device {self.device_number} selects a {noun}, but no layer of this network "
                f"runs on one: {why}; or remove --device"
            )

    @contextmanager
    def open(self, artifact: Artifact, *, trace: bool = False) -> Generator[tuple[ElfInfo, Device]]:
        """Build the firmware, flash it if necessary, and connect to the device."""
        self.check(artifact)
        with built(artifact, trace=trace) as elf:
            if self.flash is not None:
                self.flash(elf)
            with connected(
                elf, artifact, self.on, simulated=self.simulated, device_number=self.device_number
            ) as device:
                yield elf, device

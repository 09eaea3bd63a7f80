"""Rigs that flash a device before running a network, and timing of layers on the device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smelt.api.report import Report
from smelt.boards import Board, Device, ElfInfo
from smelt.boards.flash import FlashOptions, choose, takes_port
from smelt.boards.simulate import INSTRUCTIONS_PER_SECOND, Simulator
from smelt.errors import ConfigError
from smelt.proof.rig import Rig, built, connected
from smelt.proof.run import device_inputs, set_sizes, warm_up
from smelt.samples import Sample

if TYPE_CHECKING:
    from smelt.api.artifact import Artifact

Say = Callable[[str], None]


def _say_nothing(_: str) -> None:
    pass


@dataclass(frozen=True)
class VirtualRig(Rig):
    """A board simulated by QEMU that is flashed like a real one.

    The simulator starts with empty memory. A real GDB loads the firmware through QEMU's GDB server,
    as it would through a debug probe. The firmware then communicates over its UART.

    Attributes:
        say: called with each line of GDB's output.
        pty: whether the UART is a pseudo-terminal instead of a socket.
        timeout_s: timeout of GDB in seconds.
    """

    say: Say = _say_nothing
    pty: bool = False
    timeout_s: float = 120

    def loads(self, artifact: Artifact) -> bool:
        """Return True: GDB always loads the firmware that was built here."""
        return True

    @contextmanager
    def open(self, artifact: Artifact, *, trace: bool = False) -> Generator[tuple[ElfInfo, Device]]:
        """Build the firmware, start the simulator, flash it and connect to it."""
        board = board_of(artifact)
        with (
            built(artifact, trace=trace) as elf,
            Simulator(board, None, pty=self.pty) as simulator,
        ):
            FlashOptions(server=simulator.gdb, simulated=True, timeout_s=self.timeout_s).flash(
                elf.path, board, self.say
            )
            with connected(elf, artifact, simulator.port, simulated=True) as device:
                yield elf, device


def flashing_rig(artifact: Artifact, flashing: FlashOptions, on: str | None, say: Say) -> Rig:
    """Return a rig that flashes a real board before it connects to it.

    Args:
        artifact: network to run.
        flashing: options of flashing. Their port is also the firmware's, unless a boot loader
            uses it.
        on: serial port of the running firmware; None selects that of `flashing`, or auto-detection.
        say: called with the commands and their output.

    Raises:
        ConfigError: no runner fits (see `choose`), or the firmware's port cannot be determined.
        ToolError: no program of the board's runners is installed.
    """
    board = board_of(artifact)
    table = choose(board, flashing.runner, flashing.server)
    if on is None and takes_port(table):
        raise ConfigError(
            f"runner '{table.runner}' flashes through the boot loader's port: give the firmware's "
            "serial port with --on"
        )
    return Rig(on or flashing.port or "board", lambda elf: flashing.flash(elf.path, board, say))


def board_of(artifact: Artifact) -> Board:
    """Return the board of a network. Raise a `ConfigError` if it has none."""
    if artifact.board is None:
        chosen = artifact.options.board
        what = (
            "" if chosen is None else f"--board {chosen} is a computer, which needs no firmware: "
        )
        raise ConfigError(f"{what}choose a device with --board, see `smelt boards`")
    return artifact.board


def time_layers(artifact: Artifact, sample: Sample, rig: Rig) -> Report:
    """Return the time of each layer in one inference, as a report's `layers` and `timer`.

    Each layer gets `ticks` of the device's timer, and `seconds`. If time is simulated, the layer
    gets `instructions` instead of `seconds`. `timer` contains the timer's frequency in Hz. Layers
    that only control other layers have no time (None).

    Raises:
        DeviceError: the firmware was built without `TRACE=1`, or does not respond.
    """
    with rig.open(artifact, trace=True) as (_, device):
        warm_up(device, artifact, sample)
        set_sizes(device, artifact.graph, sample)
        device.load_all(device_inputs(artifact.graph, sample))
        ticks_of = device.step_ticks()
        hz, simulated = device.info.timer_hz, device.simulated
    planned: Mapping[str, Any] = artifact.report
    layers: list[Report] = []
    for index, layer in enumerate(planned["layers"]):
        ticks = ticks_of.get(index)
        time = None if ticks is None else ticks / hz
        count = None if time is None else round(time * INSTRUCTIONS_PER_SECOND)
        own = {"instructions": count} if simulated else {"seconds": time}
        layers.append({**layer, "ticks": ticks, **own})
    return {"layers": layers, "timer": {"hz": hz, "simulated": simulated}}

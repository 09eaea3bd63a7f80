"""Onto a device and back: rigs that flash, and what each layer takes on the device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smelt.api.report import Report
from smelt.boards import Board, Device, ElfInfo
from smelt.boards.flash import Way, choose, takes_port
from smelt.boards.simulate import INSTRUCTIONS_PER_SECOND, Simulator
from smelt.errors import ConfigError
from smelt.proof.rig import Rig, built, connected
from smelt.proof.run import device_inputs, set_sizes, warm_up
from smelt.samples import Sample

if TYPE_CHECKING:
    from smelt.api.artefact import Artefact

Say = Callable[[str], None]


def _say_nothing(_: str) -> None:
    pass


@dataclass(frozen=True)
class VirtualRig(Rig):
    """A board that QEMU stands in for, flashed as if it were one.

    It starts with nothing in its memory; a real GDB loads the firmware over the server that QEMU
    is, as it would over a probe's, and the firmware is spoken to on its UART.

    Attributes:
        say: gets what GDB writes.
        pty: whether the UART is a pseudo-terminal in place of a socket.
        timeout_s: seconds that GDB may take.
    """

    say: Say = _say_nothing
    pty: bool = False
    timeout_s: float = 120

    def loads(self, artefact: Artefact) -> bool:
        """GDB does, whatever the artefact."""
        return True

    @contextmanager
    def open(self, artefact: Artefact, *, taps: bool = False) -> Generator[tuple[ElfInfo, Device]]:
        """Build, start the simulator, flash and connect."""
        board = board_of(artefact)
        with (
            built(artefact, taps=taps) as elf,
            Simulator(board, None, pty=self.pty) as simulator,
        ):
            Way(server=simulator.gdb, timeout_s=self.timeout_s).flash(elf.path, board, self.say)
            with connected(elf, artefact, simulator.port, simulated=True) as device:
                yield elf, device


def flashing_rig(artefact: Artefact, way: Way, on: str | None, say: Say) -> Rig:
    """A rig that puts firmware on a real board before it speaks to it.

    Args:
        artefact: what is going to run.
        way: how it is flashed. Its port is the firmware's too, unless a boot loader has it.
        on: the port where the firmware answers; None: `way`'s, or the board's on USB.
        say: gets the commands and what they write.

    Raises:
        ConfigError, ToolError: no runner, see `choose`; or it cannot be known where the firmware
            will answer.
    """
    board = board_of(artefact)
    table = choose(board, way.runner, way.server)
    if on is None and takes_port(table):
        raise ConfigError(
            f"runner '{table.runner}' flashes through a port that the boot loader has; name the "
            "one where the firmware will answer with --on"
        )
    return Rig(on or way.port or "board", lambda elf: way.flash(elf.path, board, say))


def board_of(artefact: Artefact) -> Board:
    """The device that a network was compiled for; `ConfigError` where there is none."""
    if artefact.board is None:
        chosen = artefact.options.board
        what = (
            "" if chosen is None else f"--board {chosen} is a computer, which takes no firmware: "
        )
        raise ConfigError(f"{what}--board says on which device it runs, see `smelt boards`")
    return artefact.board


def time_layers(artefact: Artefact, sample: Sample, rig: Rig) -> Report:
    """What each layer takes on the device, in one inference: a report's `layers` and `timer`.

    Every layer gets `ticks` of the device's timer, and `seconds`, or `instructions` where time is a
    count of them; `timer` says how many ticks a second has. A layer that controls others has none.

    Raises:
        DeviceError: the firmware on the device was built without `TAPS=1`, or does not answer.
    """
    with rig.open(artefact, taps=True) as (_, device):
        warm_up(device, artefact, sample)
        set_sizes(device, artefact.graph, sample)
        device.load_all(device_inputs(artefact.graph, sample))
        laps = device.laps()
        hz, simulated = device.info.timer_hz, device.simulated
    planned: Mapping[str, Any] = artefact.report
    layers: list[Report] = []
    for index, layer in enumerate(planned["layers"]):
        ticks = laps.get(index)
        time = None if ticks is None else ticks / hz
        count = None if time is None else round(time * INSTRUCTIONS_PER_SECOND)
        own = {"instructions": count} if simulated else {"seconds": time}
        layers.append({**layer, "ticks": ticks, **own})
    return {"layers": layers, "timer": {"hz": hz, "simulated": simulated}}

"""Opens a device: a program on this computer, a simulated board, or a real board."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from smelt.boards.board import Board
from smelt.boards.ports import BAUD, find_port, open_port
from smelt.boards.simulate import INSTRUCTIONS_PER_SECOND, Simulator
from smelt.boards.simulation_timeout import pace_of
from smelt.boards.stream import ProcessStream, SocketStream
from smelt.boards.wire import Device
from smelt.errors import ConfigError


@contextmanager
def open_device(
    elf: Path | None,
    on: str,
    board: Board | None = None,
    *,
    expected_hash: str | None = None,
    qemu_arguments: Sequence[str] = (),
    simulated: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Generator[Device, None, None]:
    """Yield a connected device that responds.

    Args:
        elf: program to execute; None with a port, whose device was flashed before.
        on: `host`, `qemu`, `board` for the board's port on USB, or the name or URL of a port.
        board: board that `elf` was built for; required with `qemu` and `board`.
        expected_hash: hash of the network that the device must run, or None for any.
        qemu_arguments: more arguments for QEMU.
        simulated: whether the device at a port is QEMU, whose time is an instruction count.
        environment: more environment variables for a program on this computer.

    Raises:
        ConfigError: `qemu` or `board` is given without a board, QEMU does not simulate the board,
            or its port cannot be determined.
        ToolError: QEMU is not installed.
        DeviceError: the device cannot be opened, does not respond, or runs another network.
    """
    if on in ("host", "qemu") and elf is None:
        raise ConfigError(f"--on {on} needs a compiled project")
    if on == "host":
        assert elf is not None
        stream = ProcessStream(elf, environment)
        try:
            yield _ready(Device(stream), expected_hash)
        finally:
            stream.close()
    elif on == "qemu":
        if board is None:
            raise ConfigError("--on qemu needs a --board to simulate")
        assert elf is not None
        with Simulator(board, elf, qemu_arguments) as simulator:
            stream = SocketStream(simulator.port, simulator.explain)
            pace = pace_of(simulator.port)
            device = Device(stream, instructions_per_second=INSTRUCTIONS_PER_SECOND, pace=pace)
            try:
                yield _ready(device, expected_hash)
            finally:
                stream.close()
    else:
        if on == "board":
            if board is None:
                raise ConfigError("--on board needs a --board to find the port")
            on = find_port(board)
        port = open_port(on, board)
        try:
            rate = INSTRUCTIONS_PER_SECOND if simulated else None
            shared = on.startswith(("socket://", "rfc2217://"))
            device = Device(
                port,
                instructions_per_second=rate,
                timeout_s=_SOCKET_S if shared else _PORT_S,
                baud=BAUD if board is None else board.uart.baud,
                doubt=_HELD if shared else "",
                pace=pace_of(on),
            )
            yield _ready(device, expected_hash)
        finally:
            port.close()


_PORT_S, _SOCKET_S = 10, 5
"""Timeouts in seconds for the first response: of a serial port, and of a socket."""

_HELD = (
    " Is another program connected? A server such as QEMU may serve only one client at a time and "
    "let others wait."
)


def _ready(device: Device, expected_hash: str | None) -> Device:
    if expected_hash is None:
        _ = device.info
    else:
        device.check_hash(expected_hash)
    return device

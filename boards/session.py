"""Opening a device: a program on this computer, a simulated board, or a real one."""

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
    """A device that answers, for as long as the context lasts.

    Args:
        elf: what to execute; None with a port, whose device runs what was flashed.
        on: `host`, `qemu`, `board` for the board's port on USB, or a port by its name or URL.
        board: the one that `elf` was built for; needed with `qemu` and `board`.
        expected_hash: of the network (`NAME_HASH`); the device must run that one.
        qemu_arguments: more arguments for QEMU, where that is what runs.
        simulated: whether what answers at a port is QEMU, whose time is a count of instructions.
        environment: more variables for a program on this computer.

    Raises:
        ConfigError: `qemu` or `board` without a board, a board that QEMU has no machine for, or one
            whose port cannot be told.
        ToolError: QEMU is not installed.
        DeviceError: the device cannot be opened, does not answer, or runs another network.
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
            raise ConfigError("--on qemu needs a --board, which says what QEMU shall simulate")
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
                raise ConfigError("--on board needs a --board, whose port is looked for")
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
"""Of silence, after which what is connected to a port is no device of ours."""

_HELD = (
    " Does another program hold the connection? What serves it, such as QEMU, may speak with one "
    "at a time, and let the others wait."
)


def _ready(device: Device, expected_hash: str | None) -> Device:
    if expected_hash is None:
        _ = device.info
    else:
        device.check_hash(expected_hash)
    return device

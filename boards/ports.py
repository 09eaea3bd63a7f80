"""The serial port of a board, found by what it appears as on USB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from serial.tools.list_ports import comports

from smelt.boards.board import Board
from smelt.errors import ConfigError, DeviceError


class PortInfo(Protocol):
    """What pyserial knows of a port."""

    device: str
    vid: int | None
    pid: int | None


def find_port(board: Board) -> str:
    """The name of the only port with one of the board's USB identities.

    Raises:
        DeviceError: there is none; the message lists the ports that there are.
        ConfigError: there are several, or the board file says no USB identity.
    """
    if not board.usb:
        raise ConfigError(
            f"board '{board.name}' has no serial port of its own on USB: name the port that is "
            f"connected to its UART with --port; there are {_listed(comports())}"
        )
    ports: Sequence[PortInfo] = list(comports())
    found = [port for port in ports if _identity(port) in board.usb]
    if not found:
        raise DeviceError(
            f"no serial port of board '{board.name}' ({', '.join(board.usb)}) is there: connect "
            f"it, or name a port with --port; there are {_listed(ports)}"
        )
    if len(found) > 1:
        raise ConfigError(
            f"several ports may be board '{board.name}': {_listed(found)}; choose one with --port"
        )
    return found[0].device


def _identity(port: PortInfo) -> str | None:
    return None if port.vid is None or port.pid is None else f"{port.vid:04x}:{port.pid:04x}"


def _listed(ports: Sequence[PortInfo]) -> str:
    named = [f"{port.device} ({_identity(port) or 'not on USB'})" for port in ports]
    return ", ".join(sorted(named)) or "none"

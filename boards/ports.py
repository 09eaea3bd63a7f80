"""Serial ports of boards, found by USB ids or given by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from serial.tools.list_ports import comports

from smelt.boards.board import Board
from smelt.boards.stream import SerialStream, Stream
from smelt.errors import ConfigError, DeviceError

BAUD = 115_200
"""Baud rate of a port without a known board."""


class PortInfo(Protocol):
    """Properties of a serial port that pyserial reports."""

    device: str
    vid: int | None
    pid: int | None


def find_port(board: Board) -> str:
    """Return the name of the only port with one of the board's USB ids.

    Raises:
        DeviceError: there is none; the message lists all ports.
        ConfigError: there are several, or the board file has no USB id.
    """
    if not board.usb:
        raise ConfigError(
            f"board '{board.name}' has no serial port on USB: give the port that is connected to "
            f"its UART with --port or --on; available ports: {_listed(comports())}"
        )
    ports: Sequence[PortInfo] = list(comports())
    found = [port for port in ports if _identity(port) in board.usb]
    if not found:
        raise DeviceError(
            f"no serial port of board '{board.name}' ({', '.join(board.usb)}) was found: connect "
            f"it, or give a port with --port or --on; available ports: {_listed(ports)}"
        )
    if len(found) > 1:
        raise ConfigError(
            f"several ports match board '{board.name}': {_listed(found)}; choose one with --port "
            "or --on"
        )
    return found[0].device


def open_port(port: str, board: Board | None = None) -> Stream:
    """Open a device's serial port.

    Args:
        port: name of a serial port (`/dev/ttyACM0`, `COM5`), or a URL that pyserial supports:
            `socket://HOST:PORT`, `rfc2217://HOST:PORT`.
        board: board whose baud rate is used; None uses `BAUD`.

    Raises:
        ConfigError: the URL is malformed.
        DeviceError: the port cannot be opened; the message gives the reason and lists all ports.
    """
    if "://" in port:
        _check_url(port)
    try:
        return SerialStream(port, board.uart.baud if board is not None else BAUD)
    except DeviceError as error:
        if "://" in port:
            raise
        raise DeviceError(f"{error}; available ports: {_listed(comports())}") from error


def _check_url(url: str) -> None:
    try:
        address = urlsplit(url)
        complete = address.hostname is not None and address.port is not None
    except ValueError as error:
        raise ConfigError(f"'{url}': {error}") from error
    if address.scheme in ("socket", "rfc2217") and not complete:
        raise ConfigError(f"'{url}' is not of the form {address.scheme}://HOST:PORT")


def _identity(port: PortInfo) -> str | None:
    return None if port.vid is None or port.pid is None else f"{port.vid:04x}:{port.pid:04x}"


def _listed(ports: Sequence[PortInfo]) -> str:
    named = [f"{port.device} ({_identity(port) or 'not on USB'})" for port in ports]
    return ", ".join(sorted(named)) or "none"

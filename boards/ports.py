"""The serial port of a board: found by what it appears as on USB, or by the name it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from serial.tools.list_ports import comports

from smelt.boards.board import Board
from smelt.boards.stream import SerialStream, Stream
from smelt.errors import ConfigError, DeviceError

BAUD = 115_200
"""Of a port of no known board."""


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
            f"connected to its UART (--port, or --on); there are {_listed(comports())}"
        )
    ports: Sequence[PortInfo] = list(comports())
    found = [port for port in ports if _identity(port) in board.usb]
    if not found:
        raise DeviceError(
            f"no serial port of board '{board.name}' ({', '.join(board.usb)}) is there: connect "
            f"it, or name a port (--port, or --on); there are {_listed(ports)}"
        )
    if len(found) > 1:
        raise ConfigError(
            f"several ports may be board '{board.name}': {_listed(found)}; choose one with --port "
            "or --on"
        )
    return found[0].device


def open_port(port: str, board: Board | None = None) -> Stream:
    """A connection to a device's serial port.

    Args:
        port: the name of a serial port (`/dev/ttyACM0`, `COM5`), or a URL that pyserial knows:
            `socket://HOST:PORT`, `rfc2217://HOST:PORT`.
        board: says the speed; `BAUD` where None.

    Raises:
        ConfigError: the URL is malformed.
        DeviceError: the port cannot be opened; the message says why, and which there are.
    """
    if "://" in port:
        _check_url(port)
    try:
        return SerialStream(port, board.uart.baud if board is not None else BAUD)
    except DeviceError as error:
        if "://" in port:
            raise
        raise DeviceError(f"{error}; there are {_listed(comports())}") from error


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

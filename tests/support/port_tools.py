"""Substitutes for the connection between host and board: a slow line, an RFC 2217 server."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import serial
from serial.rfc2217 import PortManager


class Server:
    """Server on a port of this computer that serves one client after the other.

    Attributes:
        address: HOST:PORT.
    """

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        """Start; `serve` returns when it is done with a client."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._serve = serve
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with client, suppress(OSError, serial.SerialException):
                self._serve(client)


def slowed(target: str, bytes_per_s: float) -> Server:
    """Start a terminal server that accepts all bytes at once and forwards them at a given rate."""
    host, port = target.removeprefix("socket://").split(":")

    def serve(client: socket.socket) -> None:
        with socket.create_connection((host, int(port))) as board:
            board.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=_pump, args=(board, client, bytes_per_s))
            back.start()
            _pump(client, board, bytes_per_s)
            back.join()

    return Server(serve)


def _pump(source: socket.socket, to: socket.socket, bytes_per_s: float) -> None:
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def hand_on() -> None:
        begin, sent = time.monotonic(), 0
        with suppress(OSError):
            while data := came.get():
                if time.monotonic() > begin + sent / bytes_per_s:
                    begin, sent = time.monotonic(), 0
                for at in range(0, len(data), 16):
                    part = data[at : at + 16]
                    to.sendall(part)
                    sent += len(part)
                    time.sleep(max(0.0, begin + sent / bytes_per_s - time.monotonic()))

    thread = threading.Thread(target=hand_on)
    thread.start()
    with suppress(OSError):
        while data := source.recv(65536):
            came.put(data)
    came.put(b"")
    thread.join()
    with suppress(OSError):
        to.shutdown(socket.SHUT_WR)


@dataclass(frozen=True)
class _Connection:
    """The answers of pyserial's `PortManager` to its client."""

    client: socket.socket

    def write(self, data: bytes) -> None:
        self.client.sendall(data)


def rfc2217(port: str) -> Server:
    """Start pyserial's own RFC 2217 server for a port."""

    def serve(client: socket.socket) -> None:
        over = threading.Event()
        with serial.serial_for_url(port, timeout=0.02) as board:
            # pyserial's stubs declare both for RFC 2217 ports.
            manager = PortManager(cast(Any, board), cast(Any, _Connection(client)))

            def answer() -> None:
                with suppress(OSError):
                    while not over.is_set():
                        if data := board.read(board.in_waiting or 1):
                            client.sendall(b"".join(manager.escape(data)))

            back = threading.Thread(target=answer)
            back.start()
            try:
                while data := client.recv(4096):
                    board.write(b"".join(manager.filter(data)))
            finally:
                over.set()
                back.join()

    return Server(serve)

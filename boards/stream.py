"""Bytes to and from a device: a socket, a serial port, or a program's standard streams."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import serial
from typing_extensions import override

from smelt.errors import DeviceError
from smelt.files import temporary_folder

_CHUNK = 65536
_LAST_SECONDS = 2.0  # for a program to end by itself


class Stream(Protocol):
    """A connection to a device; every method raises DeviceError once the other side hung up."""

    def send(self, data: bytes) -> None:
        """Hand over all of `data`."""
        ...

    def receive(self, timeout_s: float) -> bytes:
        """What has come, at least one byte; empty after `timeout_s` seconds of silence."""
        ...

    def close(self) -> None:
        """End the connection; may be called twice."""
        ...


class SocketStream(Stream):
    """A TCP connection to a simulator's UART."""

    def __init__(
        self, url: str, explain: Callable[[], str] = lambda: "the connection ended"
    ) -> None:
        """Connect to `socket://HOST:PORT`; `explain` says what became of the other side.

        Raises:
            DeviceError: nobody listens there.
        """
        self._explain = explain
        address = urlsplit(url)
        try:
            self._socket = socket.create_connection((address.hostname, address.port), timeout=10)
        except OSError as error:
            raise DeviceError(f"cannot connect to {url}: {error}; {explain()}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @override
    def send(self, data: bytes) -> None:
        self._socket.settimeout(60)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise DeviceError(self._explain()) from error

    @override
    def receive(self, timeout_s: float) -> bytes:
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            data = self._socket.recv(_CHUNK)
        except TimeoutError:
            return b""
        except OSError as error:
            raise DeviceError(self._explain()) from error
        if not data:
            raise DeviceError(self._explain())
        return data

    @override
    def close(self) -> None:
        self._socket.close()


class SerialStream(Stream):
    """A serial port, 8N1.

    pyserial promises no more of a port than that it raises something: its own errors, and those of
    the system, of Python or of a server that knows no setting of this kind.
    """

    def __init__(self, port: str, baud: int) -> None:
        """Open `port`: a device's name, or a URL that pyserial knows.

        Raises:
            DeviceError: there is no such port, or it may not be used, or is in use.
        """
        # It writes to a server of RFC 2217 without a time limit, or not at all.
        limit = None if port.lower().startswith("rfc2217:") else 60
        try:
            self._serial = serial.serial_for_url(
                port, baudrate=baud, timeout=0, write_timeout=limit, exclusive=True
            )
        except Exception as error:
            said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise DeviceError(f"cannot open port {port}: {said}{_hint(said)}") from error
        self._port = port

    @override
    def send(self, data: bytes) -> None:
        try:
            self._serial.write(data)
        except Exception as error:
            raise DeviceError(f"serial port {self._port}: {error}") from error

    @override
    def receive(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                data = self._serial.read(_CHUNK)
                if data or time.monotonic() > deadline:
                    return bytes(data)
                time.sleep(0.001)
        except Exception as error:
            raise DeviceError(f"serial port {self._port}: {error}") from error

    @override
    def close(self) -> None:
        with suppress(OSError):  # a port that is gone may say so once more
            self._serial.close()


def _hint(said: str) -> str:
    """What may be wrong where a port cannot be opened."""
    if "lock" in said or "busy" in said.lower() or "PermissionError(13" in said:
        return "; another program has it open (a terminal, perhaps, or a second smelt): end that"
    if "Permission denied" in said:
        return "; you may not use it: `sudo usermod -aG dialout $USER`, and log in again"
    return ""


class ProcessStream(Stream):
    """The standard streams of a program on this computer."""

    def __init__(self, program: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start `program`, with more variables in its environment.

        Raises:
            DeviceError: it cannot be executed.
            ConfigError: there is nowhere to keep what it says.
        """
        self._name = program.name
        self._came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._folder = temporary_folder()
        try:
            # A pipe that nobody reads would stop it.
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(
                    [program.resolve()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    bufsize=0,
                    env=None if not environment else {**os.environ, **environment},
                )
        except OSError as error:
            self._forget_errors()
            raise DeviceError(f"{program} cannot be executed: {error.strerror}") from error
        # Not every system can wait for a pipe with a time limit; a thread can wait for it.
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        data = b" "
        while data:
            data = os.read(self._process.stdout.fileno(), _CHUNK)
            self._came.put(data)

    @override
    def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._process.stdin.write(rest) :]
        except (OSError, ValueError) as error:  # it ended, or was closed meanwhile
            raise DeviceError(self._explain()) from error

    @override
    def receive(self, timeout_s: float) -> bytes:
        try:
            data = self._came.get(timeout=max(timeout_s, 0))
        except queue.Empty:
            return b""
        if not data:
            self._came.put(data)
            raise DeviceError(self._explain())
        return data

    @override
    def close(self) -> None:
        # At the end of its input the program ends, or else it is killed.
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # what was not sent yet has nowhere to go
            self._process.stdin.close()
        # An accelerator's driver writes to its cache until the program closes the device.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_SECONDS)
        self._process.kill()
        self._process.wait()
        self._listener.join(_LAST_SECONDS)
        if not self._listener.is_alive():  # no child of the program still holds the other end
            self._process.stdout.close()
        self._forget_errors()

    @property
    def _errors(self) -> Path:
        """Where the program's standard error goes."""
        if self._folder is None:
            raise FileNotFoundError("the stream was closed")
        return Path(self._folder.name) / "stderr"

    def _forget_errors(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _explain(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_SECONDS)
        status = self._process.returncode
        ending = "closed its input or output, and goes on"
        if status is not None:
            ending = f"ended with signal {-status}" if status < 0 else f"ended with status {status}"
        text = self._said()
        return f"{self._name} {ending}" + (f":\n{text}" if text else "")

    def _said(self) -> str:
        """The end of what it said."""
        try:
            with self._errors.open("rb") as errors:
                errors.seek(max(errors.seek(0, os.SEEK_END) - _CHUNK, 0))
                return errors.read(_CHUNK).decode(errors="replace").strip()
        except OSError:
            return ""

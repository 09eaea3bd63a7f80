"""Byte streams to and from a device: a socket, a serial port, or a program's standard streams."""

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
    """A connection to a device; its methods raise a DeviceError once the other side closed it."""

    def send(self, data: bytes) -> None:
        """Send all of `data`."""
        ...

    def receive(self, timeout_s: float) -> bytes:
        """Return received bytes, at least one, or none after `timeout_s` seconds of silence."""
        ...

    def close(self) -> None:
        """Close the connection; may be called more than once."""
        ...


class SocketStream(Stream):
    """A TCP connection to a simulator's UART."""

    def __init__(
        self, url: str, explain: Callable[[], str] = lambda: "the connection ended"
    ) -> None:
        """Connect to `socket://HOST:PORT`; `explain` returns why the other side disconnected.

        Raises:
            DeviceError: nothing listens there.
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

    pyserial's methods raise various exceptions: its own, those of the operating system or Python,
    and those of RFC 2217 servers that do not support a setting. So all exceptions are caught.
    """

    def __init__(self, port: str, baud: int) -> None:
        """Open `port`: the name of a serial port, or a URL that pyserial supports.

        Raises:
            DeviceError: there is no such port, or the user may not use it, or it is in use.
        """
        # With a timeout, pyserial cannot write to an RFC 2217 server.
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
        with suppress(OSError):  # the port may have been unplugged
            self._serial.close()


def _hint(said: str) -> str:
    """Return a hint on why a port cannot be opened, or an empty text."""
    if "lock" in said or "busy" in said.lower() or "PermissionError(13" in said:
        return "; another program uses it (perhaps a terminal, or another smelt): end that program"
    if "Permission denied" in said:
        return "; you lack permission: run `sudo usermod -aG dialout $USER` and log in again"
    return ""


class ProcessStream(Stream):
    """The standard streams of a program on this computer."""

    def __init__(self, program: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start `program`, with additional environment variables.

        Raises:
            DeviceError: it cannot be executed.
            ConfigError: there is no folder for temporary files.
        """
        self._name = program.name
        self._came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._folder = temporary_folder()
        try:
            # A file, not a pipe: nobody reads it, so a full pipe would block the program.
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
        # Windows cannot wait for a pipe with a timeout, so a thread reads it.
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
        except (OSError, ValueError) as error:  # the program ended, or the stream was closed
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
        # The program ends at the end of its input. If it does not, it is killed below.
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # unsent data is lost
            self._process.stdin.close()
        # Wait: an accelerator's driver writes its cache when the program closes the device.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_SECONDS)
        self._process.kill()
        self._process.wait()
        self._listener.join(_LAST_SECONDS)
        if not self._listener.is_alive():  # no child of the program has the pipe open
            self._process.stdout.close()
        self._forget_errors()

    @property
    def _errors(self) -> Path:
        """Return the file for the program's standard error."""
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
        ending = "closed its input or output but is still running"
        if status is not None:
            ending = f"ended with signal {-status}" if status < 0 else f"ended with status {status}"
        text = self._error_output()
        return f"{self._name} {ending}" + (f":\n{text}" if text else "")

    def _error_output(self) -> str:
        """Return the end of its standard error."""
        try:
            with self._errors.open("rb") as errors:
                errors.seek(max(errors.seek(0, os.SEEK_END) - _CHUNK, 0))
                return errors.read(_CHUNK).decode(errors="replace").strip()
        except OSError:
            return ""

"""Transfer of data over a serial line in chunks. If chunks are lost, the next ones are smaller."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar
from zlib import crc32

from smelt.boards.transport import Line, Lost, words

T = TypeVar("T")

_MOST, _LEAST = 4096, 32
"""Largest and smallest chunk in bytes. A lost chunk halves the size, a received one doubles it.

A chunk takes at most about a second on the line, so that a slow line is not mistaken for silence.
"""


class Chunks:
    """Writes inputs to a device and reads its outputs, in chunks."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._most = self._piece_bytes = min(_MOST, max(_LEAST, int(line.bytes_per_s)))

    def load(self, index: int, data: bytes, failure: str) -> None:
        """Write input `index`. Raise a `DeviceError` with the message `failure` if that fails."""
        offset = 0
        while offset < len(data):
            attempt = partial(self._load_piece, index, offset, data)
            offset += self._with_retries(attempt, failure)

    def _load_piece(self, index: int, offset: int, data: bytes, most: int) -> int:
        """Write a chunk of an input from `offset` on, and return its size in bytes."""
        piece = data[offset : offset + most]
        command = f"smelt load {index} {offset} {len(piece)} {crc32(piece):08x}"
        self._line.owed = len(piece)
        self._line.send(f"{command} {crc32(command.encode('ascii')):08x}")
        self._line.echo("m-load-[", index, offset, len(piece))
        self._line.send_bytes(piece)
        self._line.expect("m-load-done")
        self._line.owed = 0
        self._line.expect("m-ready")
        return len(piece)

    def fetch(self, what: str, index: int, size: int, network: str, failure: str) -> bytes:
        """Read an output, or the data that waits after a step.

        Args:
            what: keyword of the command.
            index: index of the output, or number of the step.
            size: size in bytes.
            network: hash of the network that must have computed the data.
            failure: message of the `DeviceError` if the data cannot be read.
        """
        data = bytearray()
        while len(data) < size:
            attempt = partial(self._fetch_piece, what, index, len(data), size, network)
            data += self._with_retries(attempt, failure)
        return bytes(data)

    def _fetch_piece(
        self, what: str, index: int, offset: int, size: int, network: str, most: int
    ) -> bytes:
        count = min(most, size - offset)
        self._line.send(f"smelt {what} {index} {offset} {count}")
        crc, computed_by = words(self._line.expect("m-raw-["), (index, offset, count), 2)
        piece = self._line.read(count)
        self._line.expect("m-ready")
        if f"{crc32(piece):08x}" != crc:
            raise Lost("wrong CRC")
        if computed_by != network:
            raise Lost(f"the data is from network {computed_by}")
        return piece

    def _with_retries(self, attempt: Callable[[int], T], failure: str) -> T:
        """Call `attempt` with a chunk size until it succeeds, and return its result."""

        def sized() -> T:
            size = self._piece_bytes
            self._piece_bytes = max(_LEAST, size // 2)  # restored below if the attempt succeeds
            found = attempt(size)
            self._piece_bytes = min(self._most, 2 * size)
            return found

        return self._line.retry(sized, failure)

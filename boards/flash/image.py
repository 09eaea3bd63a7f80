"""Memory image of an ELF, and the file formats that carry it to a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from smelt.errors import ToolError

ERASED = 0xFF
"""Value of an erased byte of flash; used to fill gaps between segments."""

_GAP = 1 << 20
_HEX_LINE = 16


@dataclass(frozen=True)
class Segment:
    """Bytes and the address that they are stored at."""

    address: int
    data: bytes

    @property
    def end(self) -> int:
        """Return the address after the last byte."""
        return self.address + len(self.data)


@dataclass(frozen=True)
class Image:
    """Non-empty, non-overlapping segments, sorted by address."""

    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, elf: Path) -> Image:
        """Read the loadable segments of an ELF, at their load addresses.

        Raises:
            ToolError: the ELF cannot be read, or has nothing to load.
        """
        try:
            with elf.open("rb") as file:
                found = [
                    Segment(int(segment["p_paddr"]), bytes(segment.data()))
                    for segment in ELFFile(file).iter_segments("PT_LOAD")
                    if segment["p_filesz"]
                ]
        except (ELFError, OSError) as error:
            raise ToolError(f"{elf} cannot be read as an ELF: {error}") from error
        if not found:
            raise ToolError(f"{elf} has no segment to load: is it a library?")
        found.sort(key=lambda segment: segment.address)
        for before, after in pairwise(found):
            if before.end > after.address:
                raise ToolError(f"{elf}: two segments overlap at {after.address:#010x}")
        return cls(tuple(found))

    @property
    def address(self) -> int:
        """Return the address of the first byte."""
        return self.segments[0].address

    def binary(self) -> bytes:
        """Return all bytes from the first to the last, with gaps filled as erased flash.

        Raises:
            ToolError: a gap is so large that the segments must be in different memories.
        """
        image = bytearray()
        for segment in self.segments:
            gap = segment.address - self.address - len(image)
            if gap > _GAP:
                raise ToolError(
                    f"a flat binary cannot contain segments {gap:,} bytes apart (the second is at "
                    f"{segment.address:#010x}): choose a runner that reads ELF, HEX or UF2"
                )
            image += bytes([ERASED]) * gap + segment.data
        return bytes(image)

    def intel_hex(self) -> bytes:
        """Return the image in Intel's HEX format (1988), with extended linear addresses."""
        return "".join(f"{line}\n" for line in self._hex_lines()).encode()

    def _hex_lines(self) -> Iterator[str]:
        upper = 0
        for segment in self.segments:
            address = segment.address
            while address < segment.end:
                # A line has only the lower half of its address, so it must not cross 64 KB.
                size = min(_HEX_LINE - address % _HEX_LINE, segment.end - address)
                if address >> 16 != upper:
                    upper = address >> 16
                    yield _record(4, 0, upper.to_bytes(2, "big"))
                start = address - segment.address
                yield _record(0, address & 0xFFFF, segment.data[start : start + size])
                address += size
        yield _record(1, 0, b"")


def _record(kind: int, address: int, data: bytes) -> str:
    body = bytes([len(data)]) + address.to_bytes(2, "big") + bytes([kind]) + data
    return f":{(body + bytes([-sum(body) & 0xFF])).hex().upper()}"

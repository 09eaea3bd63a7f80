"""UF2, Microsoft's USB flashing format: https://github.com/microsoft/uf2."""

from __future__ import annotations

import struct

from smelt.boards.flash.image import ERASED, Image

PAYLOAD = 256
"""Bytes of payload in a block; its address is a multiple of this."""

_SECTOR = 4096
_FIRST_MAGIC = 0x0A324655
_SECOND_MAGIC = 0x9E5D5157
_LAST_MAGIC = 0x0AB16F30
_HAS_FAMILY = 0x2000
_BLOCK = struct.Struct("<8I476sI")


def uf2(image: Image, family: int) -> bytes:
    """Return an image in UF2 format: a block of 512 bytes for each 256 bytes of payload.

    Each sector of flash that contains data is written completely, up to the image's last block. The
    RP2040's boot loader may otherwise corrupt a sector that is written in part and is not the last
    one (RP2040 datasheet, erratum RP2040-E14).

    Args:
        image: the image.
        family: UF2 family id of the chip.
    """
    pages = _pages(image)
    return b"".join(
        _BLOCK.pack(
            _FIRST_MAGIC,
            _SECOND_MAGIC,
            _HAS_FAMILY,
            address,
            PAYLOAD,
            number,
            len(pages),
            family,
            bytes(pages[address]),
            _LAST_MAGIC,
        )
        for number, address in enumerate(sorted(pages))
    )


def _pages(image: Image) -> dict[int, bytearray]:
    """Return the payloads by address."""
    pages: dict[int, bytearray] = {}
    for segment in image.segments:
        for start in range(segment.address // PAYLOAD * PAYLOAD, segment.end, PAYLOAD):
            page = pages.setdefault(start, bytearray([ERASED]) * PAYLOAD)
            first, last = max(start, segment.address), min(start + PAYLOAD, segment.end)
            page[first - start : last - start] = segment.data[
                first - segment.address : last - segment.address
            ]
    end = max(pages)
    for sector in {address // _SECTOR * _SECTOR for address in pages}:
        for start in range(sector, min(sector + _SECTOR, end), PAYLOAD):
            pages.setdefault(start, bytearray([ERASED]) * PAYLOAD)
    return pages

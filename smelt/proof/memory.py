"""Compares constants and code, as they lie in a device's memory, with what was compiled and built.

Outputs of a few samples do not tell of every weight: a bit that is wrong in one may change none of
them. So every byte is compared, in two steps. (1) The arrays of the firmware that was built are
those that the network was compiled to, so that no file was changed before the C compiler read it.
(2) The device's memory is the firmware that was built, by the CRCs that the device computes of it,
so that nothing was lost or changed on the way there, or since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt.boards import Device, ElfInfo
from smelt.boards.firmware_bytes import Contents, first_altered
from smelt.codegen.emit.network import stored_arrays
from smelt.errors import VerifyError
from smelt.ir import Array

if TYPE_CHECKING:
    from smelt.api.artefact import Artefact

MemoryProgress = Callable[[int, int], None]
"""Called with the bytes compared so far, and those to compare in all."""


@dataclass(frozen=True)
class ComparedMemory:
    """What was compared, and found to be the same.

    Attributes:
        bytes: of the device's memory; 0 where it was not compared.
        arrays: of the network in the firmware that was built.
        why_not: why the device's memory was not compared, in a sentence; empty where it was.
    """

    bytes: int
    arrays: int
    why_not: str = ""

    def __str__(self) -> str:
        if self.why_not:
            return self.why_not
        return f"{self.bytes:,} bytes of code and constants as built"


def compare_memory(
    artefact: Artefact,
    elf: ElfInfo,
    device: Device,
    *,
    loaded: bool,
    any_build: bool = False,
    progress: MemoryProgress | None = None,
) -> ComparedMemory:
    """Compare the arrays of a firmware with the network, and a device's memory with the firmware.

    Args:
        artefact: the compiled network.
        elf: the firmware that was built of it.
        device: that runs a firmware of this network.
        loaded: whether that was loaded just now, and must be `elf`.
        any_build: whether one that was not may be another build, whose memory is not compared.
        progress: called after every piece.

    Raises:
        VerifyError: something differs; the message names the array or function.
        DeviceError: the line is too bad.
    """
    arrays = stored_arrays(artefact.network, artefact.schedule)
    count = _check_arrays(arrays, elf.contents)
    missing = elf.contents.missing(device.info.regions)
    if missing is not None and loaded:
        raise VerifyError(
            f"the device's memory is not what was built: section '{missing.name}' of the firmware, "
            f"{len(missing.data):,} bytes at {missing.address:#010x}, is in none of the regions "
            "that the device tells of"
        )
    if missing is not None and not any_build:
        raise VerifyError(
            "the memory that the device tells of is not that of this build: it runs firmware of "
            "another build (other compiler, other options), or it is damaged. Flash it again with "
            "`smelt deploy` or `smelt flash`; or give --any-build where another build is meant, "
            "whose memory is not compared"
        )
    if missing is not None:
        return ComparedMemory(
            0,
            count,
            "the device's memory was not compared (--any-build): what it tells of is not that of "
            "this build",
        )
    altered = first_altered(device, elf.contents, progress or (lambda _done, _total: None))
    if altered is not None:
        comment = artefact.schedule.constant_comments.get(altered.symbol)
        of = "" if comment is None else f" '{altered.symbol}' is: {comment}."
        remedy = "" if loaded else " Build and flash the firmware again."
        raise VerifyError(f"the device's memory is not what was built: {altered}.{of}{remedy}")
    return ComparedMemory(sum(len(s.data) for s in elf.contents.sections if s.fixed), count)


def _check_arrays(arrays: Mapping[str, Array], contents: Contents) -> int:
    """How many of the network's arrays the firmware has; what nothing refers to is left out."""
    count = 0
    for name, array in arrays.items():
        found = contents.array(name)
        if found is None:
            continue
        order = "<" if contents.little_endian else ">"
        expected = array.astype(array.dtype.newbyteorder(order), copy=False).tobytes()
        if found != expected:
            raise VerifyError(
                f"array '{name}' of the firmware that was built is not what the network was "
                f"compiled to: {_difference(expected, found, array.itemsize)}"
            )
        count += 1
    return count


def _difference(expected: bytes, found: bytes, size: int) -> str:
    if len(expected) != len(found):
        return f"it has {len(found):,} bytes, not {len(expected):,}"
    kind = np.dtype((np.void, size))
    wrong = np.flatnonzero(np.frombuffer(expected, kind) != np.frombuffer(found, kind))
    first = int(wrong[0])
    want, have = (data[first * size : (first + 1) * size].hex() for data in (expected, found))
    total = len(expected) // size
    return (
        f"{len(wrong):,} of {total:,} elements differ; the first is element {first:,}, "
        f"bytes {have} in place of {want}"
    )

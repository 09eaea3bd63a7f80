"""Comparison of a device's code and constants with the build, and of the build with the network.

Outputs of a few samples do not check every weight, because a flipped bit may change none of them.
So every byte is compared, in two steps:

1. The arrays in the ELF equal those of the compiled network. This finds files that were changed
   before the C compiler read them.
2. The device's memory equals the ELF, by CRCs that the device computes. This finds bytes that were
   lost or changed while flashing, or later.
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
    from smelt.api.artifact import Artifact

MemoryProgress = Callable[[int, int], None]
"""Called with the number of bytes compared so far, and the total."""


@dataclass(frozen=True)
class ComparedMemory:
    """Amount of memory that was compared and found equal.

    Attributes:
        bytes: bytes of the device's memory; 0 if it was not compared.
        arrays: number of the network's arrays found in the ELF.
        why_not: why the device's memory was not compared, in a sentence; empty if it was.
    """

    bytes: int
    arrays: int
    why_not: str = ""

    def __str__(self) -> str:
        if self.why_not:
            return self.why_not
        return f"{self.bytes:,} bytes of code and constants equal the build"


def compare_memory(
    artifact: Artifact,
    elf: ElfInfo,
    device: Device,
    *,
    loaded: bool,
    any_build: bool = False,
    progress: MemoryProgress | None = None,
) -> ComparedMemory:
    """Compare the arrays in an ELF with the network, and a device's memory with the ELF.

    Args:
        artifact: the compiled network.
        elf: firmware built from the network.
        device: device that runs firmware of this network.
        loaded: whether `elf` was just loaded onto the device.
        any_build: whether firmware that was flashed earlier may be another build; its memory is
            then not compared.
        progress: called after each chunk.

    Raises:
        VerifyError: something differs; the message names the array or function.
        DeviceError: the serial line fails too often.
    """
    arrays = stored_arrays(artifact.network, artifact.schedule)
    count = _check_arrays(arrays, elf.contents)
    missing = elf.contents.missing(device.info.regions)
    if missing is not None and loaded:
        raise VerifyError(
            f"the device's memory differs from the build: section '{missing.name}' of the firmware "
            f"({len(missing.data):,} bytes at {missing.address:#010x}) is outside the regions that "
            "the device reports"
        )
    if missing is not None and not any_build:
        raise VerifyError(
            "the device reports other memory regions than this build has: it runs another build "
            "(other compiler or options), or it is damaged. Flash it again with `smelt deploy` or "
            "`smelt flash`, or use --any-build to accept another build and skip the comparison of "
            "memory"
        )
    if missing is not None:
        return ComparedMemory(
            0,
            count,
            "the device's memory was not compared (--any-build): it reports other regions than "
            "this build has",
        )
    altered = first_altered(device, elf.contents, progress or (lambda _done, _total: None))
    if altered is not None:
        comment = artifact.schedule.constant_comments.get(altered.symbol)
        meaning = "" if comment is None else f" '{altered.symbol}' is: {comment}."
        remedy = "" if loaded else " Build and flash the firmware again."
        raise VerifyError(
            f"the device's memory differs from the build: {altered}.{meaning}{remedy}"
        )
    return ComparedMemory(sum(len(s.data) for s in elf.contents.sections if s.fixed), count)


def _check_arrays(arrays: Mapping[str, Array], contents: Contents) -> int:
    """Check the network's arrays in the ELF; return their number.

    The linker drops unused arrays.
    """
    count = 0
    for name, array in arrays.items():
        found = contents.array(name)
        if found is None:
            continue
        order = "<" if contents.little_endian else ">"
        expected = array.astype(array.dtype.newbyteorder(order), copy=False).tobytes()
        if found != expected:
            raise VerifyError(
                f"array '{name}' in the firmware differs from the compiled network: "
                f"{_difference(expected, found, array.itemsize)}"
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
        f"bytes {have} instead of {want}"
    )

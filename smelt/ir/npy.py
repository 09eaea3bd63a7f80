"""Arrays out of `.npy` and zip files that anyone may have made.

numpy and zipfile believe what headers say, and reserve memory for it. Here a file is read only if
what it says of itself fits its own size.
"""

from __future__ import annotations

import io
import zipfile
from math import prod

import numpy as np

from smelt.ir.types import Array

MAX_INFLATED = 256 << 20
"""Bytes that the compressed members of an archive may have together: what a small file may make of
a large memory."""
_LARGEST = 1 << 48  # of a dimension


def require_honest(archive: zipfile.ZipFile) -> None:
    """Demand an archive whose members are no larger than its size lets expect.

    Raises:
        ValueError: with the member that is not, and why.
    """
    infos, end = archive.infolist(), archive.start_dir
    for info in infos:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(
                f"member '{info.filename}' is compressed by method {info.compress_type}, not by "
                "deflation, as numpy does"
            )
        within = 0 <= info.header_offset <= end - info.compress_size
        stored = info.compress_type == zipfile.ZIP_STORED
        if not within or (stored and info.file_size != info.compress_size):
            raise ValueError(f"member '{info.filename}' says to be larger than the file")
    if sum(info.compress_size for info in infos) > end:
        raise ValueError("its members say to be larger than the file together")
    inflated = sum(i.file_size for i in infos if i.compress_type != zipfile.ZIP_STORED)
    if inflated > MAX_INFLATED:
        raise ValueError(
            f"its compressed members have {inflated} bytes, more than the {MAX_INFLATED} accepted: "
            "store them without compression"
        )


def read_array(data: bytes, name: str) -> Array:
    """The array of an `.npy` file, which must be exactly as long as its header says.

    Raises:
        ValueError: it is not, or it holds Python objects.
    """
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0}
        readers[2, 0] = np.lib.format.read_array_header_2_0
        shape, fortran, dtype = readers[version](stream)
    except Exception as error:  # the header is an expression of Python's: any error may come
        raise ValueError(f"'{name}' has no readable header of the .npy format: {error}") from error
    size = len(data) - stream.tell()
    fits = all(0 <= n < _LARGEST for n in shape) and prod(shape) * dtype.itemsize == size
    if dtype.hasobject or not dtype.itemsize or not fits:
        raise ValueError(f"'{name}' holds {size} bytes for {dtype}{list(shape)}")
    array = np.frombuffer(data, dtype, offset=stream.tell())
    return array.reshape(shape, order="F" if fortran else "C")

"""Reads arrays from `.npy` and zip files that are not trusted.

numpy and zipfile allocate as much memory as a file's headers claim. This module reads a file only
if the sizes in its headers fit the size of the file.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from math import prod

import numpy as np

from smelt.ir.types import Array

MAX_INFLATED = 256 << 20
"""Largest accepted total size of the compressed members of an archive, in bytes when expanded. A
small file could expand to any size."""
DAMAGED_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
"""Exceptions that zipfile raises for a damaged archive: RuntimeError for an encrypted member,
NotImplementedError for a format version that it does not read."""
_LARGEST = 1 << 48  # largest accepted dimension


def require_valid_sizes(archive: zipfile.ZipFile) -> None:
    """Check that an archive's members fit in the file and expand to at most `MAX_INFLATED` bytes.

    Raises:
        ValueError: they do not; the message names the member and the reason.
    """
    infos, end = archive.infolist(), archive.start_dir
    for info in infos:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(
                f"member '{info.filename}' uses compression method {info.compress_type}; only "
                "stored and deflated members are read"
            )
        within = 0 <= info.header_offset <= end - info.compress_size
        stored = info.compress_type == zipfile.ZIP_STORED
        if not within or (stored and info.file_size != info.compress_size):
            raise ValueError(f"member '{info.filename}' claims more bytes than the file has")
    if sum(info.compress_size for info in infos) > end:
        raise ValueError("its members together claim more bytes than the file has")
    inflated = sum(i.file_size for i in infos if i.compress_type != zipfile.ZIP_STORED)
    if inflated > MAX_INFLATED:
        raise ValueError(
            f"its compressed members expand to {inflated} bytes, more than the {MAX_INFLATED} "
            "accepted: store them without compression"
        )


def read_array(data: bytes, name: str) -> Array:
    """Return the array of an `.npy` file, which must be exactly as long as its header says.

    Raises:
        ValueError: its length differs, its header is damaged, or it has pickled Python objects.
    """
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0}
        readers[2, 0] = np.lib.format.read_array_header_2_0
        shape, fortran, dtype = readers[version](stream)
    except Exception as error:  # numpy evaluates the header as Python: any error may be raised
        raise ValueError(f"'{name}' has no readable .npy header: {error}") from error
    size = len(data) - stream.tell()
    fits = all(0 <= n < _LARGEST for n in shape) and prod(shape) * dtype.itemsize == size
    if dtype.hasobject:
        raise ValueError(
            f"'{name}' contains pickled Python objects, which are not read because they may "
            "execute code; save arrays of numbers"
        )
    if not dtype.itemsize or not fits:
        raise ValueError(
            f"'{name}' has {size} bytes of data, which do not fit its header: {dtype}{list(shape)}"
        )
    array = np.frombuffer(data, dtype, offset=stream.tell())
    return array.reshape(shape, order="F" if fortran else "C")

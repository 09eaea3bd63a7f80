"""Arrays out of `.npy` and zip files that anyone may have made.

numpy and zipfile believe what headers say, and reserve memory for it. This module reads a file only
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
"""Bytes that the compressed members of an archive may expand to together, since a small file can
expand to any size."""
DAMAGED_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
"""What zipfile raises on a damaged archive: RuntimeError for an encrypted member, and
NotImplementedError for a version of the format that it does not read."""
_LARGEST = 1 << 48  # of a dimension


def require_honest(archive: zipfile.ZipFile) -> None:
    """Check that an archive's members fit into it, and do not expand to more than `MAX_INFLATED`.

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
            raise ValueError(f"member '{info.filename}' claims more bytes than the file has")
    if sum(info.compress_size for info in infos) > end:
        raise ValueError("its members together claim more bytes than the file has")
    inflated = sum(i.file_size for i in infos if i.compress_type != zipfile.ZIP_STORED)
    if inflated > MAX_INFLATED:
        raise ValueError(
            f"its compressed members have {inflated} bytes, more than the {MAX_INFLATED} accepted: "
            "store them without compression"
        )


def read_array(data: bytes, name: str) -> Array:
    """The array of an `.npy` file, which must be exactly as long as its header says.

    Raises:
        ValueError: it is not, or it holds pickled Python objects.
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
    if dtype.hasobject:
        raise ValueError(
            f"'{name}' holds pickled Python objects, which are not read, since they may execute "
            "code; save arrays of numbers"
        )
    if not dtype.itemsize or not fits:
        raise ValueError(f"'{name}' holds {size} bytes for {dtype}{list(shape)}")
    array = np.frombuffer(data, dtype, offset=stream.tell())
    return array.reshape(shape, order="F" if fortran else "C")

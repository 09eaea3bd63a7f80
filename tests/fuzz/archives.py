"""Damage zip archives: their members, headers and contents."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from random import Random

import numpy as np

from tests.fuzz.raw import hostile_name, scratched

Inner = Callable[[str, bytes, Random], bytes]
"""Damages the content of a member, given its name, content and random numbers."""

_BOMB = bytes(1 << 20)
_END, _CENTRAL, _LOCAL = b"PK\x05\x06", b"PK\x01\x02", b"PK\x03\x04"


def members(data: bytes) -> list[tuple[str, bytes]] | None:
    """Return the names and contents of an archive's members; None if it cannot be read."""
    with suppress(Exception), zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]
    return None


def zipped(found: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return an archive of these members; two may have the same name."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore", UserWarning)  # warning about two members with the same name
        for name, data in found:
            info = zipfile.ZipInfo(name.replace("\0", "") or "_", (1980, 1, 1, 0, 0, 0))
            info.compress_type = method
            archive.writestr(info, data)
    return buffer.getvalue()


def damaged(data: bytes, rng: Random, inner: Inner) -> bytes:
    """Return an archive with one random damage."""
    found = members(data)
    if not found or rng.random() < 0.15:
        return scratched(data, rng)
    if rng.random() < 0.2:
        return _headers(data, rng)
    place = rng.randrange(len(found))
    name, contents = found[place]
    method = zipfile.ZIP_STORED
    match rng.randrange(10):
        case 0:
            del found[place]
        case 1:
            found.insert(rng.randrange(len(found) + 1), (name, inner(name, contents, rng)))
        case 2:
            found[place] = (rng.choice((hostile_name(rng), f"{name}x", name.upper())), contents)
        case 3:
            found.append((hostile_name(rng), contents))
        case 4:
            method = rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
        case 5 if rng.random() < 0.2:
            found[place] = (name, contents + _BOMB * rng.choice((1, 16, 80)))
            method = zipfile.ZIP_DEFLATED
        case _:
            found[place] = (name, inner(name, contents, rng))
    return zipped(found, method)


def _headers(data: bytes, rng: Random) -> bytes:
    """Change a header field: a size, offset, method, flag or checksum."""
    changed = bytearray(data)
    mark = rng.choice((_END, _CENTRAL, _CENTRAL, _LOCAL))
    places = [i for i in range(len(data) - 30) if data[i : i + 4] == mark]
    if not places:
        return scratched(data, rng)
    at = rng.choice(places) + rng.randrange(4, 46 if mark == _CENTRAL else 22, 2)
    size, form = rng.choice(((2, "<H"), (4, "<I")))
    word = rng.choice((0, 1, 8, 12, 14, 99, 2**16 - 1, 2**31, 2**32 - 1, len(data)))
    changed[at : at + size] = struct.pack(form, word % (1 << 8 * size))
    return bytes(changed)


# Arrays of numpy


def damaged_array(data: bytes, rng: Random) -> bytes:
    """Return an `.npy` file with a changed header or damaged data."""
    end = data.find(b"\n")
    if not data.startswith(b"\x93NUMPY") or end < 0 or rng.random() < 0.2:
        return scratched(data, rng)
    if rng.random() < 0.4:
        return array_file(rng)
    header, rest = data[10 : end + 1], data[end + 1 :]
    old, new = rng.choice(_HEADERS)
    changed = header.replace(old, new, 1)
    if changed == header:
        changed = header[:-1] + rng.choice((b" " * 70000, b"}", b"(" * 300, b"\\", b"#")) + b"\n"
    size = len(changed) if rng.random() < 0.8 else rng.choice((0, 1, 2**16 - 1))
    version = rng.choice((b"\1\0", b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\x09\x09"))
    length = struct.pack("<H" if version == b"\1\0" else "<I", min(size, 2**16 - 1))
    return b"\x93NUMPY" + version + length + changed + rest


_HEADERS = (
    *((b"False", b"True"), (b"(", b"(-1, "), (b"(", b"(9" + b"9" * 30 + b", "), (b"(", b"(0, ")),
    *((b"(", b"(2147483648, "), (b"(", b"(1e3, "), (b"(", b"('a', "), (b"(", b"((")),
    *((b"<f4", b"|O"), (b"<f4", b">f4"), (b"<f4", b"<c8"), (b"<f4", b"<M8[s]"), (b"<f4", b"|V0")),
    *((b"<f4", b"<U9"), (b"<f4", b"|S0"), (b"'<f4'", b"[('a', '<f4')]"), (b"<f4", b"<f2")),
    *((b"|i1", b"|O"), (b"|i1", b"<i8"), (b"|i1", b"<f8"), (b"|i1", b"|b1"), (b"|i1", b"|i999")),
    *((b"descr", b"desc"), (b"shape", b"shap"), (b"'", b'"'), (b"{", b"{1:2, "), (b"}", b", 7}")),
)


def array_file(rng: Random) -> bytes:
    """Return a valid file of a random array, whose type and shape may be wrong for its use."""
    shape = [rng.choice((0, 1, 1, 2, 3, 8, 100)) for _ in range(rng.randrange(6))]
    kind = rng.choice(("f4", "f8", "f2", "i1", "u1", "i4", "i8", "u8", "?", "c8", "S3", "U2", "M8"))
    number = rng.choice((0, 1, 5, 1e30, float("nan"), float("inf"), -(2**31)))
    array = np.zeros([min(size, 8) for size in shape] if len(shape) > 2 else shape, kind)
    with suppress(Exception), np.errstate(all="ignore"):
        array[...] = number
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return buffer.getvalue()

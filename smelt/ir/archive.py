"""The `.smelt` file: a zip with `graph.txt` (the text format) and `constants.npz` (the constants).

The constants are named by their digests. Members are stored without compression and with fixed
time stamps, so that the same graph gives the same bytes with every version of zlib.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex

import numpy as np

from smelt.errors import ConfigError, GraphError, ModelError
from smelt.ir.graph import Graph
from smelt.ir.npy import DAMAGED_ZIP, read_array, require_valid_sizes
from smelt.ir.text import parse_graph, print_graph
from smelt.ir.types import Array
from smelt.ir.verify import verify

MAX_TEXT = 64 << 20
MAX_CONSTANTS = 1 << 30
"""Largest accepted sizes of the members, in bytes. Without them, a small archive could fill the
memory when it is expanded."""

_TEXT, _CONSTANTS = "graph.txt", "constants.npz"
_ELEMENTS = tuple(
    np.dtype(name)
    for name in (
        *("bool", "int8", "uint8", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4"),
        "<f8",  # vectors of scales that float32 cannot represent
    )
)


def save(graph: Graph, path: Path) -> None:
    """Write a graph to `path`. If writing fails, an existing file stays as it was.

    Raises:
        ConfigError: the file cannot be written, or the graph is larger than `load` accepts.
    """
    store: dict[str, Array] = {}
    text = print_graph(graph, store).encode()
    constants = _zip({f"{key}.npy": _npy(store[key]) for key in sorted(store)})
    if len(text) > MAX_TEXT or len(constants) > MAX_CONSTANTS:
        raise ConfigError(
            f"'{graph.name}' has {len(text)} bytes of text and {len(constants)} bytes of "
            f"constants; a .smelt file may have at most {MAX_TEXT} and {MAX_CONSTANTS}"
        )
    part = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        with part.open("xb") as file:
            file.write(_zip({_TEXT: text, _CONSTANTS: constants}))
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def load(path: Path) -> Graph:
    """Read a graph from a `.smelt` file and verify it.

    Raises:
        ModelError: the file is missing, damaged or too large, or contains no valid graph.
        UnsupportedError: the graph uses an operator that neither Smelt nor a plugin defines.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            require_valid_sizes(archive)
            text = _member(archive, _TEXT, MAX_TEXT)
            constants = _member(archive, _CONSTANTS, MAX_CONSTANTS)
        graph = parse_graph(text.decode(), _arrays(constants))
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except DAMAGED_ZIP as error:
        raise ModelError(f"{path} is not a .smelt file, or is damaged: {error}") from error
    except (LookupError, ValueError) as error:
        raise ModelError(f"{path} is damaged: {error}") from error
    if not graph.outputs:
        raise ModelError(f"{path} contains no valid graph: it has no outputs")
    try:
        return verify(graph, "reading it")
    except (GraphError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{path} contains no valid graph: {error}") from error


def _zip(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system = 3  # Unix, on every machine
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def _npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array, order="C"), (1, 0), allow_pickle=False)
    return buffer.getvalue()


def _member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > limit:
        raise ModelError(f"{name} has {info.file_size} bytes; at most {limit} are accepted")
    return archive.read(info)


def _arrays(constants: bytes) -> dict[str, Array]:
    with zipfile.ZipFile(io.BytesIO(constants)) as archive:
        require_valid_sizes(archive)
        total = sum(info.file_size for info in archive.infolist())
        if total > MAX_CONSTANTS:
            raise ModelError(
                f"its constants have {total} bytes; at most {MAX_CONSTANTS} are accepted"
            )
        return {
            info.filename.removesuffix(".npy"): _array(archive.read(info), info.filename)
            for info in archive.infolist()
        }


def _array(data: bytes, name: str) -> Array:
    """Return the array of an `.npy` file; its element type must exist in the IR, its order be C."""
    array = read_array(data, name)
    if array.dtype not in _ELEMENTS or not array.flags.c_contiguous:
        raise ModelError(
            f"{name} contains an array {array.dtype}{list(array.shape)} of {array.nbytes} bytes, "
            "which is not in C order or has an element type that no graph has"
        )
    return array

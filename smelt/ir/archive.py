"""The `.smelt` file: a zip of `graph.txt`, the text form, and `constants.npz`, arrays by digest.

Nothing in it is compressed and its time stamps are fixed, so that the same graph gives the same
bytes whatever the version of zlib.
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
from smelt.ir.npy import DAMAGED_ZIP, read_array, require_honest
from smelt.ir.text import parse_graph, print_graph
from smelt.ir.types import Array
from smelt.ir.verify import verify

MAX_TEXT = 64 << 20
MAX_CONSTANTS = 1 << 30
"""Bytes, uncompressed, that a file may hold: what a small archive may make of a large memory."""

_TEXT, _CONSTANTS = "graph.txt", "constants.npz"
_ELEMENTS = tuple(
    np.dtype(name)
    for name in (
        *("bool", "int8", "uint8", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4"),
        "<f8",  # a vector of scales that are no float32 numbers
    )
)


def save(graph: Graph, path: Path) -> None:
    """Write a graph; the file appears whole or not at all.

    Raises:
        ConfigError: the file cannot be written, or the graph is larger than `load` accepts.
    """
    store: dict[str, Array] = {}
    text = print_graph(graph, store).encode()
    constants = _zip({f"{key}.npy": _npy(store[key]) for key in sorted(store)})
    if len(text) > MAX_TEXT or len(constants) > MAX_CONSTANTS:
        raise ConfigError(
            f"'{graph.name}' has {len(text)} bytes of text and {len(constants)} of constants; a "
            f".smelt file holds at most {MAX_TEXT} and {MAX_CONSTANTS}"
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
    """Read and verify a graph.

    Raises:
        ModelError: the file is missing, damaged, too large or holds no valid graph.
        UnsupportedError: it holds an operator that is unknown here.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            require_honest(archive)
            text = _member(archive, _TEXT, MAX_TEXT)
            constants = _member(archive, _CONSTANTS, MAX_CONSTANTS)
        graph = parse_graph(text.decode(), _arrays(constants))
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except DAMAGED_ZIP as error:
        raise ModelError(f"{path} is no .smelt file, or damaged: {error}") from error
    except (LookupError, ValueError) as error:
        raise ModelError(f"{path} is damaged: {error}") from error
    if not graph.outputs:
        raise ModelError(f"{path} holds no valid graph: it has no outputs")
    try:
        return verify(graph, "reading it")
    except (GraphError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{path} holds no valid graph: {error}") from error


def _zip(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system = 3  # Unix, whatever the machine
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
        raise ModelError(f"{name} has {info.file_size} bytes, more than the {limit} accepted")
    return archive.read(info)


def _arrays(constants: bytes) -> dict[str, Array]:
    with zipfile.ZipFile(io.BytesIO(constants)) as archive:
        require_honest(archive)
        total = sum(info.file_size for info in archive.infolist())
        if total > MAX_CONSTANTS:
            raise ModelError(f"constants of {total} bytes, more than the {MAX_CONSTANTS} accepted")
        return {
            info.filename.removesuffix(".npy"): _array(archive.read(info), info.filename)
            for info in archive.infolist()
        }


def _array(data: bytes, name: str) -> Array:
    """An array of an element type that graphs have, in rows."""
    array = read_array(data, name)
    if array.dtype not in _ELEMENTS or not array.flags.c_contiguous:
        raise ModelError(f"{name} holds {array.nbytes} bytes for {array.dtype}{list(array.shape)}")
    return array

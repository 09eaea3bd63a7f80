"""The frontends: a model file becomes a `Graph`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import tflite
from smelt.frontend.imported import Imported
from smelt.ir.archive import load as load_archive

__all__ = ["Imported", "load"]

_ZIP_MAGIC = b"PK\x03\x04"


def load(model: str | Path | bytes, name: str | None = None) -> Imported:
    """Read a network: a TFLite file, or a `.smelt` archive.

    Args:
        model: the path of the file, or the bytes of a TFLite file.
        name: name of the graph; by default that in a `.smelt` archive, otherwise the file's stem
            as a C identifier, or `network`.

    Raises:
        ModelError: the file is missing, truncated, corrupted, or of an unknown format.
        UnsupportedError: the network asks for something that Smelt cannot do.
    """
    path = None if isinstance(model, bytes) else Path(model)
    data = model if isinstance(model, bytes) else _read(Path(model))
    suffix = "" if path is None else path.suffix.lower()
    if data[4:8] == tflite.IDENTIFIER:
        stem = "network" if path is None else _identifier(path.stem)
        try:
            return tflite.load(data, name or stem)
        except (ModelError, UnsupportedError) as error:
            raise error if path is None else type(error)(f"{path}: {error}") from error
    if data[:4] == _ZIP_MAGIC and path is not None:
        graph = load_archive(path)
        return Imported(replace(graph, name=name or graph.name))
    if suffix == ".onnx":
        raise UnsupportedError(
            f"{path}: ONNX import is not available yet; convert the network to TFLite"
        )
    shown = "the model" if path is None else str(path)
    if suffix == ".tflite":
        raise ModelError(
            f"{shown}: not a TFLite file: bytes 4 to 8 are {data[4:8]!r} instead of "
            f"{tflite.IDENTIFIER!r}; the file is damaged or of another format"
        )
    raise ModelError(f"{shown}: neither a TFLite file nor a .smelt archive")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelError(f"{path}: cannot be read: {reason}") from error


def _identifier(stem: str) -> str:
    word = re.sub(r"\W", "_", stem, flags=re.ASCII)
    return word if word and not word[0].isdigit() else f"network_{word}"

"""Frontends, which read a model file into a `Graph`.

May import `ops` and `ir`; `api`, `proof`, `cli` and `bench` may import it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from smelt.argument_checks import as_path
from smelt.errors import ConfigError, ModelError, UnsupportedError
from smelt.frontend import onnx
from smelt.frontend.import_result import Imported
from smelt.frontend.onnx import InputOptions
from smelt.ir.archive import load as load_archive
from smelt.ir.budget import limited

__all__ = ["Imported", "InputOptions", "load"]

_TFLITE_IDENTIFIER = b"TFL3"
_LONGEST_MESSAGE = 4000
_ZIP_MAGIC = b"PK\x03\x04"


def load(
    model: str | Path | bytes, name: str | None = None, inputs: InputOptions | None = None
) -> Imported:
    """Read a network from a TFLite file, an ONNX file, or a `.smelt` archive.

    Args:
        model: the path of the file, or the bytes of a TFLite or ONNX file.
        name: name of the graph. By default, it is the name in a `.smelt` archive; for other files,
            it is the file name's stem as a C identifier, or `network` for bytes.
        inputs: options for what an ONNX file leaves open.

    Raises:
        ModelError: the file is missing, truncated, corrupted, or of an unknown format.
        UnsupportedError: the network needs something that Smelt does not support.
        ConfigError: `inputs` do not fit the network, or `model` is neither path nor bytes.
    """
    if isinstance(model, bytearray | memoryview):
        model = bytes(model)
    path, data = None, model
    if not isinstance(data, bytes):
        path = as_path(model, "the model", "the path of a model file, or its bytes")
        onnx.refuse_large(path)
        data = _read(path)
    stem = name or ("network" if path is None else _identifier(path.stem))
    try:
        with limited(len(data)):
            return _load(data, path, stem, name, inputs)
    except MemoryError as error:
        raise UnsupportedError(
            f"{path or 'the model'}: reading it needs more memory than this computer has: the "
            "network is too large for an embedded device, or the file is damaged"
        ) from error
    except (ModelError, UnsupportedError, ConfigError) as error:
        message = _shortened(str(error))
        if path is not None and not message.startswith(str(path)):
            message = f"{path}: {message}"
        if message == str(error):
            raise
        raise type(error)(message) from error


def _load(
    data: bytes, path: Path | None, stem: str, name: str | None, inputs: InputOptions | None
) -> Imported:
    suffix = "" if path is None else path.suffix.lower()
    if data[4:8] == _TFLITE_IDENTIFIER:
        # The package tflite takes long to import, so it is imported for TFLite files only.
        from smelt.frontend import tflite

        _refuse_options(inputs, "a TFLite file")
        return tflite.load(data, stem)
    if data[:4] == _ZIP_MAGIC and path is not None:
        _refuse_options(inputs, "a .smelt archive")
        graph = load_archive(path)
        return Imported(replace(graph, name=name or graph.name))
    if suffix == ".tflite":
        raise ModelError(
            f"not a TFLite file: bytes 4 to 8 are {data[4:8]!r} instead of "
            f"{_TFLITE_IDENTIFIER!r}; the file is damaged or of another format"
        )
    if suffix == ".onnx" or path is None:
        folder = None if path is None else path.parent
        return onnx.load(data, folder, stem, inputs or InputOptions())
    raise ModelError("not a TFLite file, an ONNX file (.onnx) or a .smelt archive")


def _shortened(message: str) -> str:
    """Remove the middle of a very long message, which repeats contents of the file."""
    if len(message) <= _LONGEST_MESSAGE:
        return message
    half = _LONGEST_MESSAGE // 2
    return f"{message[:half]} … {message[-half:]}"


def _refuse_options(inputs: InputOptions | None, what: str) -> None:
    if inputs is not None and replace(inputs, batch=None) != InputOptions():
        raise ConfigError(
            f"--dim, --shape, --value and --input-layout are for ONNX, not for {what}"
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelError(f"{path}: cannot be read: {reason}") from error


def _identifier(stem: str) -> str:
    word = re.sub(r"\W", "_", stem, flags=re.ASCII)
    return word if word[:1].isalpha() else f"network_{word.strip('_')}".rstrip("_")

"""ONNX frontend, for operator sets 7 to 28.

May import `frontend`, `ops` and `ir`; `frontend`, `api`, `cli` and `bench` may import it.
"""

from __future__ import annotations

from pathlib import Path

from smelt.errors import UnsupportedError
from smelt.frontend.import_result import Imported
from smelt.frontend.onnx.options import InputOptions

__all__ = ["LARGEST_FILE", "InputOptions", "load", "refuse_large"]

LARGEST_FILE = 2**31 - 1
"""Largest size of an ONNX file in bytes: protocol buffers cannot be larger."""


def load(data: bytes, folder: Path | None, name: str, options: InputOptions) -> Imported:
    """Read an ONNX file as a graph called `name`; `folder` is where its external data is.

    Raises:
        ModelError: the file is truncated or corrupted, or contradicts itself.
        UnsupportedError: the network needs something that Smelt does not support.
        ConfigError: `options` do not fit the network.
    """
    # The package onnx takes long to import, so it is imported for ONNX files only.
    from smelt.frontend.onnx.file import read
    from smelt.frontend.onnx.importer import load as load_graph

    return load_graph(read(data, folder), name, options)


def refuse_large(path: Path) -> None:
    """Raise `UnsupportedError` for a file above 2 GB, before it is read."""
    try:
        size = path.stat().st_size if path.is_file() else 0
    except OSError:
        return  # the error is reported when the file is read
    if size > LARGEST_FILE:
        raise UnsupportedError(
            f"{path} has {size:,} bytes: ONNX files above 2 GB cannot be read; a network of this "
            "size is too large for an embedded device"
        )

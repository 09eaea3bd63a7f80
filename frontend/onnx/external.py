"""Constants in files beside the model: checked and read once, when the model is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from smelt.errors import ModelError, UnsupportedError
from smelt.formatting import number
from smelt.frontend.onnx.checks import messages
from smelt.frontend.onnx.tensors import is_external, needed_bytes, type_name
from smelt.ir.budget import current

MOST_BYTES = 1 << 30
"""Largest total size of constants in other files, in bytes; as in a `.smelt` archive."""


@dataclass(frozen=True)
class _Piece:
    """The range of bytes in a file that a tensor is stored in."""

    file: Path
    offset: int
    size: int


def load_external(model: onnx.ModelProto, folder: Path | None) -> None:
    """Read the data of every external tensor, anywhere in the model, into the model.

    The data must be in regular files inside `folder`, after links are resolved. Otherwise a hostile
    model could copy other files of the user into the generated code.

    Args:
        model: changed in place; afterwards, none of its tensors refers to another file.
        folder: folder of the model's file; None if the model was given as bytes.

    Raises:
        ModelError: there is no folder, or a tensor's data is not in it.
        UnsupportedError: the tensors take more than `MOST_BYTES`.
    """
    found = list(_external(model))
    if not found:
        return
    if folder is None:
        raise ModelError(
            f"{_described(found[0])} is stored in another file, but a model given as bytes has no "
            "folder to find it in: give the path of the model"
        )
    pieces = [_piece(tensor, folder) for tensor in found]
    # Sum the sizes before reading, because many tensors may refer to the same bytes of a file.
    total = sum(piece.size for piece in pieces)
    if total > MOST_BYTES:
        raise UnsupportedError(
            f"the model's constants take {total:,} bytes of other files; Smelt reads at most "
            f"{MOST_BYTES:,}"
        )
    budget = current()
    if budget is not None:
        budget.grow(sum(piece.size for piece in set(pieces)))
    for tensor, piece in zip(found, pieces, strict=True):
        tensor.raw_data = _read(tensor, piece)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _external(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for message in messages(model):
        if isinstance(message, onnx.TensorProto) and is_external(message):
            yield message


def _described(tensor: onnx.TensorProto) -> str:
    return f"constant '{tensor.name}'" if tensor.name else "a constant without a name"


def _wrong(tensor: onnx.TensorProto, reason: str) -> ModelError:
    return ModelError(f"the external data of {_described(tensor)} cannot be read: {reason}")


def _piece(tensor: onnx.TensorProto, folder: Path) -> _Piece:
    """Return the range of bytes of a tensor: a given length from an offset, or all that follows."""
    said = {entry.key: entry.value for entry in tensor.external_data}
    file = _file(tensor, said.get("location", ""), folder)
    offset = _number(tensor, said, "offset") or 0
    length = _number(tensor, said, "length")
    descriptor = _open(tensor, file)
    try:
        has = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    size = max(has - offset, 0) if length is None else length
    if offset + size > has:
        raise _wrong(
            tensor,
            f"it should be bytes {offset} to {offset + size} of {file}, which has only {has}",
        )
    needed = needed_bytes(tensor)
    if size != needed:
        raise _wrong(
            tensor,
            f"its shape {list(tensor.dims)} of {type_name(tensor.data_type)} needs "
            f"{number(needed)} bytes, but the model refers to {size:,} bytes of {file} from byte "
            f"{offset:,}",
        )
    return _Piece(file, offset, size)


def _number(tensor: onnx.TensorProto, said: Mapping[str, str], key: str) -> int | None:
    text = said.get(key)
    if text is None:
        return None
    # More than 18 digits cannot be a file's size, and int() is slow for very many digits.
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise _wrong(tensor, f"its {key} is {text[:40]!r}, which is not a number of bytes")
    return int(text)


def _file(tensor: onnx.TensorProto, location: str, folder: Path) -> Path:
    """Return the path that a tensor refers to; it must be inside of the folder."""
    parts = (*PurePosixPath(location).parts, *PureWindowsPath(location).parts)
    if not parts or "\0" in location:
        raise _wrong(tensor, f"it refers to the invalid file name {location!r}")
    is_absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor
    if is_absolute or ".." in parts:
        raise _wrong(
            tensor, f"'{location}' is not inside of the model's folder: put the file beside it"
        )
    try:
        file = (folder / location).resolve()
        home = folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise _wrong(tensor, f"'{location}': {error}") from error
    if not file.is_relative_to(home):
        raise _wrong(
            tensor,
            f"'{location}' is a link to {file}, outside of the model's folder: copy the file there",
        )
    return file


def _open(tensor: onnx.TensorProto, file: Path) -> int:
    """Return a descriptor of a regular file; O_NONBLOCK avoids waiting for a pipe's writer."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(file, flags | getattr(os, "O_NOFOLLOW", 0))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise _wrong(tensor, f"{file}: {reason}") from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise _wrong(tensor, f"{file} is not a regular file")


def _read(tensor: onnx.TensorProto, piece: _Piece) -> bytes:
    with os.fdopen(_open(tensor, piece.file), "rb") as file:
        file.seek(piece.offset)
        data = file.read(piece.size)
    if len(data) != piece.size:
        raise _wrong(tensor, f"{piece.file} ends before byte {piece.offset + piece.size}")
    return data

"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from smelt.errors import ConfigError


def distinct(places: Mapping[str, Path | None]) -> None:
    """Make sure that no two options name the same file, which the later would replace.

    Raises:
        ConfigError: two do.
    """
    found: dict[Path, str] = {}
    for option, path in places.items():
        if path is None:
            continue
        other = found.setdefault(path.resolve(), option)
        if other != option:
            raise ConfigError(f"{other} and {option} '{path}' are one file: give each its own")


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder of our own that is gone at the end of the context.

    Raises:
        ConfigError: there is nowhere to make one.
    """
    try:
        return tempfile.TemporaryDirectory(prefix="smelt-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _nowhere(error) from error


@contextmanager
def lasting_folder() -> Generator[str]:
    """A folder of our own that stays, unless the context ends with an error.

    Raises:
        ConfigError: there is nowhere to make one.
    """
    try:
        folder = tempfile.mkdtemp(prefix="smelt-")
    except OSError as error:
        raise _nowhere(error) from error
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def require_place(path: Path) -> None:
    """Make sure that a file can be written, before the work whose result it is to hold.

    Raises:
        ConfigError: it cannot.
    """
    try:
        _require_no_folder(path)
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write files; none appears before all are written beside their places.

    Raises:
        ConfigError: one cannot be written.
    """
    staged: dict[Path, Path] = {}
    path = Path()
    try:
        for path, data in contents.items():
            _require_no_folder(path)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            staged[path] = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            # A temporary file is readable by its owner only.
            staged[path].chmod(0o644)
        for path, temporary in staged.items():
            temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def _require_no_folder(path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"cannot write '{path}': it is a folder")


def _nowhere(error: OSError) -> ConfigError:
    return ConfigError(
        f"no temporary folder can be made: {error}; set TMPDIR to a folder that can be written"
    )


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write '{path}': {error.strerror}")

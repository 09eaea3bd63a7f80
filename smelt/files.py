"""Files that are written completely or not at all, and temporary folders."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from smelt.errors import ConfigError


def distinct(places: Mapping[str, Path | None]) -> None:
    """Check that no two options name the same file, because the second would replace the first.

    Raises:
        ConfigError: two options name the same file.
    """
    found: dict[Path, str] = {}
    for option, path in places.items():
        if path is None:
            continue
        other = found.setdefault(path.resolve(), option)
        if other != option:
            raise ConfigError(f"{other} and {option} are the same file, '{path}': use two files")


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder that is deleted at the end of the context.

    Raises:
        ConfigError: no temporary folder can be created.
    """
    try:
        return tempfile.TemporaryDirectory(prefix="smelt-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _no_temporary_folder(error) from error


@contextmanager
def lasting_folder() -> Generator[str]:
    """Create a temporary folder, which is deleted only if the context ends with an error.

    Raises:
        ConfigError: no temporary folder can be created.
    """
    try:
        folder = tempfile.mkdtemp(prefix="smelt-")
    except OSError as error:
        raise _no_temporary_folder(error) from error
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def require_place(path: Path) -> None:
    """Check that a file can be written, before the work that computes its content.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        _require_no_folder(path)
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write files completely or not at all.

    All are first written to temporary files beside their places, which are then renamed.

    Raises:
        ConfigError: a file cannot be written.
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
            # mkstemp creates files that only their owner can read.
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


def _no_temporary_folder(error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot create a temporary folder: {error}; set TMPDIR to a writable folder"
    )


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write '{path}': {error.strerror}")

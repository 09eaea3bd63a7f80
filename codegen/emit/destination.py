"""The folder that a project is written to: which files are replaced, and which are the user's."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from smelt.errors import ConfigError

REPORT = "report.json"
BUILD = "build"
"""The folder for the output of the project's Makefile."""

_KEYS = ("smelt", "network", "arena")
"""Keys that every report has had since the first version."""


def check_destination(
    directory: Path, *, force: bool, remedy: str = "force=True"
) -> frozenset[str]:
    """Check that a project may be written to a folder; return the files there that it replaces.

    Args:
        directory: The folder; it need not exist.
        force: Whether an earlier build may be replaced.
        remedy: The option that permits it, for messages.

    Raises:
        ConfigError: The folder contains something that must not be replaced.
    """
    try:
        if not directory.exists():
            return frozenset()
        if not directory.is_dir():
            raise ConfigError(f"'{directory}' exists and is not a folder; name another one")
        if Path.cwd().is_relative_to(directory.resolve()):
            raise ConfigError(
                f"'{directory}' is the current folder or contains it, and cannot be replaced by a "
                "project; name another one"
            )
        if not any(directory.iterdir()):
            return frozenset()
    except OSError as error:
        raise ConfigError(f"cannot write '{directory}': {error.strerror}") from error
    report = _report(directory / REPORT)
    if report is None:
        raise ConfigError(
            f"'{directory}' is not empty and was not written by Smelt (it has no {REPORT} from "
            "Smelt), so nothing in it is replaced; name another folder"
        )
    if not force:
        raise ConfigError(
            f"'{directory}' exists and is not empty; {remedy} replaces the files of the earlier "
            "build in it, and keeps all others"
        )
    files = report.get("files")
    if not isinstance(files, list):
        raise ConfigError(
            f"'{directory}' was written by a version of Smelt whose {REPORT} does not list the "
            "files of the build. Smelt cannot tell your files from these: move yours elsewhere and "
            "remove the folder, or name another one"
        )
    return frozenset(str(name) for name in cast("list[object]", files))


def _report(path: Path) -> dict[str, object] | None:
    """Return a report that Smelt wrote; None if the file is missing or something else."""
    try:
        found: object = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(key in found for key in _KEYS):
        return None
    return cast("dict[str, object]", found)


def files_below(folder: Path) -> list[str]:
    """Return the paths of all files, relative to the folder."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir())


def check_kept(directory: Path, replaced: frozenset[str], staging: Path) -> None:
    """Check that no file of the user conflicts with a file of the new build.

    Raises:
        ConfigError: A user's file has the name of a file or folder of the new build.
    """
    for _ in _kept(directory, replaced, staging):
        pass


def link_kept_files(directory: Path, replaced: frozenset[str], staging: Path) -> None:
    """Add the user's files to a new build, as hard links or copies.

    The old folder stays unchanged, so that nothing is lost if this is interrupted.

    Args:
        directory: The folder that the new build is to replace.
        replaced: The files in it that are not the user's.
        staging: The new build.

    Raises:
        ConfigError: See `check_kept`.
        OSError: A file cannot be read.
    """
    folders: list[tuple[Path, Path]] = []
    for path, target in _kept(directory, replaced, staging):
        if path.is_dir() and not path.is_symlink():
            target.mkdir(parents=True, exist_ok=True)
            folders.append((path, target))
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target, follow_symlinks=False)
        except OSError:  # the file system does not support or permit this hard link
            shutil.copy2(path, target, follow_symlinks=False)
    for path, target in reversed(folders):  # last, because this may make the folder read-only
        shutil.copystat(path, target)
    shutil.copymode(directory, staging)


def _kept(directory: Path, replaced: frozenset[str], staging: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the user's files and folders with their new paths, each folder before its contents."""
    mounts = _mount_points()
    parents = {str(folder) for name in replaced for folder in Path(name).parents}
    pending = [directory]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            name = path.relative_to(directory)
            target = staging / name
            is_folder = path.is_dir() and not path.is_symlink()
            if is_folder:
                if path.is_mount() or str(path) in mounts:
                    raise ConfigError(
                        f"'{path}' is a mount point, which cannot be moved with '{directory}': "
                        "unmount it, or name another folder for the project"
                    )
                pending.append(path)
                if str(name) in parents:
                    continue
            elif name.as_posix() in replaced:
                continue
            if os.path.lexists(target) and not (is_folder and target.is_dir()):
                if Path(BUILD) in name.parents and target.is_file() and not is_folder:
                    continue  # output of `make`, which has just been rebuilt
                raise ConfigError(
                    f"'{path}' was not written by the earlier build, and the new build has a file "
                    "or folder of that name: move yours, or name another folder for the project"
                )
            yield path, target


def _mount_points() -> frozenset[str]:
    """Return the folders that something is mounted on, including bind mounts."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    places = (line.split()[4] for line in lines.splitlines() if len(line.split()) > 4)
    return frozenset(
        re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), place) for place in places
    )


def link_late_files(old: Path, replaced: frozenset[str], directory: Path) -> None:
    """Keep files that the user added after `link_kept_files` and before the swap.

    Args:
        old: The earlier folder.
        replaced: See `link_kept_files`.
        directory: The new folder.
    """
    for path in sorted(old.rglob("*")):
        name = path.relative_to(old)
        target = directory / name
        is_file = path.is_symlink() or not path.is_dir()
        if is_file and name.as_posix() not in replaced and not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)


def swap(staging: Path, directory: Path, *, exists: bool) -> Path | None:
    """Put `staging` in place of `directory` atomically.

    Args:
        staging: The new build.
        directory: The destination; unless `exists`, it is missing or an empty folder.
        exists: Whether there is an earlier build.

    Returns:
        The new path of the earlier build; None without one.

    Raises:
        OSError: Another process has created the destination in the meantime.
    """
    if not exists:
        staging.rename(directory)
        return None
    if _exchange(staging, directory):
        return staging
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}.old.", dir=directory.parent))
    try:
        directory.rename(old / "project")
        staging.rename(directory)
    except BaseException:
        if not directory.exists():
            (old / "project").rename(directory)
        old.rmdir()
        raise
    (old / "project").rename(staging)
    old.rmdir()
    return staging


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders atomically; return whether the system can do that."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0


_HERE, _EXCHANGE = -100, 2
"""Linux's AT_FDCWD and RENAME_EXCHANGE."""

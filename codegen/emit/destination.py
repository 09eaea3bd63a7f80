"""The folder that a project is written to: what of it is replaced, and what is the user's."""

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
"""Where a project's Makefile puts what it makes."""

_KEYS = ("smelt", "network", "arena", "layers")
"""What every report has had since the first version."""


def check_destination(
    directory: Path, *, force: bool, remedy: str = "force=True"
) -> frozenset[str]:
    """Make sure that a project may be written to a folder; which files there it replaces.

    Args:
        directory: the folder; it need not exist.
        force: whether an earlier build may be replaced.
        remedy: how the user asks for that.

    Raises:
        ConfigError: the folder holds something that is not to be replaced.
    """
    try:
        if not directory.exists():
            return frozenset()
        if not directory.is_dir():
            raise ConfigError(f"'{directory}' exists and is not a folder; name another one")
        if Path.cwd().is_relative_to(directory.resolve()):
            raise ConfigError(
                f"'{directory}' is the current folder or holds it, and cannot be replaced by a "
                "project; name another one"
            )
        if not any(directory.iterdir()):
            return frozenset()
    except OSError as error:
        raise ConfigError(f"cannot write '{directory}': {error.strerror}") from error
    report = _report(directory / REPORT)
    if report is None:
        raise ConfigError(
            f"'{directory}' is not empty and was not written by Smelt (it has no {REPORT} of "
            "Smelt's), so that nothing in it is replaced; name another folder"
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
            "files of the build, so that yours cannot be told from them: move yours elsewhere and "
            "remove the folder, or name another one"
        )
    return frozenset(str(name) for name in cast("list[object]", files))


def _report(path: Path) -> dict[str, object] | None:
    """A report of Smelt's; None where the file is something else, or is not there."""
    try:
        found: object = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(key in found for key in _KEYS):
        return None
    return cast("dict[str, object]", found)


def files_below(folder: Path) -> list[str]:
    """The paths of all files, relative to the folder."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir())


def check_kept(directory: Path, replaced: frozenset[str], staging: Path) -> None:
    """Make sure that the user's files have room beside those of a new build.

    Raises:
        ConfigError: one has the name of a file or folder of the new build.
    """
    for _ in _kept(directory, replaced, staging):
        pass


def bring_kept(directory: Path, replaced: frozenset[str], staging: Path) -> None:
    """Put the user's files beside those of a new build, as second names of the same files.

    The folder itself stays as it is, so that nothing is lost if this ends early.

    Args:
        directory: the folder that the new build is to replace.
        replaced: those of its files that are not the user's.
        staging: the new build.

    Raises:
        ConfigError: see `check_kept`.
        OSError: a file cannot be read.
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
        except OSError:  # the file system has no links, or grants none to this file
            shutil.copy2(path, target, follow_symlinks=False)
    for path, target in reversed(folders):  # a folder may be read-only once it is filled
        shutil.copystat(path, target)
    shutil.copymode(directory, staging)


def _kept(directory: Path, replaced: frozenset[str], staging: Path) -> Iterator[tuple[Path, Path]]:
    """What is the user's, and where it goes: every folder before what is in it."""
    mounts = _mount_points()
    above = {str(folder) for name in replaced for folder in Path(name).parents}
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
                if str(name) in above:
                    continue
            elif name.as_posix() in replaced:
                continue
            if os.path.lexists(target) and not (is_folder and target.is_dir()):
                if Path(BUILD) in name.parents and target.is_file() and not is_folder:
                    continue  # `make` made it, and made it anew just now
                raise ConfigError(
                    f"'{path}' was not written by the earlier build, and the new one has something "
                    "of that name: move yours elsewhere, or name another folder for the project"
                )
            yield path, target


def _mount_points() -> frozenset[str]:
    """Folders that something is mounted on, those too that show a part of the same file system."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    places = (line.split()[4] for line in lines.splitlines() if len(line.split()) > 4)
    return frozenset(
        re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), place) for place in places
    )


def bring_late(old: Path, replaced: frozenset[str], directory: Path) -> None:
    """Keep what the user put into a folder after `bring_kept` had looked, and before the swap.

    Args:
        old: what the folder was.
        replaced: see `bring_kept`.
        directory: what it is now.
    """
    for path in sorted(old.rglob("*")):
        name = path.relative_to(old)
        target = directory / name
        is_file = path.is_symlink() or not path.is_dir()
        if is_file and name.as_posix() not in replaced and not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)


def swap(staging: Path, directory: Path, *, exists: bool) -> Path | None:
    """Put `staging` in place of `directory`, so that no half of it is ever seen.

    Args:
        staging: the new build.
        directory: where it goes; nothing is there, or an empty folder, unless `exists`.
        exists: whether there is an earlier build.

    Returns:
        Where the earlier build is now; None without one.

    Raises:
        OSError: somebody has put something there in the meantime.
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
    """Exchange two folders in a single step, if the system can."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0


_HERE, _EXCHANGE = -100, 2
"""Linux's AT_FDCWD and RENAME_EXCHANGE."""

"""Boards that appear as a USB drive and flash the files that are copied to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from smelt.errors import ConfigError, DeviceError

Drive = Literal["uf2", "drag"]

MARKS: dict[Drive, str] = {"uf2": "INFO_UF2.TXT", "drag": "DETAILS.TXT"}
"""File that identifies a drive: of UF2 boot loaders, and of DAPLink (micro:bit)."""

_HINTS: dict[Drive, str] = {
    "uf2": "connect the board's USB while you hold its button (Pico: BOOTSEL; others: press reset "
    "twice)",
    "drag": "connect the board's USB",
}
_MOUNTS = Path("/proc/self/mounts")


def find_drive(kind: Drive) -> Path:
    """Return the mounted drive of that kind.

    Raises:
        DeviceError: there is none.
        ConfigError: there are several.
    """
    mark = MARKS[kind]
    found = [folder for folder in _mounted() if (folder / mark).is_file()]
    if not found:
        raise DeviceError(
            f"no drive with {mark} is mounted: {_HINTS[kind]}, mount the drive that appears, or "
            "give its folder with --drive"
        )
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise ConfigError(f"several drives have {mark}: {names}; choose one with --drive")
    return found[0]


def check_drive(kind: Drive, folder: Path) -> Path:
    """Return the folder if it is a drive of that kind.

    Raises:
        ConfigError: it is not.
    """
    if not (folder / MARKS[kind]).is_file():
        raise ConfigError(f"--drive {folder}: no {MARKS[kind]} there, so it is not a board's drive")
    return folder


def copy(image: Path, drive: Path) -> None:
    """Write the image to the drive and flush it.

    Raises:
        DeviceError: the drive does not accept it.
    """
    try:
        with (drive / image.name).open("wb") as file:
            file.write(image.read_bytes())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DeviceError(f"{drive} does not accept {image.name}: {error.strerror}") from error


def _mounted() -> list[Path]:
    """Return the mount points of all FAT file systems, on Linux and macOS."""
    folders = set(Path("/Volumes").glob("*"))
    if _MOUNTS.exists():
        for line in _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
            _, folder, kind, *_ = line.split(" ")
            if kind in ("vfat", "msdos", "fuseblk"):
                folders.add(Path(_unescaped(folder)))
    return sorted(folders)


def _unescaped(folder: str) -> str:
    """Decode the kernel's escapes: a backslash and three octal digits for spaces and the like."""
    for code in ("040", "011", "012", "134"):
        folder = folder.replace(f"\\{code}", chr(int(code, 8)))
    return folder

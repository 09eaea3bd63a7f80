"""Compiles a project, exactly as `make` in its folder does."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from smelt.boards.elf import ElfInfo, measure, stored_bytes
from smelt.boards.external_programs import find_tool, run_tool
from smelt.codegen.lower.backend import backend
from smelt.errors import DoesNotFit, ToolError
from smelt.targets import ExternalLibrary, HostLibrary, Platform

_OVERFLOW = re.compile(r"region [`'](\w+)' overflowed by (\d+) bytes")
_LINES_SHOWN = 40
_MAKE_S = 900
"""Timeout of a build in seconds."""


def compile_project(
    directory: Path,
    platform: Platform,
    *,
    trace: bool = False,
    extra_cflags: str = "",
    extra_ldflags: str = "",
    libraries: Mapping[str, Path] | None = None,
    measured_sources: Sequence[str] = (),
) -> ElfInfo:
    """Build `build/NAME.elf` in a project that Smelt wrote, and measure it.

    Args:
        directory: folder of the project.
        platform: platform that the project was written for; it must have firmware.
        trace: compile the callback that sends each step's output.
        extra_cflags: additional flags for the compiler.
        extra_ldflags: additional flags for the linker.
        libraries: folders of external libraries by backend; environment variables give the others.
        measured_sources: names of the network's C files to measure; empty measures all.

    Raises:
        ToolError: make or the compiler is missing, or the build failed.
        DoesNotFit: the firmware is too large for a memory.
    """
    settings = [f"TRACE={int(trace)}", f"EXTRA_CFLAGS={extra_cflags}"]
    settings.append(f"EXTRA_LDFLAGS={extra_ldflags}")
    _make(directory, platform, settings, libraries or {})
    return _measure(directory, measured_sources)


def compile_library(
    directory: Path,
    platform: Platform,
    *,
    libraries: Mapping[str, Path] | None = None,
    measured_sources: Sequence[str] = (),
) -> int:
    """Build `build/libNAME.a` in a project without firmware, and measure it.

    Args:
        directory: the project's folder.
        platform: platform that the project was written for.
        libraries: folders of external libraries by backend; environment variables give the others.
        measured_sources: names of the network's C files to measure; empty measures all.

    Returns:
        Bytes of code and constants in the network's objects.

    Raises:
        ToolError: make or the compiler is missing, or the build failed.
    """
    _make(directory, platform, [], libraries or {})
    objects = (directory / "build").glob("*.o")
    return sum(stored_bytes(path) for path in objects if _is_of(path, measured_sources))


def _is_of(path: Path, sources: Sequence[str]) -> bool:
    """Return whether an object was compiled from one of `sources`; true if `sources` is empty."""
    return not sources or path.stem in {Path(name).stem for name in sources}


def link_library(directory: Path, platform: Platform, entry: str, elf: Path) -> None:
    """Link the library that `compile_library` built with the functions that it calls.

    The program does not run, but contains all code that function `entry` can reach.

    Raises:
        ToolError: the linker is missing or failed.
    """
    compiler, target = find_tool(f"{platform.target.cross}gcc"), platform.target
    # In some distributions, the C library for RISC-V is Picolibc, which needs an option.
    specification = run_tool([compiler, "-print-file-name=picolibc.specs"]).output.strip()
    picolibc = target.is_riscv and Path(specification).is_absolute()
    objects = sorted((directory / "build").glob("*.o"))
    libraries = sorted((directory / "build").glob("lib*.a"))
    command = [compiler, *target.arch_flags, *(["--specs=picolibc.specs"] if picolibc else [])]
    command += ["-nostartfiles", "-Wl,--gc-sections", f"-Wl,--entry={entry}"]
    ran = run_tool([*command, *map(str, (*objects, *libraries)), "-lm", "-o", str(elf)])
    if ran.status != 0:
        raise ToolError(f"the library cannot be linked alone:\n{ran.errors.rstrip()}")


def _make(
    directory: Path, platform: Platform, settings: Sequence[str], libraries: Mapping[str, Path]
) -> None:
    """Run `make` in a project, with variables (`NAME=VALUE`) in `settings`.

    Raises:
        ToolError, DoesNotFit: see `compile_project`.
    """
    make = find_tool("make")
    cross = platform.target.cross
    find_tool(f"{cross}gcc" if cross else os.environ.get("CC", "cc"))
    command = [make, f"-j{os.cpu_count() or 1}", *settings]
    command += _library_variables(platform, libraries)
    outer = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    environment = {key: value for key, value in os.environ.items() if key not in outer}
    ran = run_tool(
        command,
        what=f"make in {directory}",
        folder=directory,
        environment=environment | {"LC_ALL": "C"},
        timeout_s=_MAKE_S,
    )
    if ran.status != 0:
        _raise_failure(directory, platform, ran.output + ran.errors)


def library_folder(library: ExternalLibrary, given: Mapping[str, Path]) -> Path | str | None:
    """Return an external library's folder, from `given` or its environment variable, or None."""
    return given.get(library.name) or os.environ.get(library.variable)


def _library_variables(platform: Platform, given: Mapping[str, Path]) -> list[str]:
    """Return make variables with the folders of the target's external libraries."""
    found = (backend(name).library for name in platform.target.libraries)
    folders = ((lib.variable, library_folder(lib, given)) for lib in found if lib is not None)
    return [f"{name}={Path(folder).resolve()}" for name, folder in folders if folder]


def _raise_failure(directory: Path, platform: Platform, output: str) -> None:
    sizes = {memory.name: memory.size for memory in platform.memories}
    for region, excess in _OVERFLOW.findall(output):
        available = sizes[region]
        needed = available + int(excess)
        raise DoesNotFit(
            f"memory '{region}' of {platform.name}: the firmware needs {needed:,} bytes, but only "
            f"{available:,} are available",
            needed=needed,
            available=available,
        )
    lines = output.rstrip().splitlines()
    shown = "\n".join(lines[-_LINES_SHOWN:])
    missing = [x.package for x in platform.target.host_libraries if _is_missing(x, output)]
    hint = "".join(f"\nA library is not installed: apt-get install {name}" for name in missing)
    raise ToolError(f"make in {directory} failed:\n{shown}{hint}")


def _is_missing(library: HostLibrary, output: str) -> bool:
    """Return whether the tools report that a library is not installed."""
    name, header = library.name, library.header
    said = (f"{header}: No such file", f"'{header}' file not found", f"cannot find -l{name}")
    return any(text in output for text in said)


def _measure(directory: Path, sources: Sequence[str]) -> ElfInfo:
    elves = sorted((directory / "build").glob("*.elf"))
    if len(elves) != 1:
        raise ToolError(f"make in {directory} wrote {len(elves)} .elf files instead of one")
    objects = network_objects(directory / "build", sources)
    network = [path.relative_to(directory).as_posix() for path in objects]
    return measure(elves[0], elves[0].with_suffix(".map"), network)


def network_objects(build: Path, sources: Sequence[str] = ()) -> list[Path]:
    """Return the object files of the network and of the libraries that it calls, in a build.

    Args:
        build: The folder of the build.
        sources: The C files that count; none for all that are not firmware.
    """
    return sorted(
        path
        for path in build.rglob("*.o")
        if path != build / "main.o"
        and build / "firmware" not in path.parents
        and _is_of(path, sources)
    )

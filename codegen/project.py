"""Writes a C project: the network's files, what the platform adds, README and report."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smelt.codegen.helpers import required_headers
from smelt.codegen.kernels.cmsis_nn import HEADER, VERSION
from smelt.codegen.network import Network, render_network
from smelt.codegen.render import render, text_of
from smelt.codegen.schedule import Schedule
from smelt.codegen.weights import binary
from smelt.errors import ConfigError
from smelt.ir import Array
from smelt.targets import Optimize, Platform

REPORT = "report.json"

Finish = Callable[[Path], Mapping[str, object]]


@dataclass(frozen=True)
class Project:
    """A C project in memory: path to contents, and the report that goes with it.

    Binary files are given as arrays that lie one right behind the other: so large ones are never
    in memory twice.
    """

    network: Network
    files: Mapping[str, str]
    report: Mapping[str, object]
    binaries: Mapping[str, Sequence[Array]] = field(default_factory=dict[str, Sequence[Array]])

    def write(self, directory: Path, *, force: bool = False, finish: Finish | None = None) -> None:
        """Write the project so that `directory` appears whole or not at all.

        Args:
            directory: must not exist, unless it is an empty folder or `force` is given.
            force: replace what an earlier build wrote there.
            finish: works on the written folder before it appears (compiles it, say) and returns
                the report to store.

        Raises:
            ConfigError: the directory holds something, or cannot be written.
        """
        _check_destination(directory, force=force)
        directory = directory.resolve()
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        except OSError as error:
            raise ConfigError(f"cannot write to '{directory.parent}': {error.strerror}") from error
        try:
            for name, text in self.files.items():
                path = staging / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
            for name, arrays in self.binaries.items():
                with (staging / name).open("wb") as file:
                    for array in arrays:
                        array.tofile(file)
            report = self.report if finish is None else finish(staging)
            text = json.dumps(report, indent=2) + "\n"
            (staging / REPORT).write_text(text, encoding="utf-8", newline="\n")
            staging.chmod(0o777 & ~_umask())
            _swap(staging, directory)
        except OSError as error:
            raise ConfigError(f"cannot write '{directory}': {error.strerror}") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def render_project(
    network: Network,
    schedule: Schedule,
    platform: Platform,
    optimize: Optimize,
    report: Mapping[str, object],
    mlperf_model: str = "",
) -> Project:
    """Render every file of the project.

    Args:
        network: the network's own files and names.
        schedule: its steps.
        platform: what the code runs on.
        optimize: what compiler flags favour.
        report: what `report.json` says until something is measured.
        mlperf_model: the network of MLPerf Tiny that the firmware is to claim to be, with room for
            the benchmark's input buffer; none where empty.
    """
    variables: dict[str, object] = {
        "net": network,
        "platform": platform,
        "optimize": optimize,
        "report": report,
        "db": bool(mlperf_model) or _has_room_for_db(network, platform),
        "mlperf_model": mlperf_model,
        "cmsis_nn": VERSION if _calls_cmsis_nn(schedule) else "",
    }
    texts = render_network(network, schedule)
    for template, path in platform.project_files:
        is_template = template.endswith(".j2")
        texts[path] = render(template, variables) if is_template else text_of(template)
    texts["README.md"] = render("project/README.md.j2", variables)
    binaries = {network.weights_binary: binary(schedule)} if network.weights_binary else {}
    return Project(network, texts, report, binaries)


def _calls_cmsis_nn(schedule: Schedule) -> bool:
    """Whether the network is to be linked with Arm's library."""
    return HEADER in required_headers("".join(f.definition for f in schedule.functions))


def _has_room_for_db(network: Network, platform: Platform) -> bool:
    """Whether MLPerf Tiny's buffer for the first input, up to float32, fits beside the rest."""
    memory, stack = platform.memory_of("data"), platform.memory_of("stack")
    if memory is None:
        return True
    used = platform.stack_bytes if memory == stack else 0
    if memory == platform.memory_of("arena"):
        used += network.arena_bytes + network.state_bytes
    return used + 4 * network.inputs[0].count + _FIRMWARE_DATA <= memory.size


_FIRMWARE_DATA = 2048
"""Bytes of static data that are enough for the firmware around the network."""


def _check_destination(directory: Path, *, force: bool) -> None:
    if not directory.exists():
        return
    if not directory.is_dir():
        raise ConfigError(f"'{directory}' exists and is not a folder; choose another with -o")
    if directory.resolve() == Path.cwd():
        raise ConfigError("the current folder cannot be replaced by a project; name another one")
    if not any(directory.iterdir()):
        return
    if not (directory / REPORT).exists():
        raise ConfigError(
            f"'{directory}' is not empty and was not written by Smelt (it has no {REPORT}), so "
            "not even --force replaces it; choose another with -o"
        )
    if not force:
        raise ConfigError(f"'{directory}' exists and is not empty; --force replaces it")


def _swap(staging: Path, directory: Path) -> None:
    """Put `staging` in place of `directory` by renames, so that no half of it is ever seen."""
    if not directory.exists():
        staging.rename(directory)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}.old.", dir=directory.parent))
    try:
        (old / "project").parent.mkdir(exist_ok=True)
        directory.rename(old / "project")
        staging.rename(directory)
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Writing of a C project: the network's files, the platform's files, README and report."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smelt.codegen.emit.destination import (
    REPORT,
    check_destination,
    check_kept,
    files_below,
    link_kept_files,
    link_late_files,
    swap,
)
from smelt.codegen.emit.firmware import Firmware
from smelt.codegen.emit.group import NetworkGroup
from smelt.codegen.emit.network import EmittedNetwork, NetworkFiles
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render, render_file, text_of
from smelt.errors import ConfigError
from smelt.ir import Array
from smelt.targets import Optimize, Platform

ReportWriter = Callable[[Path], Mapping[str, object]]


@dataclass(frozen=True)
class Project:
    """A C project in memory: contents by path, and the report.

    Binary files are sequences of arrays to be concatenated, so that large ones are not copied.
    """

    group: NetworkGroup
    files: Mapping[str, str]
    report: Mapping[str, object]
    binaries: Mapping[str, Sequence[Array]] = field(default_factory=dict[str, Sequence[Array]])

    def files_of(self, network: EmittedNetwork) -> NetworkFiles:
        """Return the own files of one of the project's networks, without an accelerator's."""
        texts = {name: self.files[name] for name in (*network.headers, *network.sources)}
        own = (network.weights_binary,)
        binaries = {name: parts for name, parts in self.binaries.items() if name in own}
        return NetworkFiles(network, texts, binaries)

    def write(
        self, directory: Path, *, force: bool = False, finish: ReportWriter | None = None
    ) -> dict[str, object]:
        """Write the project atomically: `directory` appears complete or not at all.

        Args:
            directory: Must not exist, unless it is an empty folder or `force` is given.
            force: Replace the files that an earlier build wrote there, as its report lists them,
                and keep all others.
            finish: Processes the written folder before it appears (for example compiles it) and
                returns the report to store.

        Returns:
            The stored report: its `files` are the paths of all written files.

        Raises:
            ConfigError: The directory contains other files or cannot be written.
        """
        replaced = check_destination(directory, force=force)
        directory = directory.resolve()
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        except OSError as error:
            raise ConfigError(f"cannot write to '{directory.parent}': {error.strerror}") from error
        try:
            for name, text in {**self.files, REPORT: ""}.items():
                path = staging / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
            for name, arrays in self.binaries.items():
                with (staging / name).open("wb") as file:
                    for array in arrays:
                        array.tofile(file)
            staging.chmod(0o777 & ~_umask())
            exists = directory.exists()
            if exists:
                check_kept(directory, replaced, staging)
            report = dict(self.report if finish is None else finish(staging))
            if finish is not None:  # `finish` takes time, so check again
                replaced = check_destination(directory, force=force)
                exists = directory.exists()
            report["files"] = files_below(staging)
            text = json.dumps(report, indent=2) + "\n"
            (staging / REPORT).write_text(text, encoding="utf-8", newline="\n")
            if exists:
                link_kept_files(directory, replaced, staging)
            old = swap(staging, directory, exists=exists)
            if old is not None:
                link_late_files(old, replaced, directory)
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(f"cannot write '{directory}': {why}") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return report


@dataclass(frozen=True)
class ProjectParameters(Parameters):
    """Variables of the templates of `emit/project/`.

    Attributes:
        group: The networks.
        net: The network; the first one if there are several.
        platform: The platform that the firmware runs on.
        firmware: The list of files and the benchmark protocol.
        compile_flags: Compiler flags, except those that select the processor.
        link_flags: Linker flags, except those that select the processor.
        library_level: The optimization flag for a library that the user provides.
    """

    group: NetworkGroup
    net: EmittedNetwork
    platform: Platform
    firmware: Firmware
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    library_level: str


def render_project(
    files: Sequence[NetworkFiles],
    platform: Platform,
    optimize: Optimize,
    report: Mapping[str, object],
) -> Project:
    """Render the files around one or several networks, and add them to their own.

    Args:
        files: The own files of each network.
        platform: The platform that the code runs on.
        optimize: What the compiler flags favor.
        report: The contents of `report.json` until something is measured.

    Raises:
        ConfigError: Two networks would have the same names in C.
    """
    group = NetworkGroup(tuple(own.network for own in files))
    texts = {name: text for own in files for name, text in own.texts.items()}
    binaries = {name: parts for own in files for name, parts in own.binaries.items()}
    around = render_around(group, Firmware(platform), optimize)
    return Project(group, {**texts, **around}, report, binaries)


def render_around(group: NetworkGroup, firmware: Firmware, optimize: Optimize) -> dict[str, str]:
    """Render the text files around the networks, including the README, by path."""
    parameters = project_parameters(group, firmware, optimize)
    if not group.shares_arena:
        readme = render("emit/project/README.md.j2", parameters)
        return {**render_firmware(parameters), "README.md": readme}
    return {
        **render_firmware(parameters),
        "shared_arena.h": render_file(
            "emit/project/shared_arena.h.j2", "shared_arena.h", parameters
        ),
        "README.md": render("emit/project/shared_arena.md.j2", parameters),
    }


def project_parameters(
    group: NetworkGroup, firmware: Firmware, optimize: Optimize
) -> ProjectParameters:
    """Return the variables of the files around the networks, with flags for `optimize`."""
    platform = firmware.platform
    return ProjectParameters(
        group=group,
        net=group.members[0],
        platform=platform,
        firmware=firmware,
        compile_flags=platform.target.compile_flags(optimize),
        link_flags=platform.link_flags(optimize),
        library_level="-Ofast" if optimize != "size" else "-Os",
    )


def render_firmware(parameters: ProjectParameters) -> dict[str, str]:
    """Render the text files around the network, except the README, by path."""
    return {
        path: _rendered(template, path, parameters) for template, path in parameters.firmware.files
    }


def _rendered(template: str, path: str, parameters: ProjectParameters) -> str:
    """Return the text of a file; files without variables are copied."""
    if not template.endswith(".j2"):
        return text_of(template)
    return render_file(template, path, parameters)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

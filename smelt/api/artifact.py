"""Result of compiling a network: each stage of the pipeline, and the C project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from smelt.api.options import Options
from smelt.argument_checks import as_path
from smelt.boards import Board, Computer
from smelt.codegen import arena
from smelt.codegen.accelerator import Accelerator, accelerator_of
from smelt.codegen.emit.firmware import Firmware
from smelt.codegen.emit.network import EmittedNetwork
from smelt.codegen.emit.project import Project, render_around
from smelt.codegen.lower.device import LayerCosts
from smelt.codegen.partition.legalize import Legalized
from smelt.codegen.passes.channels.removal_report import RemovalReport
from smelt.codegen.schedule.memories import Distribution
from smelt.codegen.schedule.schedule import Schedule
from smelt.frontend import Imported
from smelt.ir import Graph
from smelt.targets import Platform


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Results of all stages of the pipeline up to the rendering of the project.

    Attributes:
        options: options of the build.
        machine: the board, or the computer used in place of a board, or None.
        platform: platform that code is generated for.
        imported: the network as imported from its file.
        removals: channels and operators that the passes removed.
        legalized: operators that were rewritten for a backend.
        graph: the graph that is compiled.
        costs: layer costs that decided what runs on an accelerator, or None without one.
        schedule: the steps of an inference.
        plan: offsets of the buffers in the arenas.
        stored: memories of the board for arenas, states and constants.
        searched: bytes of the arenas of all different schedules that were planned.
        network: the network in the form that the templates print.
        notes: notes for the user about the import and the options, one sentence each.
    """

    options: Options
    machine: Board | Computer | None
    platform: Platform
    imported: Imported
    removals: RemovalReport
    legalized: Sequence[Legalized]
    graph: Graph
    costs: LayerCosts | None
    schedule: Schedule
    plan: arena.Plan
    stored: Distribution
    searched: tuple[int, ...]
    network: EmittedNetwork
    notes: tuple[str, ...]

    @property
    def accelerator(self) -> Accelerator | None:
        """Return the target's accelerator, or None if it has only a CPU."""
        return accelerator_of(self.platform.target)

    @property
    def board(self) -> Board | None:
        """Return the board, or None if the code is for a computer or a library."""
        return self.machine if isinstance(self.machine, Board) else None

    @property
    def has_firmware(self) -> bool:
        """Whether the written project has firmware: only where a board was asked for."""
        return self.options.board is not None


@dataclass(frozen=True)
class Artifact(Stages):
    """A compiled network: the results of all stages, and the C project."""

    project: Project

    @property
    def report(self) -> Mapping[str, object]:
        """Return the contents of `report.json`; figures that need an ELF or a run are None."""
        return self.project.report

    @property
    def on(self) -> str:
        """Return where the code runs by default: `qemu` if there is a board, else `host`."""
        return "host" if self.board is None else "qemu"

    def with_firmware(self) -> Self:
        """Return the artifact with the firmware that `smelt run` speaks to in its project.

        Without a board, that is a program for this computer.
        """
        if self.has_firmware:
            return self
        around = render_around(self.project.group, Firmware(self.platform), self.options.optimize)
        files = {**self.project.files, **around}
        return replace(self, project=replace(self.project, files=files))

    def write(self, directory: str | Path, *, force: bool = False) -> None:
        """Write the C project to a folder; see `Project.write`."""
        self.project.write(as_path(directory, "directory"), force=force)

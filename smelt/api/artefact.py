"""What compiling a network makes: every stage of the pipeline, and the C project at its end."""

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
from smelt.codegen.passes.channels.removal_report import Removals
from smelt.codegen.schedule.schedule import Schedule
from smelt.frontend import Imported
from smelt.ir import Graph
from smelt.targets import Platform


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Every stage of the pipeline, before the project is rendered.

    Attributes:
        options: what was asked for.
        machine: the board, or the computer that stands for one; None without either.
        platform: what code is generated for.
        imported: the network as the file has it.
        removals: what the passes took out.
        legalized: the operators that were rewritten for a backend.
        graph: what is computed.
        costs: what layers were given to an accelerator by; None where they were not.
        schedule: the steps.
        plan: where their buffers lie.
        network: what the templates ask.
        notes: what the user should know, one sentence each: of the import, and of options.
    """

    options: Options
    machine: Board | Computer | None
    platform: Platform
    imported: Imported
    removals: Removals
    legalized: Sequence[Legalized]
    graph: Graph
    costs: LayerCosts | None
    schedule: Schedule
    plan: arena.Plan
    network: EmittedNetwork
    notes: tuple[str, ...]

    @property
    def accelerator(self) -> Accelerator | None:
        """What computes beside the CPU."""
        return accelerator_of(self.platform.target)

    @property
    def board(self) -> Board | None:
        """The board, where it is one with firmware."""
        return self.machine if isinstance(self.machine, Board) else None

    @property
    def has_firmware(self) -> bool:
        """Whether the written project has firmware: only where a board was asked for."""
        return self.options.board is not None


@dataclass(frozen=True)
class Artefact(Stages):
    """A compiled network: every stage of the pipeline, and the C project at its end."""

    project: Project

    @property
    def report(self) -> Mapping[str, object]:
        """What `report.json` says; fields that only an ELF or a run can tell are None."""
        return self.project.report

    @property
    def on(self) -> str:
        """Where the code runs by default: `host`, or `qemu` with a board."""
        return "host" if self.board is None else "qemu"

    def with_firmware(self) -> Self:
        """The same network with the firmware that `smelt run` speaks to in the project.

        Without a board, that is a program for this computer.
        """
        if self.has_firmware:
            return self
        around = render_around(self.network, Firmware(self.platform), self.options.optimize)
        files = {**self.project.files, **around}
        return replace(self, project=replace(self.project, files=files))

    def write(self, directory: str | Path, *, force: bool = False) -> None:
        """Write the C project; see `Project.write`."""
        self.project.write(as_path(directory, "directory"), force=force)

"""Counts the instructions that a simulated board executes, with a plugin for QEMU."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from smelt.boards.external_programs import find_tool, run_tool
from smelt.errors import ToolError
from smelt.targets.cycles import Counts

PartCounts = tuple[dict[int, Counts], ...]
"""Counts by address, for each part of a region."""


@dataclass(frozen=True)
class CountedRegion:
    """Address ranges of a program to count.

    Attributes:
        code: address range of instructions: first, and after the last.
        flash: address range in which loads may have wait states; None for none.
        start: address of the first counted instruction.
        stop: address of the first instruction that is no longer counted.
        parts: first instruction of each part, and the first after it.
    """

    code: tuple[int, int]
    flash: tuple[int, int] | None
    start: int
    stop: int
    parts: Sequence[tuple[int, int]]


class Counter:
    """QEMU plugin for one region, compiled into a folder of the caller.

    Attributes:
        arguments: arguments for QEMU that load the plugin.
    """

    def __init__(self, region: CountedRegion, folder: Path) -> None:
        """Compile the plugin into `folder`, where QEMU will also write its results.

        Raises:
            ToolError: the compiler or QEMU is missing, the compiler failed, or QEMU was built
                without plugins.
        """
        self._parts = len(region.parts) + 1
        self._result = folder.resolve() / "counts.txt"
        specification = folder.resolve() / "region.txt"
        specification.write_text(_specification(region, self._result), encoding="utf-8")
        plugin = _compile(folder.resolve())
        # In QEMU's arguments, a comma separates; two commas stand for one in a path.
        paths = (str(path).replace(",", ",,") for path in (plugin, specification))
        self.arguments = ("-plugin", "{},spec={}".format(*paths))

    def read(self) -> PartCounts:
        """Return the last inference's counts: first those outside all parts, then each part's.

        Raises:
            ToolError: the plugin counted no inference.
        """
        try:
            lines = self._result.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ToolError("the simulator's plugin has counted no inference") from error
        found: PartCounts = tuple({} for _ in range(self._parts))
        for line in lines:
            part, address, *numbers = line.split()
            found[int(part)][int(address, 16)] = Counts(*map(int, numbers))
        return found


def _specification(region: CountedRegion, result: Path) -> str:
    lines = ["code {:x} {:x}".format(*region.code)]
    lines += [] if region.flash is None else ["flash {:x} {:x}".format(*region.flash)]
    lines += [f"start {region.start:x}", f"stop {region.stop:x}"]
    lines += [f"part {call:x} {back:x}" for call, back in region.parts]
    return "\n".join([*lines, f"out {result}", ""])


def _compile(folder: Path) -> Path:
    # Not $CC: users set it to the cross compiler for a project's `make`.
    compiler = find_tool("cc")
    source, plugin = folder / "instruction_counts.c", folder / "instruction_counts.so"
    template = files("smelt.templates").joinpath("simulator/instruction_counts.c")
    source.write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    command = [compiler, "-std=c11", "-O2", "-fPIC", "-shared"]
    # QEMU itself defines the interface's functions, so macOS must allow undefined symbols.
    command += ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    command += [f"-DQEMU_PLUGIN_VERSION={_interface()}", str(source), "-o", str(plugin)]
    ran = run_tool(command)
    if ran.status != 0:
        raise ToolError(f"the simulator's plugin cannot be compiled:\n{ran.errors.rstrip()}")
    return plugin


def _interface() -> int:
    """Return the plugin interface version to request: QEMU 9 rejects 1, earlier ones have no 2."""
    qemu = find_tool("qemu-system-arm")
    usage, version = (run_tool([qemu, option]).output for option in ("-help", "-version"))
    if not re.search(r"^-plugin ", usage, re.MULTILINE):
        raise ToolError(
            f"{qemu} was built without plugins, which profiles by layer need; install QEMU with "
            "plugins (Debian and Ubuntu: apt-get install qemu-system-arm)"
        )
    found = re.search(r"version (\d+)", version)
    return 2 if found is not None and int(found.group(1)) >= 9 else 1

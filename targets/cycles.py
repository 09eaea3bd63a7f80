"""Cycles of what was executed, out of counts by address and a core's timings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from smelt.targets.instructions import Instruction, Kind
from smelt.targets.timings import Core

WAIT_STATES_ASSUMED = (
    "sequential fetches are hidden by prefetching; each taken branch, and each load from another "
    "16 bytes of flash than the load before, waits once"
)
"""What a number of wait states of flash means."""


@dataclass
class Counts:
    """What happened at an address.

    Attributes:
        executions: how often the instruction was executed, those of a failed condition included.
        taken: of a branch, how often another instruction than the next in memory followed.
        misaligned: accesses to memory at no multiple of their size.
        flash_lines: loads from another 16 bytes of flash than the load from flash before.
    """

    executions: int = 0
    taken: int = 0
    misaligned: int = 0
    flash_lines: int = 0

    def add(self, other: Counts) -> None:
        """Count what `other` did too."""
        self.executions += other.executions
        self.taken += other.taken
        self.misaligned += other.misaligned
        self.flash_lines += other.flash_lines


def cycles(
    core: Core,
    code: Mapping[int, Instruction],
    counts: Mapping[int, Counts],
    wait_states: int = 0,
) -> int:
    """Cycles that the counted executions take.

    An instruction of unknown kind takes one; `unknown` lists them.

    Args:
        core: the timings.
        code: every instruction by its address.
        counts: what happened, by address.
        wait_states: of the flash, see `WAIT_STATES_ASSUMED`.
    """
    total = 0
    for line in straight_lines(code, counts):
        executions = counts[line[0].address].executions
        total += executions * sum(core.rule(core, line))
        for instruction in line:
            found = counts[instruction.address]
            total += found.misaligned * core.misaligned + found.flash_lines * wait_states
        last, found = line[-1], counts[line[-1].address]
        if last.branches:
            total += _directions(core, last, found) + found.taken * wait_states
    return total


def _directions(core: Core, branch: Instruction, counts: Counts) -> int:
    """Cycles that a branch's directions take beside its execution."""
    if core.mispredicted and branch.kind is Kind.CONDITIONAL:
        return core.mispredicted * min(counts.taken, counts.executions - counts.taken)
    return counts.taken * core.taken.get(branch.kind, core.refill)


def straight_lines(
    code: Mapping[int, Instruction], counts: Mapping[int, Counts]
) -> Iterator[list[Instruction]]:
    """What was executed, in stretches that are entered at their start and left at their end."""
    line: list[Instruction] = []
    for address in sorted(counts):
        instruction = code.get(address) or Instruction(address, 2, "?")
        if line and (
            line[-1].after != address
            or line[-1].branches
            or counts[line[-1].address].executions != counts[address].executions
        ):
            yield line
            line = []
        line.append(instruction)
    if line:
        yield line


def unknown(code: Mapping[int, Instruction], counts: Iterable[int]) -> tuple[str, ...]:
    """Mnemonics at these addresses that no table knows, sorted."""
    found = (code.get(address) for address in counts)
    names = {"(no instruction)" if i is None else i.mnemonic for i in found if _is_unknown(i)}
    return tuple(sorted(names))


def _is_unknown(instruction: Instruction | None) -> bool:
    return instruction is None or instruction.kind is Kind.UNKNOWN

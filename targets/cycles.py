"""Cycle counts, from execution counts by address and a core's timings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from smelt.targets.instructions import Instruction, Kind
from smelt.targets.timings import Core

WAIT_STATES_ASSUMED = (
    "sequential fetches are hidden by prefetching; each taken branch, and each load from another "
    "16-byte line of flash than the previous load, waits once"
)
"""Assumptions behind a number of flash wait states."""


@dataclass
class Counts:
    """Counts of one instruction address.

    Attributes:
        executions: executions of the instruction, including those whose condition was false.
        taken: for a branch, executions that did not continue at the next address.
        misaligned: memory accesses at an address that is not a multiple of their size.
        flash_lines: loads from another 16-byte line of flash than the previous load from flash.
    """

    executions: int = 0
    taken: int = 0
    misaligned: int = 0
    flash_lines: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of `other`."""
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
    """Return the cycles of the counted executions.

    An instruction of unknown kind counts as one cycle; `unknown` lists them.

    Args:
        core: timings of the core.
        code: instructions by address.
        counts: counts by address.
        wait_states: wait states of the flash; see `WAIT_STATES_ASSUMED`.
    """
    total = 0
    for line in basic_blocks(code, counts):
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
    """Return the additional cycles of a branch's taken and mispredicted executions."""
    if core.mispredicted and branch.kind is Kind.CONDITIONAL:
        return core.mispredicted * min(counts.taken, counts.executions - counts.taken)
    return counts.taken * core.taken.get(branch.kind, core.refill)


def basic_blocks(
    code: Mapping[int, Instruction], counts: Mapping[int, Counts]
) -> Iterator[list[Instruction]]:
    """Yield the executed basic blocks: runs of instructions with equal execution counts."""
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
    """Return the unknown mnemonics at these addresses, sorted."""
    found = (code.get(address) for address in counts)
    names = {"(no instruction)" if i is None else i.mnemonic for i in found if _is_unknown(i)}
    return tuple(sorted(names))


def _is_unknown(instruction: Instruction | None) -> bool:
    return instruction is None or instruction.kind is Kind.UNKNOWN

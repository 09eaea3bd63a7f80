"""Instructions of an ELF, and the C source lines that they come from."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elftools.common.exceptions import DWARFError, ELFError
from elftools.elf.elffile import ELFFile

from smelt.boards.external_programs import find_tool, run_tool
from smelt.errors import ToolError
from smelt.targets import Target
from smelt.targets.instructions import Instruction, Kind, instruction
from smelt.targets.riscv_instructions import riscv_instruction


@dataclass(frozen=True)
class Code:
    """Machine code of a program.

    Attributes:
        instructions: instructions by address.
        functions: names of functions by address.
    """

    instructions: Mapping[int, Instruction]
    functions: Mapping[int, str]

    @property
    def low(self) -> int:
        """Return the address of the first instruction."""
        return min(self.instructions)

    @property
    def high(self) -> int:
        """Return the address after the last instruction."""
        return max(i.after for i in self.instructions.values())

    def function(self, name: str) -> int:
        """Return the address of a function.

        Raises:
            ToolError: the program has no function of that name.
        """
        for address, found in self.functions.items():
            if found == name:
                return address
        raise ToolError(f"the compiled program has no function '{name}'")

    def function_at(self, address: int) -> str:
        """Return the name of the function that contains an address; empty before the first."""
        return self.functions.get(self.start_of(address), "")

    def start_of(self, address: int) -> int:
        """Return the address of the function that contains an address; 0 before the first."""
        index = bisect_right(self._starts, address)
        return self._starts[index - 1] if index else 0

    @cached_property
    def conditional(self) -> frozenset[int]:
        """Return the addresses of the instructions that an IT instruction makes conditional."""
        found: list[int] = []
        left = 0
        for address in sorted(self.instructions):
            if left:
                found.append(address)
                left -= 1
            if self.instructions[address].kind is Kind.IT:
                left = len(self.instructions[address].mnemonic) - 1
        return frozenset(found)

    @cached_property
    def _starts(self) -> list[int]:
        return sorted(self.functions)


def disassemble(elf: Path, target: Target) -> Code:
    """Disassemble a program for a Cortex-M or RISC-V.

    Raises:
        ToolError: the disassembler is missing or failed.
    """
    command = [find_tool(f"{target.cross}objdump"), "--disassemble"]
    # Without this option, GNU objdump prints vector instructions as coprocessor instructions.
    command += ["--architecture=armv8.1-m.main"] if "mve" in target.features else []
    ran = run_tool([*command, str(elf)])
    if ran.status != 0:
        raise ToolError(f"{command[0]} cannot read {elf}: {ran.errors.strip()}")
    decode = riscv_instruction if target.is_riscv else instruction
    instructions: dict[int, Instruction] = {}
    functions: dict[int, str] = {}
    for line in ran.output.splitlines():
        if found := _INSTRUCTION.match(line):
            place, raw, mnemonic, operands = found.groups()
            address, size = int(place, 16), len(raw.replace(" ", "")) // 2
            text = _COMMENT.sub("", operands or "").strip()
            instructions[address] = decode(address, size, mnemonic, text)
        elif found := _FUNCTION.match(line):
            functions[int(found.group(1), 16)] = found.group(2)
    if not instructions:
        raise ToolError(f"{command[0]} finds no instructions in {elf}")
    return Code(instructions, functions)


_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\t([0-9a-f ]+?)\s*\t([a-z][\w.]*)\s*(?:\t(.*))?$")
_FUNCTION = re.compile(r"([0-9a-f]+) <([\w.$]+)>:$")
_COMMENT = re.compile(r"\s*[@;].*")


def source_lines(elf: Path, source: str) -> list[tuple[int, int]]:
    """Return the address at which the code of each line of a C file begins.

    Args:
        elf: program compiled with at least `-g1`.
        source: name of the C file as given to the compiler.

    Returns:
        Pairs of address and line number, sorted.

    Raises:
        ToolError: the ELF has no debug information about that file.
    """
    try:
        with elf.open("rb") as file:
            found = _rows(ELFFile(file), source)
    except (ELFError, DWARFError, OSError) as error:
        raise ToolError(f"the debug information of {elf} cannot be read: {error}") from error
    if not found:
        raise ToolError(f"{elf} has no debug information about {source}: was it compiled with -g?")
    return sorted(found)


def _rows(elf: ELFFile, source: str) -> list[tuple[int, int]]:
    if not elf.has_dwarf_info():
        return []
    information = elf.get_dwarf_info()
    for unit in information.iter_CUs():
        name = unit.get_top_DIE().attributes.get("DW_AT_name")
        program = information.line_program_for_CU(unit)
        if name is None or program is None or name.value.decode() != source:
            continue
        states = (entry.state for entry in program.get_entries())
        return [(s.address, s.line) for s in states if s is not None and not s.end_sequence]
    return []


def line_at(lines: list[tuple[int, int]], address: int) -> int | None:
    """Return the source line of the instruction at an address; `lines` is from `source_lines`."""
    index = bisect_right(lines, (address, 1 << 62))
    return lines[index - 1][1] if index else None

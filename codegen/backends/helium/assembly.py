"""Text of Helium (MVE) functions in assembly, and what they keep to.

Functions are naked: all registers are theirs, in the way that the procedure call standard (AAPCS32)
leaves them. VMLADAVA adds up in even registers only; so these hold the sums, `ACCUMULATORS`, and
odd ones hold pointers.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from smelt.codegen.backends.helium.instruction_schedule import scheduled

ACCUMULATORS = ("r0", "r2", "r4", "r6", "r8", "r10", "r12", "lr")
"""In the order in which LDM and STM move them."""

_VECTORS = 64
"""Bytes of the vector registers that a function saves."""
_SAVED = _VECTORS + 13 * 4

_STRING_LIMIT = 3000
"""Characters in one C string; compilers need not take more than 4095."""


AssemblyLines = tuple[tuple[tuple[str, str], ...], ...]
"""Blocks of lines, each an instruction or a comment ("note") and its text."""


@dataclass
class HeliumAssembly:
    """Instructions and comments, in order."""

    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    below: int = 0
    """Bytes that the function took from the stack after `enter`."""

    def __call__(self, *instructions: str) -> None:
        """Append instructions."""
        self.lines += [("instruction", text) for text in instructions]

    def note(self, text: str) -> None:
        """Append a comment."""
        self.lines.append(("note", text))

    @contextmanager
    def overlapping(self) -> Generator[None, None, None]:
        """What is appended within - no labels, branches, predicates - is put in a better order."""
        begin = len(self.lines)
        yield
        texts = [text for _, text in self.lines[begin:]]
        self.lines[begin:] = [("instruction", text) for text in scheduled(texts)]

    @property
    def body(self) -> AssemblyLines:
        """The lines, in blocks that one C string may hold."""
        blocks: list[list[tuple[str, str]]] = [[]]
        length = 0
        for line in self.lines:
            if length > _STRING_LIMIT and blocks[-1][-1][0] != "note":
                blocks.append([])
                length = 0
            blocks[-1].append(line)
            length += len(line[1]) + 2 if line[0] == "instruction" else 0
        return tuple(map(tuple, blocks))

    def enter(self) -> None:
        """Save the arguments and what the caller keeps."""
        self("push {r0-r11, lr}", "vpush {d8-d15}")

    def argument(self, index: int) -> str:
        """The address of an argument after `enter`."""
        at = _VECTORS + 4 * index if index < 4 else _SAVED + 4 * (index - 4)
        return f"[sp, #{self.below + at}]"

    def leave(self) -> None:
        """Undo `enter` and return."""
        self("vpop {d8-d15}", "add sp, #16", "pop {r4-r11, pc}")

    def constant(self, register: str, value: int) -> None:
        """Load a number into a register."""
        word = value & 0xFFFFFFFF
        self(f"movw {register}, #{word & 0xFFFF}")
        if word >> 16:
            self(f"movt {register}, #{word >> 16}")

    def add(self, target: str, source: str, value: int, spare: str) -> None:
        """Set a register to another plus a number, whatever its size; may use a spare register."""
        if value == 0:
            self(f"mov {target}, {source}")
        elif abs(value) < 4096:
            self(f"{'addw' if value >= 0 else 'subw'} {target}, {source}, #{abs(value)}")
        else:
            self.constant(spare, value)
            self(f"add {target}, {source}, {spare}")


def braces(registers: tuple[str, ...]) -> str:
    """A register list."""
    return "{" + ", ".join(registers) + "}"

"""Text of Helium (MVE) functions in assembly, and their conventions.

Functions are naked: the compiler adds no prologue or epilogue, so they save and restore registers
themselves, as the procedure call standard (AAPCS32) requires. VMLADAVA accumulates in even
registers only. These hold the sums (`ACCUMULATORS`); odd registers hold pointers.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from smelt.codegen.backends.helium.instruction_schedule import scheduled

ACCUMULATORS = ("r0", "r2", "r4", "r6", "r8", "r10", "r12", "lr")
"""Registers of the sums, in the order in which LDM and STM access them."""

_VECTORS = 64
"""Bytes of the vector registers that a function saves."""
_SAVED = _VECTORS + 9 * 4
"""Bytes of the callee-saved registers that a function saves: d8-d15, r4-r11 and lr."""

PLAIN = "!defined(__GNUC__) || !defined(__ARM_FEATURE_MVE)"
"""Preprocessor condition for what only plain C uses."""

AssemblyLines = tuple[tuple[str, str], ...]
"""Lines of assembly; a line is its kind ("instruction" or "note", a comment) and its text."""


@dataclass
class HeliumAssembly:
    """A list of instructions and comments."""

    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    below: int = 0
    """Bytes that the function allocated on the stack after `enter`."""
    _arguments: int = 0
    """Bytes of r0-r3 on the stack."""

    def __call__(self, *instructions: str) -> None:
        """Append instructions; an offset of 0 is not written."""
        self.lines += [("instruction", text.replace(", #0]", "]")) for text in instructions]

    def note(self, text: str) -> None:
        """Append a comment."""
        self.lines.append(("note", text))

    @contextmanager
    def overlapping(self) -> Generator[None, None, None]:
        """Reorder the instructions appended in this context so that they stall less.

        Labels, branches and predicated instructions are not allowed.
        """
        begin = len(self.lines)
        yield
        texts = tuple(text for _, text in self.lines[begin:])
        self.lines[begin:] = [("instruction", text) for text in scheduled(texts)]

    @property
    def body(self) -> AssemblyLines:
        """The lines so far."""
        return tuple(self.lines)

    def enter(self, arguments: int = 0) -> None:
        """Save the callee-saved registers, and the first arguments, none, one or four."""
        saved = {0: "r4-r11", 1: "r0, r4-r11", 4: "r0-r11"}[arguments]
        self(f"push {{{saved}, lr}}", "vpush {d8-d15}")
        self.saved(arguments)

    def saved(self, arguments: int) -> None:
        """Record what the function that jumps to this one has saved with `enter`."""
        self._arguments = 4 * arguments

    def argument(self, index: int) -> str:
        """Return the address operand of an argument, valid after `enter`.

        Arguments 0 to 3 have one only if `enter` saved them.
        """
        at = _VECTORS + 4 * index if index < 4 else _SAVED + self._arguments + 4 * (index - 4)
        return f"[sp, #{self.below + at}]"

    def leave(self) -> None:
        """Restore what `enter` saved and return to the caller."""
        self("vpop {d8-d15}")
        if self._arguments:
            self(f"add sp, #{self._arguments}")
        self("pop {r4-r11, pc}")

    def constant(self, register: str, value: int) -> None:
        """Load a constant into a register."""
        word = value & 0xFFFFFFFF
        self(f"movw {register}, #{word & 0xFFFF}")
        if word >> 16:
            self(f"movt {register}, #{word >> 16}")

    def add(self, target: str, source: str, value: int, spare: str) -> None:
        """Set `target` to `source` plus a constant; a constant of 4096 or more changes `spare`."""
        if value == 0:
            self(f"mov {target}, {source}")
        elif abs(value) < 4096:
            self(f"{'addw' if value >= 0 else 'subw'} {target}, {source}, #{abs(value)}")
        else:
            self.constant(spare, value)
            self(f"add {target}, {source}, {spare}")


def braces(registers: tuple[str, ...]) -> str:
    """Return the text of a register list."""
    return "{" + ", ".join(registers) + "}"

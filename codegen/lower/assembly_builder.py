"""Assembly as calls in Python: what no instruction can encode is refused where it is written.

A subclass of `Assembler` is an instruction set: each instruction is an attribute, an `Opcode`,
whose form checks the operands; a call of it appends a line to a statement of assembly in C. As the
builder knows how long each instruction is, it checks how far branches go, and that reads and writes
of the stack lie in the function's own part of it.

It does not follow which registers are in use. Functions are naked (`SMELT_NAKED`): they save and
restore registers themselves, as the procedure call standard asks. What kernels cost is measured,
and not counted here; `instructions` is for tests, which compare them with what an assembler makes
of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, ParamSpec, TypeVar

from smelt.codegen.lower.registers import EncodingError, Register
from smelt.targets.instructions import Instruction, instruction

P = ParamSpec("P")
CodeT = TypeVar("CodeT", bound="Assembler")
_ON_STACK = re.compile(r"\bsp(?:, #(\d+)\]|\]|, \{)")

LONGEST = 4095
"""Characters that C compilers need to take in a string (C99, section 5.2.4.1)."""

_START = '        ".syntax unified\\n"'
"""What every statement begins with."""


class Opcode(Generic[P]):
    """An instruction of one form: a function that checks the operands and returns their text.

    Calls return the code, so that a line of Python may be a step: load, compute, store.
    """

    def __init__(self, form: Callable[P, str], name: str = "", size: int = 2) -> None:
        self._form, self._name, self._size = form, name, size

    def __set_name__(self, owner: type[Assembler], name: str) -> None:
        self._name = self._name or name.rstrip("_")

    def __get__(self, code: CodeT, owner: type[CodeT]) -> Callable[P, CodeT]:
        def append(*operands: P.args, **named: P.kwargs) -> CodeT:
            code.emit(self._name, self._form(*operands, **named), size=self._size)
            return code

        return append


class Label:
    """A place in the code. Branches name it by a digit: the next or the last place of that one."""

    def __init__(self, digit: int) -> None:
        self.digit = digit


@dataclass(frozen=True)
class Reach:
    """How far a branch goes: bytes from its address plus 4."""

    back: int
    forward: int


@dataclass
class _KeptLines:
    """Lines of C that stay in one statement, and how long their strings are together."""

    lines: list[str]
    length: int


class Assembler:
    """Instructions one after the other."""

    def __init__(self) -> None:
        self._pieces: list[_KeptLines] = []
        self._code: list[tuple[int, str, str]] = []
        self._size = 0
        self._repeats = False
        self._labels: dict[int, tuple[Label, int]] = {}
        self._waiting: list[tuple[int, Label, Reach]] = []

    @property
    def statements(self) -> tuple[str, ...]:
        """The lines of a statement of C, or of several: no compiler need take a longer string.

        They follow each other in a function that consists of nothing else (`naked`), so that no
        code comes between them.
        """
        if self._waiting:
            raise EncodingError(f"label {self._waiting[0][1].digit} stands nowhere")
        whole = sum(piece.length for piece in self._pieces) <= LONGEST
        found, length = [list[str]()], 0
        for piece in self._pieces:
            if not whole and length and length + piece.length > LONGEST - len(_START.strip()):
                found.append([_START])
                length = 0
            found[-1] += piece.lines
            length += piece.length
        return tuple("\n".join(lines) for lines in found)

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions as they lie in memory, repeated ones as often as they do."""
        ends = accumulate((size for size, _, _ in self._code), initial=0)
        return tuple(instruction(at, *code) for at, code in zip(ends, self._code, strict=False))

    def describe(self, text: str) -> None:
        """A comment before the code: which register holds what."""
        self._write("/*", *(f" * {line}" for line in text.split("\n")), " */")

    def comment(self, text: str) -> None:
        """A comment on a line of its own."""
        self._write(f"        /* {text} */")

    def blank(self) -> None:
        """An empty line, where nothing need be done."""
        self._write("")

    def start(self) -> None:
        """What every statement begins with, the first one here."""
        self._write(_START, length=len(".syntax unified\n"))

    def place(self, label: Label) -> None:
        """The place of a label."""
        if self._repeats:
            raise EncodingError("a label in a repeated part would stand in several places")
        mine = [waiting for waiting in self._waiting if waiting[1].digit == label.digit]
        for at, wanted, reach in mine:
            if wanted is not label:
                raise EncodingError(f"another label {label.digit} stands before the one meant")
            _check_distance(at, self._size, reach)
            self._waiting.remove((at, wanted, reach))
        self._labels[label.digit] = label, self._size
        self._write_code(f"{label.digit}:")

    def here(self, digit: int) -> Label:
        """A new label at this place."""
        label = Label(digit)
        self.place(label)
        return label

    @contextmanager
    def repeat(self, count: int) -> Generator[None]:
        """What is written within, so many times."""
        self._write_code(f".rept {count}")
        first, size, self._repeats = len(self._code), self._size, True
        yield
        self._write_code(".endr")
        self._repeats = False
        self._code += self._code[first:] * (count - 1)
        self._size += (self._size - size) * (count - 1)

    @contextmanager
    def stack(self, room: int) -> Generator[None]:
        """What is written within has so many bytes on the stack for itself."""
        first = len(self._code)
        yield
        for _, mnemonic, operands in self._code[first:]:
            offset = _ON_STACK.search(operands)
            words = operands.count(",") if mnemonic in ("ldm", "stm") else 1
            if offset and int(offset[1] or 0) + 4 * words > room:
                raise EncodingError(f"{mnemonic} {operands} lies beyond {room} bytes of the stack")

    def emit(self, mnemonic: str, operands: str, *, size: int = 2, note: str = "") -> None:
        """One instruction of so many bytes, whose operands have been checked."""
        self._code.append((size, mnemonic, operands))
        self._size += size
        self._write_code(f"{mnemonic} {operands}", note)

    def branch(
        self,
        mnemonic: str,
        label: Label,
        reach: Reach,
        *,
        register: Register | None = None,
        size: int = 2,
        note: str = "",
    ) -> None:
        """A branch to a label, before or behind it, which may depend on a register."""
        if self._repeats:
            raise EncodingError("a branch in a repeated part would come from several places")
        placed, at = self._labels.get(label.digit, (None, 0))
        if placed is label:
            _check_distance(self._size, at, reach)
        else:
            self._waiting.append((self._size, label, reach))
        place = f"{label.digit}{'b' if placed is label else 'f'}"
        self.emit(mnemonic, f"{register}, {place}" if register else place, size=size, note=note)

    def _write_code(self, text: str, note: str = "") -> None:
        """A line for the assembler."""
        note = f" /* {note} */" if note else ""
        self._write(f'        "{text}\\n"{note}', length=len(text) + 1)

    def _write(self, *lines: str, length: int = 0) -> None:
        """Lines of C, whose strings are so long; what is repeated stays together."""
        if self._repeats:
            self._pieces[-1].lines += lines
            self._pieces[-1].length += length
        else:
            self._pieces.append(_KeptLines([*lines], length))


def _check_distance(source: int, target: int, reach: Reach) -> None:
    distance = target - source - 4
    if not -reach.back <= distance <= reach.forward:
        raise EncodingError(f"a branch over {distance} bytes is too far")


def joined(*operands: object) -> str:
    """Operands side by side."""
    return ", ".join(map(str, operands))


def immediate(value: int, most: int, *, least: int = 0, step: int = 1) -> str:
    """A number of an instruction, if it is one that has room there."""
    if not least <= value <= most or value % step:
        raise EncodingError(f"{value} is no multiple of {step} from {least} to {most}")
    return f"#{value}"

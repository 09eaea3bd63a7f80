"""An assembler in Python: each instruction is a method that checks its operands.

A subclass of `Assembler` is an instruction set. Each instruction is an attribute of type `Opcode`,
whose form checks the operands. Calling the attribute appends a line to a C statement with inline
assembly.
The builder knows the size of each instruction, so it also checks the distance of branches, and that
stack accesses stay within the function's own stack frame.

The builder does not track which registers are in use. Functions are naked (`SMELT_NAKED`): they
save and restore registers themselves, as the procedure call standard requires. The builder does not
estimate the cost of kernels: the cost is measured. The property `instructions` is for tests: they
compare it with the output of a real assembler for the same text.
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


class Opcode(Generic[P]):
    """An instruction with one operand form: a function that checks operands and returns their text.

    A call returns the assembler, so that calls can be chained: load, compute, store.
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
    """A position in the code. A branch names the nearest label with this digit, before or after."""

    def __init__(self, digit: int) -> None:
        self.digit = digit


@dataclass(frozen=True)
class BranchRange:
    """The range of a branch in bytes, relative to its address plus 4."""

    back: int
    forward: int


class Assembler:
    """A sequence of instructions."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._code: list[tuple[int, str, str]] = []
        self._size = 0
        self._repeats = False
        self._labels: dict[int, tuple[Label, int]] = {}
        self._waiting: list[tuple[int, Label, BranchRange]] = []

    @property
    def text(self) -> str:
        """The lines of the C statement (see `asm_statement`)."""
        if self._waiting:
            raise EncodingError(f"label {self._waiting[0][1].digit} is never placed")
        return "\n".join(self._lines)

    @property
    def size(self) -> int:
        """Bytes of code so far."""
        return self._size

    @property
    def count(self) -> int:
        """The number of instructions so far, with repetitions expanded."""
        return len(self._code)

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions in memory order, with repetitions expanded."""
        ends = accumulate((size for size, _, _ in self._code), initial=0)
        return tuple(instruction(at, *code) for at, code in zip(ends, self._code, strict=False))

    def describe(self, text: str) -> None:
        """Add a comment before the code, which says what each register contains."""
        lines = (f"         * {line}" for line in text.split("\n"))
        self._lines += ["        /*", *lines, "         */"]

    def comment(self, text: str) -> None:
        """Add a comment on a line of its own."""
        self._lines.append(f"        /* {text} */")

    def blank(self) -> None:
        """Add an empty line, unless the last line is empty."""
        if self._lines[-1:] != [""]:
            self._lines.append("")

    def start(self) -> None:
        """Add the first line of the statement."""
        self._lines.append('        ".syntax unified\\n"')

    def place(self, label: Label) -> None:
        """Place a label here."""
        if self._repeats:
            raise EncodingError("a label in a repeated part would have several positions")
        mine = [waiting for waiting in self._waiting if waiting[1].digit == label.digit]
        for at, wanted, reach in mine:
            if wanted is not label:
                raise EncodingError(
                    f"another label {label.digit} is placed before the target of a branch"
                )
            _check_distance(at, self._size, reach)
            self._waiting.remove((at, wanted, reach))
        self._labels[label.digit] = label, self._size
        self._write_code(f"{label.digit}:")

    def here(self, digit: int) -> Label:
        """Return a new label placed here."""
        label = Label(digit)
        self.place(label)
        return label

    @contextmanager
    def repeat(self, count: int) -> Generator[None]:
        """Repeat the instructions of the `with` block `count` times."""
        if count == 1:
            yield
            return
        self._write_code(f".rept {count}")
        first, size, self._repeats = len(self._code), self._size, True
        yield
        self._write_code(".endr")
        self._repeats = False
        self._code += self._code[first:] * (count - 1)
        self._size += (self._size - size) * (count - 1)

    @contextmanager
    def stack(self, room: int) -> Generator[None]:
        """Check that stack accesses in the `with` block stay within `room` bytes."""
        first = len(self._code)
        yield
        for _, mnemonic, operands in self._code[first:]:
            offset = _ON_STACK.search(operands)
            words = operands.count(",") if mnemonic in ("ldm", "stm") else 1
            if offset and int(offset[1] or 0) + 4 * words > room:
                raise EncodingError(f"{mnemonic} {operands} accesses the stack beyond {room} bytes")

    def emit(self, mnemonic: str, operands: str, *, size: int = 2, note: str = "") -> None:
        """Append one instruction of `size` bytes; its operands must be checked already."""
        self._code.append((size, mnemonic, operands))
        self._size += size
        self._write_code(f"{mnemonic} {operands}", note)

    def branch(
        self,
        mnemonic: str,
        label: Label,
        reach: BranchRange,
        *,
        register: Register | None = None,
        size: int = 2,
        note: str = "",
    ) -> None:
        """Append a branch to a label before or after it; `register` is for compare-and-branch."""
        if self._repeats:
            raise EncodingError("a branch in a repeated part would have several positions")
        placed, at = self._labels.get(label.digit, (None, 0))
        if placed is label:
            _check_distance(self._size, at, reach)
        else:
            self._waiting.append((self._size, label, reach))
        place = f"{label.digit}{'b' if placed is label else 'f'}"
        self.emit(mnemonic, f"{register}, {place}" if register else place, size=size, note=note)

    def align(self) -> None:
        """Align what follows to a word."""
        self._write_code(".p2align 2")
        self._size += -self._size % 4

    def word(self, value: str) -> None:
        """Add a word of data, the value of an expression."""
        self._write_code(f".word {value}")
        self._size += 4

    def _write_code(self, text: str, note: str = "") -> None:
        """Add a line for the assembler."""
        note = f" /* {note} */" if note else ""
        self._lines.append(f'        "{text}\\n"{note}')


def _check_distance(source: int, target: int, reach: BranchRange) -> None:
    distance = target - source - 4
    if not -reach.back <= distance <= reach.forward:
        raise EncodingError(f"a branch over {distance} bytes is too far")


def joined(*operands: object) -> str:
    """Return operands separated by commas."""
    return ", ".join(map(str, operands))


def address(base: object, offset: object | None = None) -> str:
    """Return an operand in memory; an offset of 0 is not written."""
    return f"[{base}]" if offset in (None, "#0") else f"[{base}, {offset}]"


def immediate(value: int, most: int, *, least: int = 0, step: int = 1) -> str:
    """Return an immediate operand; raise if the instruction cannot encode it."""
    if not least <= value <= most or value % step:
        raise EncodingError(f"{value} is not a multiple of {step} from {least} to {most}")
    return f"#{value}"

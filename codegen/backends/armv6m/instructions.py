"""The instructions of Armv6-M (Armv6-M Architecture Reference Manual, DDI 0419, chapter A6)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Self

from smelt.codegen.lower.assembly_builder import (
    Assembler,
    BranchRange,
    Label,
    Opcode,
    address,
    immediate,
    joined,
)
from smelt.codegen.lower.registers import (
    LR,
    PC,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
    R11,
    SP,
    EncodingError,
    Low,
    Register,
    listed,
)

CONDITION = "defined(__GNUC__) && defined(__thumb__) && !defined(__thumb2__)"
"""Preprocessor condition for this assembly."""

_SAVED = ((R4, R8), (R5, R9), (R6, R10), (R7, R11))


def _low(*operands: object) -> str:
    for operand in operands:
        if isinstance(operand, Register) and not isinstance(operand, Low):
            raise EncodingError(f"{operand} is not one of r0 to r7")
    return joined(*operands)


def _two(d: Low, m: Low) -> str:
    return _low(d, m)


def _two_of_all(d: Register, m: Register) -> str:
    return joined(d, m)


def _low_or_byte(d: Low, m: Low | int) -> str:
    return _low(d, immediate(m, 255) if isinstance(m, int) else m)


def _compared(n: Register, m: Register | int) -> str:
    return _low(n, immediate(m, 255)) if isinstance(m, int) else joined(n, m)


def _sum(d: Low, n: Low | int, m: Low | int | None = None) -> str:
    """Return the operands: `d` and an immediate up to 255, or `n` and a register or up to 7."""
    if isinstance(n, int):
        return _low(d, immediate(n, 255))
    return _low(d, n, immediate(m, 7) if isinstance(m, int) else m)


def _left(d: Low, m: Low, shift: int) -> str:
    return _low(d, m, immediate(shift, 31))


def _right(d: Low, m: Low, shift: int | None = None) -> str:
    """Return the operands: `d` is `m` shifted by an immediate, or itself by the register `m`."""
    return _low(d, m) if shift is None else _low(d, m, immediate(shift, 32, least=1))


def _word(d: Low, base: Register, offset: int) -> str:
    number = immediate(offset, 1020 if base == SP else 124, step=4)
    return f"{_low(d)}, {address(base if base == SP else _low(base), number)}"


def _byte(d: Low, base: Low, offset: Low | int | None = None) -> str:
    at = None if offset is None else _low(offset)
    at = immediate(offset, 31) if isinstance(offset, int) else at
    return f"{_low(d)}, {address(_low(base), at)}"


def _indexed(d: Low, base: Low, index: Low) -> str:
    return f"{_low(d)}, [{_low(base, index)}]"


def _many(base: Low, registers: Sequence[Low]) -> str:
    _low(*registers)
    return f"{_low(base)}!, {listed(registers)}"


def _stack(registers: Sequence[Register]) -> str:
    """Return the list of PUSH or POP: low registers, perhaps followed by lr or pc."""
    _low(*registers[:-1])
    return listed(registers)


def _room(size: int) -> str:
    return joined(SP, immediate(size, 508, step=4))


SAVED_BYTES = 36
"""Bytes of registers that a function saves on the stack."""


class Armv6m(Assembler):
    """Functions for Cortex-M0 and M0+."""

    mov, add = Opcode(_two_of_all), Opcode(_two_of_all)
    movs, cmp = Opcode(_low_or_byte), Opcode(_compared)
    mvns, negs, sxtb = Opcode(_two), Opcode(_two), Opcode(_two)
    adcs, ands, muls = Opcode(_two), Opcode(_two), Opcode(_two)
    adds, subs = Opcode(_sum), Opcode(_sum)
    lsls, asrs = Opcode(_left), Opcode(_right)
    ldr, str_ = Opcode(_word), Opcode(_word)
    ldrsb, strb = Opcode(_indexed), Opcode(_byte)
    ldmia, stmia = Opcode(_many), Opcode(_many)
    push, pop = Opcode(_stack), Opcode(_stack)
    take, give = Opcode(_room, "sub"), Opcode(_room, "add")

    def b(self, label: Label, condition: str = "") -> Self:
        """Branch to a label, if the condition holds."""
        self.branch(
            f"b{condition}", label, BranchRange(256, 254) if condition else BranchRange(2048, 2046)
        )
        return self

    def bl(self, label: Label, note: str) -> Self:
        """Branch to a label at any distance; changes lr."""
        self.branch("bl", label, BranchRange(1 << 24, (1 << 24) - 2), size=4, note=note)
        return self

    def constant(self, d: Low, value: int) -> Self:
        """`d = value`; the value must not be negative."""
        digits = [value >> shift & 255 for shift in (24, 16, 8, 0)]
        while len(digits) > 1 and not digits[0]:
            digits = digits[1:]
        self.movs(d, digits[0])
        shift = 0
        for digit in digits[1:]:
            shift += 8
            if digit:
                self.lsls(d, d, shift)
                self.adds(d, digit)
                shift = 0
        if shift:
            self.lsls(d, d, shift)
        return self

    def advance(self, d: Low, distance: int, spare: Low) -> None:
        """`d += distance`; `spare` may change."""
        change, size = (self.adds, distance) if distance >= 0 else (self.subs, -distance)
        if size > 510:
            self.constant(spare, size)
            change(d, d, spare)
        elif size:
            for step in (size,) if size <= 255 else (255, size - 255):
                change(d, step)
        else:
            self.blank()

    @contextmanager
    def function(self, stack_bytes: int, *, arguments: int = 0) -> Generator[None]:
        """Write a function that preserves its caller's registers.

        Args:
            stack_bytes: bytes of stack that the function uses for itself.
            arguments: arguments on the stack; the first one is `SAVED_BYTES` behind these bytes.
        """
        self.start()
        low = tuple(low for low, _ in _SAVED)
        self.push((*low, LR))
        for register, high in _SAVED:
            self.mov(register, high)
        self.push(low)
        self.take(stack_bytes)
        behind = SAVED_BYTES + 4 * arguments if arguments else 0
        with self.stack(stack_bytes + behind):
            yield
        self.give(stack_bytes)
        self.pop(low)
        for register, high in _SAVED:
            self.mov(high, register)
        self.pop((*low, PC))

"""The instructions of Armv7-M (Armv7-M Architecture Reference Manual, DDI 0403, chapter A7).

Assemblers choose between 16-bit and 32-bit encodings; sizes here are upper limits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from smelt.codegen.lower.assembly_builder import (
    Assembler,
    BranchRange,
    Label,
    Opcode,
    P,
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

CONDITION = "defined(__GNUC__) && defined(__thumb2__)"
"""Preprocessor condition for this assembly."""

_SAVED = (R4, R5, R6, R7, R8, R9, R10, R11)


@dataclass(frozen=True)
class Shifted:
    """A register operand that the instruction shifts first."""

    register: Register
    kind: str
    amount: int

    def __str__(self) -> str:
        return f"{self.register}, {self.kind} {immediate(self.amount, 31, least=1)}"


def asr(register: Register, amount: int) -> Shifted:
    """Return the register, shifted right arithmetically."""
    return Shifted(register, "asr", amount)


def lsl(register: Register, amount: int) -> Shifted:
    """Return the register, shifted left."""
    return Shifted(register, "lsl", amount)


def lsr(register: Register, amount: int) -> Shifted:
    """Return the register, shifted right logically."""
    return Shifted(register, "lsr", amount)


def _modified(value: int) -> str:
    """Return a modified immediate.

    It is a shifted byte, or a byte repeated: in the low or high byte of both halves, or in all
    four bytes. Small negative numbers are accepted too: assemblers replace the instruction.
    """
    byte = value & 0xFF
    if value > 0xFF and value == byte * 0x10001:
        return f"#0x{value:08x}"
    shift = max(value.bit_length() - 8, 0)
    halves = (value >> 8 & 0xFF) * 0x1000100
    if 0 <= value < 1 << 32 and value in (value >> shift << shift, halves, byte * 0x1010101):
        return f"#{value}"
    if -256 < value < 0:
        return f"#{value}"
    raise EncodingError(f"{value} is not a modified immediate")


def _operand(operand: Register | Shifted | int) -> str:
    return _modified(operand) if isinstance(operand, int) else str(operand)


def _two(d: Register, m: Register | int) -> str:
    return joined(d, _operand(m))


def _three(d: Register, n: Register, m: Register | Shifted | int) -> str:
    return joined(d, n, _operand(m))


def _sum(d: Register, n: Register, m: Register | Shifted | int) -> str:
    """Return the operands of ADD or SUB; an immediate may be up to 4095."""
    return joined(d, n, f"#{m}") if isinstance(m, int) and 0 <= m < 1 << 12 else _three(d, n, m)


def _sum_with_flags(d: Register, n: Register | int, m: Register | int | None = None) -> str:
    """Return the operands: `d` and an immediate up to 255, or `d`, `n` and another operand."""
    return joined(d, immediate(n, 255)) if isinstance(n, int) else joined(d, n, _operand(m or 0))


def _upto(most: int) -> Callable[[Register, int], str]:
    def form(d: Register, value: int) -> str:
        return joined(d, immediate(value, most))

    return form


def _sum_12(d: Register, n: Register, value: int) -> str:
    return joined(d, n, immediate(value, 4095))


def _shift(d: Register, m: Register, amount: int) -> str:
    return joined(d, m, immediate(amount, 32, least=1))


def _mul(d: Register, n: Register, m: Register) -> str:
    return joined(d, n, m)


def _mul_16(d: Low, n: Low, m: Low) -> str:
    if m != d:
        raise EncodingError(f"the last operand of MULS must be its result {d}, not {m}")
    return joined(d, n, m)


def _mla(d: Register, n: Register, m: Register, addend: Register) -> str:
    return joined(d, n, m, addend)


def _saturated(d: Register, bits: int, m: Shifted) -> str:
    return joined(d, immediate(bits, 32, least=1), m)


def _condition(condition: str) -> str:
    return condition


def _offset(d: Register, base: Register, offset: Register | Shifted | int | None = None) -> str:
    at = immediate(offset, 4095) if isinstance(offset, int) else offset
    return f"{d}, {address(base, at)}"


def _then(d: Register, base: Register, step: int) -> str:
    """Return the operands of a load or store that advances its base afterwards."""
    return f"{d}, [{base}], {immediate(step, 255, least=-255)}"


def _pair(d: Register, second: Register, base: Register, offset: int = 0) -> str:
    return f"{d}, {second}, {address(base, immediate(offset, 1020, step=4))}"


def _many(base: Register, registers: Sequence[Register]) -> str:
    return f"{base}, {listed(registers)}"


def _many_then(base: Register, registers: Sequence[Register]) -> str:
    if base in registers:
        raise EncodingError(f"{base} would be both loaded and advanced")
    return f"{base}!, {listed(registers)}"


def _stack(registers: Sequence[Register]) -> str:
    return listed(registers)


def _room(size: int) -> str:
    return joined(SP, immediate(size, 4092, step=4))


def _wide(form: Callable[P, str], name: str = "") -> Opcode[P]:
    """Return an instruction that may take 32 bits."""
    return Opcode(form, name, size=4)


class Armv7m(Assembler):
    """Functions for Cortex-M3."""

    mov, cmp, movs = _wide(_two), _wide(_two), Opcode(_upto(255))
    moveq, movgt, movlt, mvnlt = _wide(_two), _wide(_two), _wide(_two), _wide(_two)
    movw, movt = _wide(_upto(0xFFFF)), _wide(_upto(0xFFFF))
    add, sub, and_ = _wide(_sum), _wide(_sum), _wide(_three)
    addw, subw = _wide(_sum_12), _wide(_sum_12)
    adds, subs = _wide(_sum_with_flags), _wide(_sum_with_flags)
    asr, asrs, lsrs = _wide(_shift), _wide(_shift), _wide(_shift)
    mul, mla, muls = _wide(_mul), _wide(_mla), Opcode(_mul_16)
    ssat, it = _wide(_saturated), Opcode(_condition)
    ldr, str_, strb, ldrh = _wide(_offset), _wide(_offset), _wide(_offset), _wide(_offset)
    ldr_then, ldrsb_then = _wide(_then, "ldr"), _wide(_then, "ldrsb")
    strb_then, ldrd = _wide(_then, "strb"), _wide(_pair)
    ldm, ldmia_, stm = _wide(_many), _wide(_many), _wide(_many)
    ldmia = _wide(_many_then)
    push, pop = _wide(_stack), _wide(_stack)
    take, give = _wide(_room, "sub"), _wide(_room, "add")

    def at_most(self, d: Register, value: int) -> Self:
        """`d = min(d, value)`."""
        self.cmp(d, value)
        self.it("gt")
        self.movgt(d, value)
        return self

    def at_least(self, d: Register, value: int) -> Self:
        """`d = max(d, value)`."""
        self.cmp(d, value)
        self.it("lt")
        if value < 0:
            self.mvnlt(d, -1 - value)
        else:
            self.movlt(d, value)
        return self

    def b(self, label: Label, condition: str = "") -> Self:
        """Branch to a label, if the condition holds."""
        self.branch(f"b{condition}", label, BranchRange(1 << 20, (1 << 20) - 2), size=4)
        return self

    def cbz(self, n: Low, label: Label) -> Self:
        """Branch forward to a label if a register is 0."""
        if n.number > R7.number:
            raise EncodingError(f"{n} is not one of r0 to r7")
        self.branch("cbz", label, BranchRange(0, 126), register=n)
        return self

    def adr(self, d: Register, label: Label) -> Self:
        """Load the address of a label."""
        self.branch("adr", label, BranchRange(4095, 4095), register=d, size=4)
        return self

    def table(self, table: Label, labels: Sequence[Label]) -> None:
        """Place a table of the distances from it to labels behind it, plus 1 for jumps."""
        self.align()
        self.place(table)
        for label in labels:
            self.word(f"{label.digit}f - {table.digit}b + 1")

    def advance(self, d: Register, distance: int, spare: Register) -> None:
        """`d += distance`; `spare` may change."""
        size = abs(distance)
        if size == 0:
            self.blank()
        elif size < 1 << 12:
            (self.addw if distance > 0 else self.subw)(d, d, size)
        else:
            self.movw(spare, size & 0xFFFF)
            if size >> 16:
                self.movt(spare, size >> 16)
            (self.add if distance > 0 else self.sub)(d, d, spare)

    @contextmanager
    def function(
        self, stack_bytes: int, *, fifth: Register | tuple[Register, Register] | None = None
    ) -> Generator[None]:
        """Write a function that preserves its caller's registers.

        Args:
            stack_bytes: bytes of stack that the function uses for itself.
            fifth: the register into which the fifth argument is loaded, or those for two arguments.
        """
        self.start()
        self.push((*_SAVED, LR))
        if isinstance(fifth, tuple):
            self.ldrd(*fifth, SP, 4 * len(_SAVED) + 4)
        elif fifth:
            self.ldr(fifth, SP, 4 * len(_SAVED) + 4)
        self.take(stack_bytes)
        with self.stack(stack_bytes):
            yield
        self.leave(stack_bytes)

    def leave(self, stack_bytes: int) -> None:
        """Return from a function that has taken `stack_bytes` bytes of stack."""
        self.give(stack_bytes)
        self.pop((*_SAVED, PC))

"""The registers of Armv6-M and Armv7-M."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class EncodingError(ValueError):
    """That no instruction does what was asked for with these operands."""


@dataclass(frozen=True)
class Register:
    """A core register."""

    number: int

    def __str__(self) -> str:
        return {13: "sp", 14: "lr", 15: "pc"}.get(self.number, f"r{self.number}")


class Low(Register):
    """One of r0 to r7, the only ones that most instructions of 16 bits can name."""


R0, R1, R2, R3, R4, R5, R6, R7 = (Low(number) for number in range(8))
R8, R9, R10, R11, R12, SP, LR, PC = (Register(number) for number in range(8, 16))


def listed(registers: Sequence[Register]) -> str:
    """A list of registers, which are loaded and stored in the order of their numbers."""
    numbers = [register.number for register in registers]
    if not numbers or numbers != sorted(set(numbers)):
        raise EncodingError("registers of a list stand in the order of their numbers")
    return f"{{{', '.join(map(str, registers))}}}"

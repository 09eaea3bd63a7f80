"""The core registers of Armv6-M and Armv7-M."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class EncodingError(ValueError):
    """Raised if no instruction can encode the given operands."""


@dataclass(frozen=True)
class Register:
    """A core register."""

    number: int

    def __str__(self) -> str:
        return {13: "sp", 14: "lr", 15: "pc"}.get(self.number, f"r{self.number}")


class Low(Register):
    """One of r0 to r7; most 16-bit instructions can encode only these."""


R0, R1, R2, R3, R4, R5, R6, R7 = (Low(number) for number in range(8))
R8, R9, R10, R11, R12, SP, LR, PC = (Register(number) for number in range(8, 16))


def listed(registers: Sequence[Register]) -> str:
    """Return a register list; its registers are loaded and stored in ascending order.

    Raises:
        EncodingError: The list is empty or not in ascending order.
    """
    numbers = [register.number for register in registers]
    if not numbers or numbers != sorted(set(numbers)):
        raise EncodingError("the registers of a list must be in ascending order")
    return f"{{{', '.join(map(str, registers))}}}"

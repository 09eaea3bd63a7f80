"""The constants of a network as files: C arrays, or an assembler file around a binary one.

A compiler takes minutes, and many times the size of the weights in memory, to read a hundred
megabytes of decimal numbers. A large network's weights are therefore one binary file, which the
assembler includes piece by piece.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.lower.kernel import WIDE_FLOATS
from smelt.codegen.schedule.schedule import Schedule, StructType
from smelt.codegen.text.literals import c_elements, c_lines
from smelt.errors import ModelError
from smelt.ir import Array, DType

BINARY_FROM = 8 << 20
"""Bytes of constants from which they are a binary file."""


@dataclass(frozen=True)
class ConstantArray:
    """A constant as the templates see it.

    Attributes:
        name: in C.
        comment: whose constant it is.
        array: its value.
        start: where it begins in the binary file, if there is one.
        struct: its type, if it is a struct; the array has its fields.
    """

    name: str
    comment: str
    array: Array
    start: int
    struct: StructType | None = None

    @property
    def declaration(self) -> str:
        """Its type and name as C declares them."""
        if self.struct is not None:
            return f"{self.struct.name} {self.name}"
        return f"{self.c_type} {self.name}[{self.count}]"

    @property
    def c_type(self) -> str:
        """The C type of an element."""
        return DType.of(self.array).c_name

    @property
    def count(self) -> int:
        """How many elements it has in C, which has no arrays of none."""
        return max(self.array.size, 1)

    @property
    def bytes(self) -> int:
        """How many bytes of the binary file it takes."""
        return self.count * self.array.itemsize

    @property
    def lines(self) -> list[str]:
        """Its initializer in C.

        Raises:
            ModelError: an element is not a number.
        """
        elements = c_elements(self.array)
        if self.struct is not None:
            named = zip(elements, self.struct.fields, strict=True)
            return [f"{element}, /* {field} */" for element, field in named]
        return c_lines(elements or ["0"])


def is_binary(schedule: Schedule) -> bool:
    """Whether the constants are so large that they become a binary file."""
    return sum(array.nbytes for array in schedule.constants.values()) >= BINARY_FROM


def is_infinite(schedule: Schedule) -> bool:
    """Whether the C file of the constants says that one of them is, by a macro of math.h."""
    real = (a for a in schedule.constants.values() if DType.of(a) in WIDE_FLOATS)
    return not is_binary(schedule) and any(np.isinf(array).any() for array in real)


def constants_of(schedule: Schedule) -> tuple[ConstantArray, ...]:
    """Every constant, in order."""
    found: list[ConstantArray] = []
    start = 0
    for name, array in schedule.constants.items():
        comment, struct = schedule.constant_comments[name], schedule.structs.get(name)
        constant = ConstantArray(name, comment, array, start, struct)
        size = constant.bytes
        found.append(constant)
        start += size
    return tuple(found)


def stored(schedule: Schedule) -> dict[str, Array]:
    """Every constant as memory holds it, little-endian, by the name of its C array.

    Raises:
        ModelError: a constant is not a number.
    """
    return {name: _stored(array) for name, array in schedule.constants.items()}


def binary(schedule: Schedule) -> tuple[Array, ...]:
    """What the binary file holds: little-endian arrays, one right behind the other.

    Raises:
        ModelError: a constant is not a number.
    """
    return tuple(stored(schedule).values())


def _stored(array: Array) -> Array:
    if array.size == 0:
        return np.zeros(1, array.dtype)
    if array.dtype.kind == "f" and np.isnan(array.min()):
        raise ModelError("a NaN cannot be written as a constant")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))

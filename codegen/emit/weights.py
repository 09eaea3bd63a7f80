"""Files for a network's constants: C arrays, or an assembler file that includes a binary file.

A compiler needs minutes, and many times the memory of the weights, to read a hundred megabytes of
decimal numbers. Large weights are therefore stored in one binary file, which the assembler includes
piece by piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from smelt.codegen.lower.kernel import WIDE_FLOATS
from smelt.codegen.schedule.schedule import Schedule, StructType
from smelt.codegen.text.literals import c_elements, c_lines
from smelt.errors import ModelError
from smelt.ir import Array, DType

_SECTION = "SMELT_WEIGHTS_SECTION"

BINARY_FROM = 8 << 20
"""Smallest size of the constants, in bytes, for which they are written to a binary file."""


@dataclass(frozen=True)
class ConstantArray:
    """A constant, as the templates print it.

    Attributes:
        name: The C name.
        comment: The layer and role of the constant.
        array: The value.
        start: The offset in the binary file, if there is one.
        struct: Its type, if it is a struct; the array then has the values of its fields.
        memory: The memory of the board that stores it, if it is not the main one for constants.
    """

    name: str
    comment: str
    array: Array
    start: int
    struct: StructType | None = None
    memory: str = ""

    @property
    def declaration(self) -> str:
        """Its type and name as C declares them."""
        if self.struct is not None:
            return f"{self.struct.name} {self.name}"
        return f"{self.c_type} {self.name}[{self.count}]"

    @property
    def section(self) -> str:
        """The C macro of the attribute that places it."""
        return f"SMELT_WEIGHTS_{self.memory.upper()}_SECTION" if self.memory else _SECTION

    @property
    def c_type(self) -> str:
        """The C type of an element."""
        return DType.of(self.array).c_name

    @property
    def count(self) -> int:
        """The number of elements in C, which has no empty arrays."""
        return max(self.array.size, 1)

    @property
    def bytes(self) -> int:
        """The number of bytes in the binary file."""
        return self.count * self.array.itemsize

    @property
    def lines(self) -> list[str]:
        """The lines of the C initializer.

        Raises:
            ModelError: An element is not a number.
        """
        elements = c_elements(self.array)
        if self.struct is not None:
            named = zip(elements, self.struct.fields, strict=True)
            return [f"{element}, /* {field} */" for element, field in named]
        return c_lines(elements or ["0"])


def is_binary(schedule: Schedule) -> bool:
    """Return whether the constants are large enough for a binary file."""
    return sum(array.nbytes for array in schedule.constants.values()) >= BINARY_FROM


def has_infinite_weights(schedule: Schedule) -> bool:
    """Return whether the C file of the constants uses `INFINITY` from math.h."""
    real = (a for a in schedule.constants.values() if DType.of(a) in WIDE_FLOATS)
    return not is_binary(schedule) and any(np.isinf(array).any() for array in real)


def constants_of(schedule: Schedule, homes: Mapping[str, str]) -> tuple[ConstantArray, ...]:
    """Return every constant, in order; `homes` has the memories of those not in the main one."""
    found: list[ConstantArray] = []
    start = 0
    for name, array in schedule.constants.items():
        comment, struct = schedule.constant_comments[name], schedule.structs.get(name)
        constant = ConstantArray(name, comment, array, start, struct, homes.get(name, ""))
        size = constant.bytes
        found.append(constant)
        start += size
    return tuple(found)


def stored(schedule: Schedule) -> dict[str, Array]:
    """Return every constant in little-endian byte order, by the name of its C array.

    Raises:
        ModelError: An element is not a number.
    """
    return {name: _stored(array) for name, array in schedule.constants.items()}


def binary(schedule: Schedule) -> tuple[Array, ...]:
    """Return the contents of the binary file: little-endian arrays to be concatenated.

    Raises:
        ModelError: An element is not a number.
    """
    return tuple(stored(schedule).values())


def _stored(array: Array) -> Array:
    if array.size == 0:
        return np.zeros(1, array.dtype)
    if array.dtype.kind == "f" and np.isnan(array.min()):
        raise ModelError("a NaN cannot be written as a constant")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))

"""The constants of a network as files: C arrays, or an assembler file around a binary one.

A compiler takes minutes, and many times the size of the weights in memory, to read a hundred
megabytes of decimal numbers. A large network's weights are therefore one binary file, which the
assembler includes piece by piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from smelt.codegen.lower.offer import WIDE_FLOATS
from smelt.codegen.schedule.schedule import Schedule
from smelt.codegen.text.literals import c_elements, c_lines
from smelt.codegen.text.render import render
from smelt.errors import ModelError
from smelt.ir import Array, DType

BINARY_FROM = 8 << 20
"""Bytes of constants from which they are a binary file."""


@dataclass(frozen=True)
class ConstantArray:
    """A constant as the templates see it."""

    name: str
    c_type: str
    count: int
    comment: str


@dataclass(frozen=True)
class TextConstant(ConstantArray):
    """A constant in a C file; `lines` is its initializer."""

    lines: list[str]


@dataclass(frozen=True)
class BinaryConstant(ConstantArray):
    """A constant in an assembler file: so many bytes of the binary file."""

    start: int
    bytes: int


def is_binary(schedule: Schedule) -> bool:
    """Whether the constants are so large that they become a binary file."""
    return sum(array.nbytes for array in schedule.constants.values()) >= BINARY_FROM


def is_infinite(schedule: Schedule) -> bool:
    """Whether the C file of the constants says that one of them is, by a macro of math.h."""
    real = (a for a in schedule.constants.values() if DType.of(a) in WIDE_FLOATS)
    return not is_binary(schedule) and any(np.isinf(array).any() for array in real)


def declared(schedule: Schedule) -> list[ConstantArray]:
    """What a header says of every constant."""
    return [
        ConstantArray(name, DType.of(array).c_name, _count(array), schedule.constant_comments[name])
        for name, array in schedule.constants.items()
    ]


def render_text(schedule: Schedule, variables: Mapping[str, object]) -> str:
    """The C file that defines every constant.

    Raises:
        ModelError: a constant is not a number.
    """
    constants = [
        TextConstant(c.name, c.c_type, c.count, c.comment, c_lines(c_elements(array) or ["0"]))
        for c, array in zip(declared(schedule), schedule.constants.values(), strict=True)
    ]
    return render("emit/network/weights.c.j2", {**variables, "constants": constants})


def render_assembler(schedule: Schedule, variables: Mapping[str, object]) -> str:
    """The assembler file that defines every constant as a piece of the binary file."""
    constants: list[BinaryConstant] = []
    start = 0
    for c, array in zip(declared(schedule), schedule.constants.values(), strict=True):
        size = c.count * array.itemsize
        constants.append(BinaryConstant(c.name, c.c_type, c.count, c.comment, start, size))
        start += size
    return render(
        "emit/network/weights.S.j2",
        {**variables, "constants": constants, "alignment": schedule.alignment},
    )


def stored(schedule: Schedule) -> dict[str, Array]:
    """Every constant as memory holds it, little-endian, by the name of its C array.

    Raises:
        ModelError: a constant is not a number.
    """
    return {name: _stored(array) for name, array in schedule.constants.items()}


def _count(array: Array) -> int:
    return max(array.size, 1)  # C has no arrays of no elements


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

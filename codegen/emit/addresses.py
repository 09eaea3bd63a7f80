"""Addresses of buffers as C expressions, and the macros that name the offsets of buffers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from smelt.codegen import arena
from smelt.codegen.schedule.banded import BANDS
from smelt.codegen.schedule.schedule import ARENA, Argument, InBuffer, InFlash
from smelt.codegen.schedule.steps import IterationOffset

_LONGEST_NAME = 40
"""Largest number of characters of a buffer's name in C.

Of longer names, only the end is kept, and what the name of a band's buffer begins with.
"""


@dataclass(frozen=True)
class BufferOffset:
    """A C macro for the offset of a buffer in its memory.

    Attributes:
        macro: The name of the macro.
        value: The offset in bytes.
        bytes: The size of the buffer.
        rows: The sizes in bytes of the rows that it holds; empty if no layer uses rows of it.
    """

    macro: str
    value: int
    bytes: int
    rows: tuple[int, ...] = ()

    @property
    def comment(self) -> str:
        """What the comment behind the macro says."""
        size = f"{self.bytes:,} byte{'' if self.bytes == 1 else 's'}"
        if not self.rows:
            return size
        return f"{size}, rows of {' or '.join(f'{row:,}' for row in self.rows)}"


class Addresses:
    """The addresses of a plan's buffers; records which macros of offsets were used."""

    def __init__(self, plan: arena.Plan) -> None:
        self._plan = plan
        self._offsets = _macros(plan)
        self._used: dict[str, list[int]] = {}

    @property
    def offsets(self) -> tuple[BufferOffset, ...]:
        """The macros of all offsets that were used so far, in the order of the plan."""
        return tuple(
            replace(offset, rows=tuple(self._used[name]))
            for name, offset in self._offsets.items()
            if name in self._used
        )

    def in_arena(self, buffer: str) -> bool:
        """Return whether a buffer is in the arena."""
        return self._plan[buffer].memory == ARENA

    def offset(self, buffer: str) -> str:
        """Return the macro of a buffer's offset in its memory."""
        self._used.setdefault(buffer, [])
        return self._offsets[buffer].macro

    def base(self, buffer: str) -> str:
        """Return the C expression of a buffer's memory in the function `NAME_invoke`."""
        return "arena" if self.in_arena(buffer) else f"ctx->{self._plan[buffer].memory}"

    def of_buffer(self, buffer: str) -> str:
        """Return the C expression of a buffer's address in `NAME_invoke`."""
        return f"{self.base(buffer)} + {self.offset(buffer)}"

    def outside(self, buffer: str) -> str:
        """Return the C expression of a buffer's address where only `ctx` is declared."""
        return f"ctx->{self._plan[buffer].memory} + {self.offset(buffer)}"

    def of(self, argument: Argument) -> str:
        """Return the C expression of an argument's address in `NAME_invoke`, without a cast."""
        match argument:
            case InFlash(constant, is_struct=True):
                return f"&{constant}"
            case InFlash(constant, offsets):
                return constant + _iteration_terms(offsets, 1)
            case InBuffer(buffer, dtype, offsets=offsets, start=start):
                base = self.of_buffer(buffer)
                row = argument.row * dtype.size
                if 1 < row < self._plan[buffer].size:
                    if row not in self._used[buffer]:
                        self._used[buffer].append(row)
                    rows = start or offsets
                    return f"{base} + {_rows_term(argument)}" if rows else base
                first = f" + {start * dtype.size}" if start else ""
                return base + first + _iteration_terms(offsets, dtype.size)

    def same(self, a: Argument, b: Argument) -> bool:
        """Return whether two arguments have the same address."""
        return self._location(a) == self._location(b)

    def distance(self, first: Argument, second: Argument) -> int:
        """Return the bytes from one address to another; 0 if they are in different memories."""
        (one, start, _), (other, end, _) = self._location(first), self._location(second)
        return end - start if one == other else 0

    def _location(self, argument: Argument) -> tuple[str, int, str]:
        match argument:
            case InFlash(constant, offsets):
                return constant, 0, _iteration_terms(offsets, 1)
            case InBuffer(buffer, dtype, offsets=offsets, start=start):
                place = self._plan[buffer]
                offset = place.offset + start * dtype.size
                return place.memory, offset, _iteration_terms(offsets, dtype.size)


def _macros(plan: arena.Plan) -> Mapping[str, BufferOffset]:
    """Return the macro of each buffer's offset, by the name of the buffer.

    If several buffers have the same name in C, the later ones get a number.
    """
    found: dict[str, BufferOffset] = {}
    used: set[str] = set()
    for place in plan.placements:
        word = _c_word(place.name)
        macro, number = f"{place.memory.upper()}_OFFSET_{word}", 1
        while macro in used:
            number += 1
            macro = f"{place.memory.upper()}_OFFSET_{word}_v{number}"
        used.add(macro)
        found[place.name] = BufferOffset(macro, place.offset, place.size)
    return found


def _c_word(name: str) -> str:
    """Return a buffer's name, which may be from the model, as a part of C identifiers."""
    first = next((prefix for prefix in BANDS if name.startswith(prefix)), "")
    role = first.replace(" ", "_")
    words = re.findall(r"[A-Za-z0-9]+", name.removeprefix(first)) or ["buffer"]
    longest = _LONGEST_NAME - len(role)
    while len(words) > 1 and len("_".join(words)) > longest:
        del words[0]
    return role + "_".join(words)[-longest:]


def _iteration_terms(offsets: Sequence[IterationOffset], size: int) -> str:
    """Return the terms that the enclosing loops add to an address of `size`-byte elements."""
    return "".join(f" {_sign(t)} {_index(t, abs(t.elements) * size)}" for t in offsets)


def _sign(offset: IterationOffset) -> str:
    return "-" if offset.elements < 0 else "+"


def _index(offset: IterationOffset, times: int) -> str:
    """Return the C expression of an offset's counter multiplied by a number."""
    counter = offset.counter if offset.every == 1 else f"{offset.counter} / {offset.every}"
    if offset.last is not None:
        counter = f"({offset.last} - {counter})"
    return counter if times == 1 else f"{counter} * {times}"


def bytes_of_rows(count: int, row: int) -> str:
    """Return `count` bytes as a C product of rows and the bytes of a row."""
    return f"{count // row} * {row}" if 1 < row < count else str(count)


def _rows_term(argument: InBuffer) -> str:
    """Return the distance of an argument from its buffer's start, as rows times bytes of a row."""
    row = argument.row * argument.dtype.size
    if not argument.offsets:
        return bytes_of_rows(argument.start * argument.dtype.size, row)
    first = argument.start // argument.row
    terms = [(_sign(t), _index(t, abs(t.elements) // argument.row)) for t in argument.offsets]
    if first > 0:
        terms.insert(0, ("+", str(first)))
    elif first < 0:
        terms.append(("-", str(-first)))
    text = terms[0][1] + "".join(f" {sign} {term}" for sign, term in terms[1:])
    return f"({text}) * {row}" if len(terms) > 1 else f"{text} * {row}"

"""Where buffers lie, as expressions of C, and the macros that name their offsets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smelt.codegen import arena
from smelt.codegen.schedule.schedule import ARENA, Argument, InBuffer, InFlash
from smelt.codegen.schedule.steps import IterationOffset

_LONGEST_NAME = 40
"""Characters of a buffer's name in C: a longer one keeps its end, which says most."""


@dataclass(frozen=True)
class BufferOffset:
    """A macro of C: `macro` is `value`, the offset in bytes of a buffer of `bytes` bytes."""

    macro: str
    value: int
    bytes: int


class Addresses:
    """The addresses of a plan's buffers; notes which of the offsets' macros they need."""

    def __init__(self, plan: arena.Plan) -> None:
        self._plan = plan
        self._offsets = _named(plan)
        self._used: set[str] = set()

    @property
    def offsets(self) -> tuple[BufferOffset, ...]:
        """The macros of all offsets that were asked for, in the order of the plan."""
        return tuple(offset for name, offset in self._offsets.items() if name in self._used)

    def in_arena(self, buffer: str) -> bool:
        """Whether a buffer lies in the arena."""
        return self._plan[buffer].memory == ARENA

    def offset(self, buffer: str) -> str:
        """The macro of a buffer's offset in its memory."""
        self._used.add(buffer)
        return self._offsets[buffer].macro

    def base(self, buffer: str) -> str:
        """The memory that a buffer lies in, as the function `NAME_invoke` knows it."""
        return "arena" if self.in_arena(buffer) else f"ctx->{self._plan[buffer].memory}"

    def of_buffer(self, buffer: str) -> str:
        """The address of a buffer in `NAME_invoke`."""
        return f"{self.base(buffer)} + {self.offset(buffer)}"

    def outside(self, buffer: str) -> str:
        """The address of a buffer in other functions, which only have `ctx`."""
        return f"ctx->{self._plan[buffer].memory} + {self.offset(buffer)}"

    def of(self, argument: Argument) -> str:
        """The address that an argument points to, without a cast."""
        match argument:
            case InFlash(constant, is_struct=True):
                return f"&{constant}"
            case InFlash(constant, turns):
                return constant + _turned(turns, 1)
            case InBuffer(buffer, dtype, turns=turns):
                return self.of_buffer(buffer) + _turned(turns, dtype.size)

    def same(self, a: Argument, b: Argument) -> bool:
        """Whether two arguments point to one place."""
        return self._place(a) == self._place(b)

    def _place(self, argument: Argument) -> tuple[str, int, str]:
        match argument:
            case InFlash(constant, turns):
                return constant, 0, _turned(turns, 1)
            case InBuffer(buffer, dtype, turns=turns):
                place = self._plan[buffer]
                return place.memory, place.offset, _turned(turns, dtype.size)


def _named(plan: arena.Plan) -> Mapping[str, BufferOffset]:
    """The macros of all buffers' offsets, named as the buffers are in the model.

    Of names that are alike in C the later ones get a number.
    """
    found: dict[str, BufferOffset] = {}
    taken: set[str] = set()
    for place in plan.placements:
        word = _word(place.name)
        macro, number = f"{place.memory.upper()}_OFFSET_{word}", 1
        while macro in taken:
            number += 1
            macro = f"{place.memory.upper()}_OFFSET_{word}_v{number}"
        taken.add(macro)
        found[place.name] = BufferOffset(macro, place.offset, place.size)
    return found


def _word(name: str) -> str:
    """What a name from a model is in an identifier of C."""
    words = re.findall(r"[A-Za-z0-9]+", name) or ["buffer"]
    while len(words) > 1 and len("_".join(words)) > _LONGEST_NAME:
        del words[0]
    return "_".join(words)[-_LONGEST_NAME:]


def _turned(turns: Sequence[IterationOffset], size: int) -> str:
    """What loops add to an address whose elements have `size` times its unit."""
    indices = (t.counter if t.last is None else f"({t.last} - {t.counter})" for t in turns)
    return "".join(
        f" + {i}" if t.elements * size == 1 else f" + {i} * {t.elements * size}"
        for i, t in zip(indices, turns, strict=True)
    )

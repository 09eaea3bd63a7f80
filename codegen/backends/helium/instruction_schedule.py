"""The order of Helium instructions: neighbours that occupy different units overlap.

A vector instruction holds its unit - for memory, for products, for the rest - for two cycles, but
the next instruction begins after one if it needs another unit. So of the instructions whose
operands are there, one of another unit than the last goes first; among those, the one with the
longest chain of instructions behind it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_REGISTER = re.compile(r"\b(?:q[0-7]|r\d+|lr|sp)\b")
_RANGE = re.compile(r"\br(\d+)-r(\d+)\b")
_ACCUMULATES = ("vmla", "vqmov", "vmvn", "vst4")
"""Instructions that read what they write first."""
_PRODUCT = ("vmla", "vqrdmulh", "vmul")
_MEMORY = ("vldr", "vstr", "vst4", "ldr", "ldm", "stm", "str")


@dataclass(frozen=True)
class _PipelineInstruction:
    text: str
    reads: frozenset[str]
    writes: frozenset[str]

    @property
    def unit(self) -> str:
        if not self.text.startswith("v"):
            return ""
        if self.text.startswith(_MEMORY):
            return "memory"
        return "product" if self.text.startswith(_PRODUCT) else "other"

    def before(self, other: _PipelineInstruction) -> bool:
        """Whether the other, which comes later, must stay behind."""
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


def _step(text: str) -> _PipelineInstruction:
    name, _, operands = text.partition(" ")
    listed = _RANGE.sub(
        lambda m: ", ".join(f"r{i}" for i in range(int(m[1]), int(m[2]) + 1)), operands
    )
    address = re.search(r"\[([^]]*)\](!?)(, #)?", listed)
    based = re.match(r"(\w+)(!?), \{(.*)\}", listed)
    if name in ("ldm", "stm") and based is not None:
        moved = frozenset(_REGISTER.findall(based[3]))
        base = frozenset({based[1]})
        changed = base if based[2] else frozenset[str]()
        if name == "ldm":
            return _PipelineInstruction(text, base | {"memory"}, moved | changed)
        return _PipelineInstruction(text, base | moved, changed | {"memory"})
    if address is not None:
        base = frozenset(_REGISTER.findall(address[1]))
        changed = base if address[2] or address[3] else frozenset[str]()
        moved = frozenset(_REGISTER.findall(listed[: address.start()]))
        if name.startswith(("vldr", "ldr")):
            return _PipelineInstruction(text, base | {"memory"}, moved | changed)
        return _PipelineInstruction(text, base | moved, changed | {"memory"})
    registers = _REGISTER.findall(listed)
    written = frozenset(registers[:1])
    read = frozenset(registers[1:])
    if name.startswith(_ACCUMULATES) or len(registers) == 1 or listed.count(",") == 1:
        read |= written
    return _PipelineInstruction(text, read, written)


def scheduled(instructions: Sequence[str]) -> list[str]:
    """A stretch without labels, branches and predicates in an order that stalls less."""
    steps = [_step(text) for text in instructions]
    count = len(steps)
    later = [[j for j in range(i + 1, count) if steps[i].before(steps[j])] for i in range(count)]
    waiting = [0] * count
    for followers in later:
        for j in followers:
            waiting[j] += 1
    height = [1] * count
    for i in reversed(range(count)):
        height[i] += max((height[j] for j in later[i]), default=0)
    found: list[str] = []
    ready = [i for i in range(count) if not waiting[i]]
    unit = ""
    while ready:
        best = min(ready, key=lambda i: (steps[i].unit == unit != "", -height[i], i))
        ready.remove(best)
        found.append(steps[best].text)
        unit = steps[best].unit
        for j in later[best]:
            waiting[j] -= 1
            if not waiting[j]:
                ready.append(j)
    return found

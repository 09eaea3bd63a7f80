"""List scheduling of Helium instructions, so that neighbors use different units and overlap.

A vector instruction occupies its unit (memory, product or other) for two cycles. The next
instruction can start after one cycle if it uses another unit. Therefore the next instruction is
chosen from those whose operands are ready: first, one that uses another unit than the last; among
these, the one with the longest chain of dependent instructions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_REGISTER = re.compile(r"\b(?:q[0-7]|r\d+|lr|sp)\b")
_RANGE = re.compile(r"\br(\d+)-r(\d+)\b")
_ACCUMULATES = ("vmla", "vqmov", "vmvn", "vst4")
"""Prefixes of instructions that also read the register that they write."""
_PRODUCT = ("vmla", "vqrdmulh", "vmul")
_MEMORY = ("vldr", "vstr", "vst4", "ldr", "ldm", "stm", "str")


@dataclass(frozen=True)
class _PipelineInstruction:
    """An instruction and the registers that it reads and writes; "memory" counts as a register."""

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
        """Return whether `other`, a later instruction, must stay after this one."""
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


def _parsed(text: str) -> _PipelineInstruction:
    """Return the instruction with the registers that its text reads and writes."""
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


@cache
def scheduled(instructions: tuple[str, ...]) -> tuple[str, ...]:
    """Return the instructions in an order that stalls less.

    There must be no labels, branches or predicated instructions.
    """
    parsed = [_parsed(text) for text in instructions]
    count = len(parsed)
    dependents = [
        [j for j in range(i + 1, count) if parsed[i].before(parsed[j])] for i in range(count)
    ]
    predecessors = [0] * count
    for followers in dependents:
        for j in followers:
            predecessors[j] += 1
    height = [1] * count
    for i in reversed(range(count)):
        height[i] += max((height[j] for j in dependents[i]), default=0)
    found: list[str] = []
    ready = [i for i in range(count) if not predecessors[i]]
    unit = ""
    while ready:
        best = min(ready, key=lambda i: (parsed[i].unit == unit != "", -height[i], i))
        ready.remove(best)
        found.append(parsed[best].text)
        unit = parsed[best].unit
        for j in dependents[best]:
            predecessors[j] -= 1
            if not predecessors[j]:
                ready.append(j)
    return tuple(found)

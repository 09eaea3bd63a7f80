"""The device features that a SPIR-V module needs, read from its words.

Source: SPIR-V 1.3 specification, section 2.3 (physical layout) and chapter 3 (binary form).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SHADER, DOT_PRODUCTS, HALF_STORAGE, HALVES = 1, {6016, 6017, 6018, 6019}, {4433}, {9}
"""Capabilities: Shader, integer dot products, float16 in buffers, float16 arithmetic."""

_WORKGROUP = 4
"""Storage class of memory that a workgroup shares."""


@dataclass(frozen=True)
class Needs:
    """Capabilities, and bytes of memory that a workgroup shares."""

    capabilities: frozenset[int]
    workgroup_bytes: int


def needs_of(words: Sequence[int]) -> Needs:
    """Return a module's needs; specialization constants have their default values."""
    sizes: dict[int, int] = {}
    constants: dict[int, int] = {}
    targets: dict[int, int] = {}
    capabilities: set[int] = set()
    shared = 0
    for code, operands in _instructions(words):
        match code, operands:
            case 17, [capability]:  # OpCapability
                capabilities.add(capability)
            case 20, [result]:  # OpTypeBool
                sizes[result] = 4
            case ((21 | 22), [result, bits, *_]):  # OpTypeInt, OpTypeFloat
                sizes[result] = bits // 8
            case 23, [result, component, count]:  # OpTypeVector
                sizes[result] = sizes[component] * count
            case 28, [result, element, length] if element in sizes and length in constants:
                # OpTypeArray; the length of a shared array must be a constant, not an expression
                sizes[result] = sizes[element] * constants[length]
            case 30, [result, *members]:  # OpTypeStruct
                sizes[result] = sum(sizes.get(member, 0) for member in members)
            case 32, [result, _, target]:  # OpTypePointer
                targets[result] = target
            case ((43 | 50), [_, result, value, *_]):  # OpConstant, OpSpecConstant
                constants[result] = value
            case 59, [kind, _, storage, *_] if storage == _WORKGROUP:  # OpVariable
                shared += sizes[targets[kind]]
            case _:
                pass
    return Needs(frozenset(capabilities), shared)


def _instructions(words: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield opcodes and operands, after the header of five words."""
    at = 5
    while at < len(words):
        count = words[at] >> 16
        yield words[at] & 0xFFFF, list(words[at + 1 : at + count])
        at += count

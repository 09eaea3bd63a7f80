"""Elementwise loops over floats that compilers turn into vector instructions.

An output may lie where an input does, so that compilers would have to prove that no element is
read after it was written. Results of a few elements therefore wait in an array of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from smelt.codegen.lower.nested_loops import ArrayLoop, braced
from smelt.targets import Target

LANES = 16
"""Elements that are computed together in loops over them."""

_CHOICE = re.compile(r"([^?]+) \? (.+_float\(.+) : (.+)")


def vector_width(channels: int) -> int:
    """Neighbouring elements that share vector registers, out of so many."""
    return next(size for size in (LANES, 8, 4, 2, 1) if size <= channels)


def padded_vectors(count: int) -> int:
    """How many elements to compute where `count` are wanted, for vectors to be whole."""
    if count <= 4:
        return 4 if count > 1 else count
    return -(-count // 8) * 8


def vectors_of(count: int) -> tuple[tuple[int, int], ...]:
    """The first and the number of the neighbours that share an array of sums, out of `count`.

    Compilers keep an array in registers if it is one vector, or a few that they unroll.
    """
    parts: list[tuple[int, int]] = []
    first = 0
    while first < count:
        size = vector_width(count - first)
        parts.append((first, size))
        first += size
    return tuple(parts)


def lane_loops(
    lanes: Iterable[tuple[int, int]], statement: Callable[[int, str], str]
) -> tuple[str, ...]:
    """C loops over the neighbours of a block whose sums stand in arrays of one vector or a few.

    Args:
        lanes: the first element and the size of each array, as of `vectors_of`.
        statement: the C statement for lane `j` of an array, given its first element, for the
            array's name, and the C expression of the neighbour's number.
    """
    lines: list[str] = []
    for first, count in lanes:
        unrolled = "SMELT_UNROLL " * (count > 8)
        head = f"{unrolled}for (int32_t j = 0; j < {count}; ++j) {{"
        lines += braced(head, [statement(first, f"j + {first}" if first else "j")])
    return tuple(lines)


def fills_vectors(loops: Sequence[ArrayLoop], target: Target) -> bool:
    """Whether the innermost loop goes over neighbours, enough of them, on a target with vectors."""
    if "simd_float" not in target.features or not loops:
        return False
    inner = loops[-1]
    return inner.size >= LANES and set(inner.strides) <= {0, 1} and inner.strides[-1] == 1


def one_lane(loops: Sequence[ArrayLoop]) -> tuple[ArrayLoop, ...]:
    """The loops as they index an element inside of `in_vectors`."""
    inner = loops[-1]
    return (*loops[:-1], replace(inner, name=f"{inner.name} + lane"))


def without_branch(expression: str) -> str:
    """The expression with a choice of functions of ours as one that compilers need not prove safe.

    Where nothing is computed in vectors, the branch is cheaper than both results.
    """
    return _CHOICE.sub(r"either(\1, \2, \3)", expression)


def in_vectors(
    loops: Sequence[ArrayLoop], statements: Sequence[Sequence[str]], several: Sequence[str]
) -> list[list[str]]:
    """The statements of a loop nest, with the innermost loop written out.

    Args:
        loops: the nest, which `fills_vectors`.
        statements: C lines by the number of loops around them.
        several: those inside all loops as of `one_lane`; the last one assigns to the output.
    """
    inner = loops[-1]
    whole = inner.size - inner.size % LANES
    target, value = several[-1].split(" = ", 1)
    lane = f"for (int32_t lane = 0; lane < {LANES}; ++lane) {{"
    name = inner.name
    block = [
        f"for (int32_t {name} = 0; {name} < {whole}; {name} += {LANES}) {{",
        f"    SMELT_ARRAY float results[{LANES}];",
        f"    {lane}",
        *(f"        {line}" for line in (*several[:-1], f"results[lane] = {value}")),
        "    }",
        f"    {lane}",
        f"        {target} = results[lane];",
        "    }",
        "}",
    ]
    if whole < inner.size:
        block.append(f"for (int32_t {name} = {whole}; {name} < {inner.size}; ++{name}) {{")
        block += [*(f"    {line}" for line in statements[-1]), "}"]
    return [*map(list, statements[:-2]), [*statements[-2], *block]]

"""Loops over floats that compilers turn into vector instructions.

An output may overwrite an input, so compilers would have to prove that no element is read after it
was overwritten. Elementwise loops therefore store the results of `LANES` elements in a local array
first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from smelt.codegen.lower.nested_loops import ArrayLoop, braced
from smelt.codegen.text.expressions import offset
from smelt.targets import Target

LANES = 16
"""Elements that an elementwise loop computes together."""

_CHOICE = re.compile(r"([^?]+) \? (.+_float\(.+) : (.+)")


def vector_width(channels: int) -> int:
    """Return how many of `channels` neighboring elements share vector registers."""
    return next(size for size in (LANES, 8, 4, 2, 1) if size <= channels)


def padded_vectors(count: int) -> int:
    """Return the number of elements to compute for `count` results, so that vectors are whole."""
    if count <= 4:
        return 4 if count > 1 else count
    return -(-count // 8) * 8


def vectors_of(count: int) -> tuple[tuple[int, int], ...]:
    """Split `count` neighboring sums into arrays; return the first sum and the size of each.

    Compilers keep an array in registers if it is one vector, or a few vectors whose loop they
    unroll.
    """
    parts: list[tuple[int, int]] = []
    first = 0
    while first < count:
        size = vector_width(count - first)
        parts.append((first, size))
        first += size
    return tuple(parts)


def lane_loops(
    lanes: Iterable[tuple[int, int]], statement: Callable[[int, str, str], str]
) -> tuple[str, ...]:
    """Return C loops over the sums of a block, one loop per array of several.

    Args:
        lanes: the first sum and the size of each array, as `vectors_of` returns them.
        statement: function that returns the C statement for an element of an array. Its arguments
            are the array's first sum, which is part of the array's name, and the C expressions of
            the element's index in the array and in the block.
    """
    lines: list[str] = []
    for first, count in lanes:
        if count == 1:
            lines.append(statement(first, "0", str(first)))
            continue
        unrolled = "SMELT_UNROLL " * (count > 8)
        head = f"{unrolled}for (int32_t j = 0; j < {count}; ++j) {{"
        lines += braced(head, [statement(first, "j", offset("j", first))])
    return tuple(lines)


def fills_vectors(loops: Sequence[ArrayLoop], target: Target) -> bool:
    """Return whether the innermost loop can be computed in vectors.

    It can if the target has SIMD floats, the loop has at least `LANES` iterations, the output's
    elements are contiguous, and each input's elements are contiguous or always the same.
    """
    if "simd_float" not in target.features or not loops:
        return False
    inner = loops[-1]
    return inner.size >= LANES and set(inner.strides) <= {0, 1} and inner.strides[-1] == 1


def one_lane(loops: Sequence[ArrayLoop]) -> tuple[ArrayLoop, ...]:
    """Return the loops with the innermost index as that of one lane inside `in_vectors`."""
    inner = loops[-1]
    first = f"{inner.name} + " if inner.size >= 2 * LANES else ""
    return (*loops[:-1], replace(inner, name=f"{first}lane"))


def last_element(loops: Sequence[ArrayLoop]) -> tuple[ArrayLoop, ...]:
    """Return the loops with the innermost index as that of the last element."""
    inner = loops[-1]
    return (*loops[:-1], replace(inner, name=str(inner.size - 1)))


def without_branch(expression: str) -> str:
    """Return the expression with a choice that calls a helper function as a call of `either`.

    Compilers vectorize a branch only if they can prove that computing both sides is safe. In scalar
    code, however, the branch is cheaper than computing both results.
    """
    return _CHOICE.sub(r"either(\1, \2, \3)", expression)


def in_vectors(
    loops: Sequence[ArrayLoop],
    statements: Sequence[Sequence[str]],
    several: Sequence[str],
    last: Sequence[str],
) -> list[list[str]]:
    """Return the statements of a loop nest whose innermost loop computes `LANES` elements at once.

    The lines of the innermost loop, and of a loop over the remaining elements, are among the
    statements of the loop around it.

    Args:
        loops: the nest, for which `fills_vectors` is true.
        statements: C lines, by the number of loops around them.
        several: the lines inside all loops, with indices from `one_lane`; the last line assigns to
            the output.
        last: the lines inside all loops, with indices from `last_element`.
    """
    inner = loops[-1]
    whole = inner.size - inner.size % LANES
    target, value = several[-1].split(" = ", 1)
    lane = f"for (int32_t lane = 0; lane < {LANES}; ++lane) {{"
    name = inner.name
    block = [
        f"SMELT_ARRAY float results[{LANES}];",
        *braced(lane, (*several[:-1], f"results[lane] = {value}")),
        *braced(lane, [f"{target} = results[lane];"]),
    ]
    if whole > LANES:
        block = braced(f"for (int32_t {name} = 0; {name} < {whole}; {name} += {LANES}) {{", block)
    if whole + 1 == inner.size:
        block += last
    elif whole < inner.size:
        block.append(f"for (int32_t {name} = {whole}; {name} < {inner.size}; ++{name}) {{")
        block += [*(f"    {line}" for line in statements[-1]), "}"]
    return [*map(list, statements[:-2]), [*statements[-2], *block]]

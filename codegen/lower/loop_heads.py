"""C lines that open loops which may have a single iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.codegen.text.expressions import advance
from smelt.codegen.text.layer_number import repeats


def loop_head(variable: str, end: int, first: int = 0, step: int = 1) -> str:
    """Return the C line that opens a loop, or "" if it would have one iteration.

    If the end is a number of a layer that C code reads, there is always a loop.
    """
    if not repeats(end, first, step):
        return ""
    return f"for (int32_t {variable} = {first}; {variable} < {end}; {advance(variable, step)}) {{"


def looped(
    variable: str, end: int, body: Callable[[str], Sequence[str]], first: int = 0
) -> tuple[str, ...]:
    """Return the C lines of a loop, of its only iteration, or none.

    Args:
        variable: name of the loop's variable.
        end: number before which the loop ends.
        body: function that returns the lines of an iteration, from the name of the variable or its
            only value.
        first: first value of the variable.
    """
    if head := loop_head(variable, end, first):
        return (head, *(f"    {line}" for line in body(variable)), "}")
    return tuple(body(str(first))) if first < end else ()

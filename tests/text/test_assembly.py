"""Long statements of assembly are cut into several, and mean the same."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from smelt.codegen.text.assembly import LONGEST, in_short_strings

PART = re.compile(r"    __asm__ volatile\(\n(.*?)\n    \);", re.S)
UNIFIED = '        ".syntax unified\\n"'


def function(lines: list[str]) -> str:
    text = "\n".join([UNIFIED, *lines])
    return f"void f(void) {{\n    __asm__ volatile(\n/*\n * r0: x.\n */\n{text}\n    );\n}}\n"


def line(text: str) -> str:
    comment = " /* far */" if len(text) == 7 else ""
    return f'        "{text}\\n"{comment}'


def size(part: str) -> int:
    strings = re.findall(r'^ *"(.*)"', part, re.M)
    return sum(len(s.replace(r"\n", "n")) for s in strings)


def test_what_is_short_stays() -> None:
    source = function([line("mov r0, r1")] * 100)
    assert in_short_strings(source) == source


def test_statements_with_operands_stay() -> None:
    source = "\n".join(
        ["    __asm__ volatile(", *[line("nop" * 50)] * 100, '        : "=r"(x)', "    );"]
    )
    assert in_short_strings(source) == source


instructions = st.lists(st.integers(1, 60).map(lambda n: line("a" * n)), min_size=1, max_size=40)
repeated = instructions.map(lambda body: [line(".rept 7"), *body, line(".endr")])
pieces = st.lists(st.one_of(instructions, repeated, st.just(["        /* Of the sums. */"])))


@given(pieces.map(lambda found: [line for part in found * 4 for line in part]))
def test_parts_are_short_and_the_same_together(lines: list[str]) -> None:
    parts = PART.findall(in_short_strings(function(lines)))
    first, *others = parts
    assert all(part.split("\n")[0] == UNIFIED for part in others)
    together = "\n".join([first, *("\n".join(part.split("\n")[1:]) for part in others)])
    assert together == PART.findall(function(lines))[0]
    for part in parts:
        assert size(part) <= LONGEST
        assert part.count(".rept") == part.count(".endr")

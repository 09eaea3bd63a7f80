"""Assembly in C: instructions as strings, and the statement that contains them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

LONGEST = 4095
"""Characters of the longest string that C99 requires compilers to accept (section 5.2.4.1)."""

_STRING = re.compile(r'^ *"(.*)"', re.MULTILINE)
"""Matches a string of a statement; its group are the characters between the quotes."""

_ASSEMBLY_COLUMNS = 86
"""Maximum length of a line of assembly, without its quotes and indentation."""

_TESTS = ("cmp ", "subs ", "tst ", "ands ", "lsrs ")
"""Beginnings of the instructions that set the flags for a conditional branch."""

_BRANCHES = ("beq ", "bne ", "blo ", "bhi ")
"""Beginnings of conditional branches."""

_ALONE = frozenset({"b", "bl", "bx", "pop", *(branch.strip() for branch in _BRANCHES)})
"""Mnemonics of instructions that share their string with no later one."""


def asm_statement(text: str) -> str:
    """Return the `__asm__` statement of a function that contains nothing else.

    GCC's manual does not promise that several statements stay together. Strings of more than
    `LONGEST` characters are accepted by gcc and clang, but clang warns of them: for these
    statements, pragmas switch the warning off.

    Args:
        text: C strings and comments, a line each.
    """
    statement = "    __asm__(\n" + text.strip("\n") + ");\n"
    strings = (found.replace(r"\n", "n").replace(r"\\", "b") for found in _STRING.findall(text))
    if sum(map(len, strings)) <= LONGEST:
        return statement
    return (
        "#pragma GCC diagnostic push\n"
        '#pragma GCC diagnostic ignored "-Woverlength-strings"\n'
        f"{statement}"
        "#pragma GCC diagnostic pop\n"
    )


def c_assembly(lines: Iterable[str]) -> str:
    """Return lines of Arm assembly as C strings for an `__asm__` statement.

    A string contains one step: instructions that load, then some that compute, then some that
    store, as many as its columns hold. Three or more instructions of one mnemonic begin a string.
    A conditional branch follows the instruction that it tests, POP the one that frees the stack,
    and an instruction the IT that makes it conditional. An offset of 0 is not written.
    """
    waiting: list[str] = []
    for line in lines:
        text = line.replace("\\", "\\\\").replace(", #0]", "]")
        if waiting and waiting[-1].startswith("it ") and ";" not in waiting[-1]:
            waiting[-1] = f"{waiting[-1]}; {text}"
        else:
            waiting.append(text)
    rows: list[list[str]] = []
    for i, text in enumerate(waiting):
        row = rows[-1] if rows else []
        if row and _joins(row, waiting[i : i + 3]) and _width(row, text) <= _ASSEMBLY_COLUMNS:
            row.append(text)
        else:
            rows.append([text])
    return "".join(f'        "{"; ".join(row)}\\n"\n' for row in rows)


def _width(row: Sequence[str], text: str) -> int:
    """Return the columns of a string of assembly with one more instruction."""
    return len("; ".join((*row, text)))


def _joins(row: Sequence[str], following: Sequence[str]) -> bool:
    """Return whether the first of the following instructions continues the step of a row."""
    text, last = following[0], row[-1]
    if text.startswith(_BRANCHES):
        return last.startswith(_TESTS)
    if text.startswith("pop "):
        return last.startswith("add sp, ")
    if not 0 <= _phase(last) <= _phase(text):
        return False
    run = {line.split(" ")[0] for line in following}
    return len(following) < 3 or len(run) > 1 or last.startswith(f"{run.pop()} ")


def _phase(instruction: str) -> int:
    """Return 0 for Arm's loads and PUSH, 1 for computations, 2 for stores, -1 for what is alone."""
    mnemonic = instruction.split(" ")[0]
    if instruction.startswith(".") or instruction.endswith(":") or mnemonic in _ALONE:
        return -1
    return {"ld": 0, "pu": 0, "st": 2}.get(mnemonic[:2], 1)

"""Tests of assembly in C: one statement, and pragmas only around long ones."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from smelt.codegen.text.assembly import LONGEST, asm_statement, c_assembly

PRAGMAS = (
    "#pragma GCC diagnostic push",
    '#pragma GCC diagnostic ignored "-Woverlength-strings"',
    "#pragma GCC diagnostic pop",
)


def of_length(characters: int) -> str:
    """Return a C string of `characters` characters (at least three); an escape counts as one."""
    return '        "' + r"\\" * (characters - 2) + r'n\n"'


def test_a_statement_begins_and_ends_once() -> None:
    assert asm_statement('        "nop\\n"\n        /* Last. */\n        "bx lr\\n"\n') == (
        '    __asm__(\n        "nop\\n"\n        /* Last. */\n        "bx lr\\n");\n'
    )


def test_only_long_statements_have_pragmas() -> None:
    for lines, long in (
        ([of_length(LONGEST)], False),
        ([of_length(LONGEST + 1)], True),
        ([of_length(2000), "        /* " + "x" * 4000 + " */", of_length(LONGEST - 2000)], False),
        ([of_length(2000), of_length(LONGEST - 1999)], True),
    ):
        text = asm_statement("\n".join(lines))
        assert text.count("__asm__(") == 1
        assert [line for line in text.split("\n") if line.startswith("#")] == [*PRAGMAS] * long


def test_prologue_and_epilogue_are_a_string_each() -> None:
    lines = [
        "push {r4, lr}",
        "sub sp, sp, #8",
        "str r0, [sp, #0]",
        "add sp, sp, #8",
        "pop {r4, pc}",
    ]
    assert c_assembly(lines).split("\n") == [
        '        "push {r4, lr}; sub sp, sp, #8; str r0, [sp]\\n"',
        '        "add sp, sp, #8; pop {r4, pc}\\n"',
        "",
    ]


def test_conditional_instructions_follow_their_it() -> None:
    lines = [
        "cmp r0, #2",
        "it eq",
        "moveq r1, r2",
        "it hi",
        f"movhi r1, {'r3' * 24}",
        "str r1, [r0]",
    ]
    assert c_assembly(lines).split("\n") == [
        '        "cmp r0, #2; it eq; moveq r1, r2\\n"',
        f'        "it hi; movhi r1, {"r3" * 24}; str r1, [r0]\\n"',
        "",
    ]


def test_a_step_loads_then_computes_then_stores() -> None:
    lines = ["ldr r0, [r1]", "add r0, r0, \\w", "str r0, [r1]", "cmp r0, #0", "beq 1b"]
    assert c_assembly(lines).split("\n") == [
        '        "ldr r0, [r1]; add r0, r0, \\\\w; str r0, [r1]\\n"',
        '        "cmp r0, #0; beq 1b\\n"',
        "",
    ]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compilers_accept_long_statements_without_a_warning(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"not on PATH: {compiler}")
    source = tmp_path / "long.c"
    statement = asm_statement("\n".join(['        "nop; nop; nop; nop\\n"'] * 300))
    assert PRAGMAS[0] in statement
    source.write_text(f"void nothing(void);\nvoid nothing(void) {{\n{statement}}}\n")
    flags = ["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-c", "-o", "/dev/null"]
    subprocess.run([compiler, *flags, str(source)], check=True)

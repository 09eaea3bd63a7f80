"""Tests of how long lines of C are broken."""

from __future__ import annotations

import pytest

from smelt.codegen.text.layout import COLUMNS, comment, laid_out

LONG = "a_name_that_is_quite_long"

BROKEN = {
    "a call in two lines": (
        f"    {LONG}_indeed({LONG}, {LONG}, {LONG});",
        f"    {LONG}_indeed(\n        {LONG}, {LONG}, {LONG});",
    ),
    "a call in more lines": (
        f"    f({LONG}, g({LONG}, {LONG}), {LONG}, {LONG});",
        f"    f(\n        {LONG}, g({LONG}, {LONG}),\n        {LONG}, {LONG});",
    ),
    "a definition": (
        f"static void {LONG}(const int8_t *{LONG}, int32_t {LONG}, int32_t x) {{",
        f"static void {LONG}(\n    const int8_t *{LONG}, int32_t {LONG}, int32_t x) {{",
    ),
    "an expression": (
        f"    return {LONG} + {LONG} == {LONG} && {LONG} + {LONG} == {LONG};",
        f"    return {LONG} + {LONG} == {LONG} &&\n        {LONG} + {LONG} == {LONG};",
    ),
    "a choice": (
        f"    const int32_t x = {LONG} < 0 ? {LONG} + {LONG} + 1 : {LONG} + 2;",
        f"    const int32_t x = {LONG} < 0\n        ? {LONG} + {LONG} + 1\n        : {LONG} + 2;",
    ),
    "a choice below the first line's": (
        f"    const int32_t x = {LONG} < 0 ? {LONG} : {LONG} + 123456;",
        f"    const int32_t x = {LONG} < 0 ? {LONG}\n{' ' * 52}: {LONG} + 123456;",
    ),
    "a sum of calls": (
        f"    x[{LONG}] = f({LONG}, 1) + g({LONG}) + h({LONG}, 1, 2, 3);",
        f"    x[{LONG}] = f({LONG}, 1) + g({LONG}) +\n        h({LONG}, 1, 2, 3);",
    ),
    "a sum that a cast converts": (
        f"    x[i] = (int8_t)({LONG} + {LONG} + {LONG} + {LONG});",
        f"    x[i] = (int8_t)({LONG} + {LONG} +\n{' ' * 20}{LONG} + {LONG});",
    ),
    "a condition": (
        f"    if ({LONG} == {LONG} && {LONG} < {LONG}) {{",
        f"    if ({LONG} == {LONG} &&\n        {LONG} < {LONG}) {{",
    ),
    "a loop": (
        f"    for (int32_t {LONG} = 0; {LONG} < 12345; ++{LONG}) {{",
        f"    for (int32_t {LONG} = 0; {LONG} < 12345;\n         ++{LONG}) {{",
    ),
    "the type of an array before its name": (
        f"typedef char {LONG}_has_no_gaps[sizeof({LONG}) == 100 ? 1 : -1];",
        f"typedef char\n    {LONG}_has_no_gaps[sizeof({LONG}) == 100 ? 1 : -1];",
    ),
    "the type of an array before its size": (
        f"typedef char {LONG}_layer_t_has_no_gaps[sizeof({LONG}_layer_t) == 100 ? 1 : -1];",
        f"typedef char {LONG}_layer_t_has_no_gaps\n    [sizeof({LONG}_layer_t) == 100 ? 1 : -1];",
    ),
    "an array at a special place": (
        f'static uint8_t {LONG}[{LONG}] __attribute__((aligned({LONG}), section(".x")));',
        f'static uint8_t {LONG}[{LONG}]\n    __attribute__((aligned({LONG}), section(".x")));',
    ),
    "a cast of C++": (
        f"    const int8_t *const x = static_cast<const int8_t *>({LONG}({LONG}, {LONG}));",
        f"    const int8_t *const x = static_cast<const int8_t *>(\n"
        f"        {LONG}({LONG}, {LONG}));",
    ),
    "a list": (
        f"    int32_t x[4] = {{ {LONG}, {LONG}, {LONG}, {LONG} }};",
        f"    int32_t x[4] = {{\n        {LONG}, {LONG}, {LONG},\n        {LONG},\n    }};",
    ),
    "a comment": (
        f"    /* {LONG} {LONG} {LONG} {LONG} */",
        f"    /*\n     * {LONG} {LONG} {LONG}\n     * {LONG}\n     */",
    ),
    "the last line of a comment": (
        f"    /* First.\n     * {' '.join([LONG] * 8)}. */",
        f"    /* First.\n     * {LONG} {LONG} {LONG}\n     * {LONG} {LONG} {LONG}\n"
        f"     * {LONG} {LONG}. */",
    ),
    "a comment behind a statement": (
        f"    {LONG} = 1; /* {LONG} {LONG} {LONG} */",
        f"    /* {LONG} {LONG} {LONG} */\n    {LONG} = 1;",
    ),
    "a comment before text between quotes": (
        f'    /* {LONG}\n     * {LONG} {LONG} {LONG} {LONG} */\n    "x"',
        f'    /* {LONG}\n     * {LONG} {LONG} {LONG}\n     * {LONG} */\n    "x"',
    ),
    "the comment behind a macro": (
        f"#define {LONG} (1) /* {LONG} {LONG} {LONG} */",
        f"/* {LONG} {LONG} {LONG} */\n#define {LONG} (1)",
    ),
    "a sentence that goes on": (
        f"/*\n * Of {LONG} {LONG} {LONG} {LONG},\n * the rest.\n */",
        f"/*\n * Of {LONG} {LONG} {LONG}\n * {LONG}, the rest.\n */",
    ),
    "another sentence": (
        f"/*\n * Of {LONG} {LONG} {LONG} {LONG}\n * Results: one.\n */",
        f"/*\n * Of {LONG} {LONG} {LONG}\n * {LONG}\n * Results: one.\n */",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_long_lines_are_broken(name: str) -> None:
    text, expected = BROKEN[name]
    assert laid_out(text) == expected
    assert all(len(line) <= COLUMNS for line in expected.split("\n"))
    assert laid_out(expected) == expected


@pytest.mark.parametrize(
    "line", ["x" * 101, f'        "{"x" * 101}\\n"', f"#define X {'x' * 101}", "    f(x);"]
)
def test_other_lines_are_not_changed(line: str) -> None:
    """These lines are short, or have no place to break them."""
    assert laid_out(line) == line


def test_comments_take_one_line_if_they_fit() -> None:
    assert comment("a b", "  ") == "  /* a b */"
    assert comment("a " * 60).startswith("/*\n * a a ")

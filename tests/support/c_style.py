"""Style of generated C: what a reviewer would reject, and what clang-format would change."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

COLUMNS = 100
"""Maximum length of a line."""

_FORMAT = """{
    BasedOnStyle: LLVM, IndentWidth: 4, ColumnLimit: 100, AlignAfterOpenBracket: AlwaysBreak,
    AlignEscapedNewlines: DontAlign, AlignOperands: DontAlign, AlignTrailingComments: false,
    AllowShortFunctionsOnASingleLine: None, Cpp11BracedListStyle: false,
    PenaltyBreakAssignment: 100, PenaltyReturnTypeOnItsOwnLine: 100000, SortIncludes: Never
}"""
_PROGRAM = Path(sys.executable).with_name("clang-format")
_OWN_LAYOUT = re.compile(r"(__asm__\().*?(\\n\"\);)|(_t \w+ = \{\n).*?(\n *\};)", re.DOTALL)
"""Assembly and initializers of structs: clang-format does not know what their lines mean."""
_NEUTRAL = re.compile(r"\w[)\]]* (?:[*/%] 1|[+-] 0|>> 0)(?![\w.])|\b1 \* |\b0 \+ |- -\d|\.rept 1\b")
_ONE_BYTE = re.compile(r"mem(?:cpy|move|set)\([^;]*, 1\);")
_LOOP = re.compile(
    r"for \((?:\w+ )?(?P<i>\w+) = (?P<start>\d+); (?P=i) < (?P<limit>\d+); "
    r"(?:\+\+(?P=i)|(?P=i) \+= (?P<step>\d+)).*"
)
"""The head of a loop from a constant to a constant."""
_MACRO = re.compile(r"^ *# *define \w+(?:\([^)]*\))? +(?P<value>.*)$", re.MULTILINE)
_SAFE = re.compile(
    r"[({].*|(?:\w+ )?\".*|do \{ .*|_Pragma.*|__\w+__.*|SMELT_NAKED|static inline.*|\\|"
    r"\w+_t|float|double|\w+\(.*\)|\w+_with_step_callback"
)
"""Values without parentheses: brackets, strings, statements, attributes, types, a function."""
_FUNCTION = re.compile(r"^\w[^;{}()#]*?\b(\w+)\([^;{}]*\) \{\n.*?^\}$", re.MULTILINE | re.DOTALL)
"""A definition of a function, with its name."""
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def without_comments(text: str) -> str:
    """Return C without its comments."""
    return _COMMENT.sub("", text)


def neutral_terms(code: str) -> list[str]:
    """Return the products by one, sums with zero and copies of one byte in C without comments."""
    return [match[0] for pattern in (_NEUTRAL, _ONE_BYTE) for match in pattern.finditer(code)]


def single_iterations(code: str) -> list[str]:
    """Return the heads of loops of less than two iterations in C without comments."""
    return [
        match[0]
        for match in _LOOP.finditer(code)
        if int(match["start"]) + int(match["step"] or 1) >= int(match["limit"])
    ]


def bare_macros(code: str) -> list[str]:
    """Return the macro values that need parentheses and have none, in C without comments."""
    values = [match["value"].strip() for match in _MACRO.finditer(code)]
    return [value for value in values if not _SAFE.fullmatch(value)]


def equal_functions(code: str) -> dict[str, str]:
    """Return the functions that equal an earlier one but for their names, in C without comments.

    Functions are also equal if they call equal functions. If a function has several definitions,
    as one in assembly and one in C, all of them are compared.
    """
    texts: dict[str, str] = {}
    for match in _FUNCTION.finditer(code):
        texts[match[1]] = texts.get(match[1], "") + " ".join(match[0].split())
    found: dict[str, str] = {}
    while True:
        first: dict[str, str] = {}
        before = len(found)
        for name, text in texts.items():
            own = _renamed(text, found | {name: "own"})
            if first.setdefault(own, name) != name:
                found[name] = first[own]
        if len(found) == before:
            return found


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Return C with other names for some functions."""
    return _WORD.sub(lambda word: names.get(word[0], word[0]), text)


@cache
def layout_changes(name: str, text: str, *, kernels: bool = False) -> tuple[str, ...]:
    """Return what clang-format would change in a file; comments behind code may be aligned.

    Args:
        name: The file's name, which says the language.
        text: The file's text.
        kernels: Whether the file has kernels, whose assembly and structs are laid out as a table.
    """
    code = _OWN_LAYOUT.sub(_emptied, text) if kernels else text
    code = re.sub(r"(?<=\S) +(?=/\*)", " ", code)
    language = "x.cpp" if name.endswith((".cpp", ".ino")) else "x.c"
    done = subprocess.run(
        [_PROGRAM, f"--style={_FORMAT}", f"--assume-filename={language}"],
        input=code, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return tuple(difflib.unified_diff(code.splitlines(), done.stdout.splitlines(), name, n=0))


def _emptied(match: re.Match[str]) -> str:
    return "__asm__(0);" if match[1] else f"{match[3][:-1]} 0 }};"

"""Layout and style of generated C: defects that a reviewer would reject."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from smelt.api.artifact import Artifact
from smelt.api.options import Options
from tests.support.banded_networks import RandomNetwork
from tests.support.graphs import compile_graph
from tests.support.projects import digits

COLUMNS = 100

_NEUTRAL = re.compile(r"\w[)\]]? (?:[*/%] 1|[+-] 0)(?![\w.])|\b1 \* |- -\d|\.rept 1\b")
_ONE_BYTE = re.compile(r"mem(?:cpy|move|set)\([^;]*, 1\);")
_ONE_TURN = re.compile(r"for \(int32_t (?P<i>\w+) = 0; (?P=i) < 1;.*")
_RENAMED = re.compile(r"const int32_t \w+ = [ijk];")
_ZERO = re.compile(r"\[\w+, #0\]|(?:lsl|lsr|asr) #0\b|(?:lsls?|lsrs?|asrs?) \w+, \w+, #0\b")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_PROTOTYPE = re.compile(
    r"^\w[^;{}]*?(\w+)\([^;{}]*\);\n+\w[^;{}()]*?\b\1\([^;{}]*\) \{", re.MULTILINE
)
_MACRO = re.compile(r"^ *# *define \w+(?:\([^)]*\))? +(?P<value>.*)$", re.MULTILINE)
_SAFE = re.compile(
    r"[({].*|(?:\w+ )?\".*|do \{ .*|_Pragma.*|__\w+__.*|SMELT_NAKED|static inline.*|\\|"
    r"\w+_t|float|double|\w+\(.*\)"
)
"""Macro values that need no parentheses: bracketed, strings, statements, attributes, types."""

NETWORKS: dict[str, Callable[[], Artifact]] = {
    **{
        target: lambda target=target: digits(Options(target=target))
        for target in ("host", "cortex-m0", "cortex-m3", "cortex-m4", "cortex-m23", "cortex-m55")
    },
    "float32": lambda: digits(model="digits_float32"),
    "size in plain C": lambda: digits(Options("cortex-m3", optimize="size", backends=("c",))),
    "few rows at a time": lambda: compile_graph(
        RandomNetwork(0).chain(4), Options("cortex-m4", optimize="ram")
    ),
}

FIRMWARE: dict[str, Callable[[], Artifact]] = {
    "firmware of host": lambda: digits().with_firmware(),
    **{
        f"firmware of {board}": lambda board=board: digits(Options(board=board))
        for board in (
            *("hifive1-revb", "microbit", "mps2-an386", "netduinoplus2", "nucleo-l4r5zi"),
            *("nucleo-u575zi-q", "pico", "pico2", "virt-riscv32"),
        )
    },
}
"""Networks with firmware: together, they have every UART, timer and boot code."""

PROGRAMS = NETWORKS | FIRMWARE


def _sources(network: str) -> dict[str, str]:
    files = PROGRAMS[network]().project.files
    names = (name for name in files if name.endswith((".c", ".h")) and "weights" not in name)
    return {name: files[name] for name in names}


def _without_comments(text: str) -> str:
    return _COMMENT.sub("", text)


@pytest.mark.parametrize("network", PROGRAMS)
def test_no_expression_has_a_term_without_effect(network: str) -> None:
    for name, text in _sources(network).items():
        code = _without_comments(text)
        found = [*_NEUTRAL.findall(code), *_ONE_BYTE.findall(code)]
        assert not found, f"{name}: {found}"


@pytest.mark.parametrize("network", ["host", "cortex-m3", "cortex-m4", "cortex-m55"])
def test_loops_have_several_turns(network: str) -> None:
    for name, text in _sources(network).items():
        found = _ONE_TURN.findall(_without_comments(text))
        assert not found, f"{name}: {found}"


@pytest.mark.parametrize("network", [name for name in NETWORKS if name != "cortex-m55"])
def test_no_variable_is_another_name_of_a_counter(network: str) -> None:
    for name, text in _sources(network).items():
        found = _RENAMED.findall(_without_comments(text))
        assert not found, f"{name}: {found}"


@pytest.mark.parametrize("network", NETWORKS)
def test_assembly_has_no_offsets_or_shifts_of_zero(network: str) -> None:
    for name, text in _sources(network).items():
        found = _ZERO.findall(_without_comments(text))
        assert not found, f"{name}: {found}"


def test_comments_say_what_the_fields_of_a_layer_are() -> None:
    text = _sources("cortex-m4")["digits_int8_net_kernels.h"]
    structs = re.findall(r"typedef struct \{\n(.*?)\} digits\w+_layer_t;", text, re.DOTALL)
    fields = [line for struct in structs for line in struct.splitlines()]
    assert len(structs) == 1
    assert [line for line in fields if not re.search(r"int32_t \w+; +/\* .* \*/$", line)] == []


@pytest.mark.parametrize("network", NETWORKS)
def test_zero_points_are_subtracted_without_a_double_minus(network: str) -> None:
    assert not [name for name, text in _sources(network).items() if "- -" in text]


@pytest.mark.parametrize("network", PROGRAMS)
def test_lines_fit_into_100_columns(network: str) -> None:
    for name, text in _sources(network).items():
        long = [line for line in text.splitlines() if len(line) > COLUMNS]
        assert not long, f"{name}: {long}"


@pytest.mark.parametrize("network", NETWORKS)
def test_no_prototype_directly_precedes_its_definition(network: str) -> None:
    for name, text in _sources(network).items():
        found = [match[1] for match in _PROTOTYPE.finditer(_without_comments(text))]
        assert not found, f"{name}: {found}"


@pytest.mark.parametrize("network", PROGRAMS)
def test_values_of_macros_are_in_parentheses(network: str) -> None:
    for name, text in _sources(network).items():
        values = [match["value"].strip() for match in _MACRO.finditer(_without_comments(text))]
        bare = [value for value in values if not _SAFE.fullmatch(value)]
        assert not bare, f"{name}: {bare}"


_FORMAT = """{
    BasedOnStyle: LLVM, IndentWidth: 4, ColumnLimit: 100, AlignAfterOpenBracket: AlwaysBreak,
    AlignEscapedNewlines: DontAlign, AlignOperands: DontAlign, AlignTrailingComments: false,
    AllowShortFunctionsOnASingleLine: None, Cpp11BracedListStyle: false,
    PenaltyBreakAssignment: 100, PenaltyReturnTypeOnItsOwnLine: 100000, SortIncludes: Never
}"""
_PROGRAM = Path(sys.executable).with_name("clang-format")
_OWN_LAYOUT = re.compile(r"(__asm__\().*?(\\n\"\);)|(_t \w+ = \{\n).*?(\n *\};)", re.DOTALL)
"""Assembly and initializers of structs: clang-format does not know what their lines mean."""


def _emptied(match: re.Match[str]) -> str:
    return "__asm__(0);" if match[1] else f"{match[3][:-1]} 0 }};"


@pytest.mark.parametrize("network", NETWORKS)
def test_clang_format_changes_nothing(network: str) -> None:
    """Comments at the ends of lines may be aligned."""
    for name, text in _sources(network).items():
        code = re.sub(r"(?<=\S) +(?=/\*)", " ", _OWN_LAYOUT.sub(_emptied, text))
        done = subprocess.run(
            [_PROGRAM, f"--style={_FORMAT}", "--assume-filename=x.c"],
            input=code, capture_output=True, text=True, check=True,
        )  # fmt: skip
        changes = difflib.unified_diff(code.splitlines(), done.stdout.splitlines(), name, n=0)
        assert not list(changes)

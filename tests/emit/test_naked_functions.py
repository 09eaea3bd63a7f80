"""Functions in assembly are one `__asm__` statement: several need not stay together, says GCC."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from smelt.api.compile import compile_model
from smelt.api.options import Options
from tests.support.shared import shared
from tests.support.tflite_networks import DIGITS

CORES = ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55")

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_NAKED = re.compile(r"^SMELT_(?:NAKED|DSP) [^;{}]*\{\n(?P<body>.*?)^\}", re.MULTILINE | re.DOTALL)
_PLAIN = re.compile(r"^#if SMELT_HAS_DSP\n(?P<assembly>.*?)^#else\n.*?^#endif\n", re.M | re.DOTALL)
_PRAGMA = re.compile(r"^#pragma GCC diagnostic .*\n", re.MULTILINE)
_STATEMENT = re.compile(r'\s*__asm__\((?:\s*"(?:[^"\\]|\\.)*")+\s*\);\s*')


def naked(text: str) -> Iterator[str]:
    """Yield the body of each naked function, as a compiler for its core reads it."""
    for match in _NAKED.finditer(_COMMENT.sub("", text)):
        body, plain = match["body"], _PLAIN.search(match["body"])
        if plain:
            assert (body[: plain.start()] + body[plain.end() :]).strip() == ""
            body = plain["assembly"]
        yield _PRAGMA.sub("", body)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("network", ["digits", "vww", "ic"])
def test_a_naked_function_is_one_statement(network: str, core: str) -> None:
    """`--expand-weights` selects Winograd's algorithm for `ic` on Cortex-M4."""
    folder = DIGITS if network == "digits" else shared("models/mlperf_tiny")
    options = Options(target=core, expand_weights=network == "ic")
    files = compile_model(folder / f"{network}_int8.tflite", options).project.files
    text = next(text for name, text in files.items() if name.endswith("_kernels.c"))
    bodies = list(naked(text))
    assert len(bodies) == len(re.findall(r"^SMELT_(?:NAKED|DSP) ", text, re.MULTILINE)) > 2
    assert [body for body in bodies if not _STATEMENT.fullmatch(body)] == []
    assert text.count("diagnostic push") == text.count("diagnostic pop")


def test_other_bodies_are_found() -> None:
    one = '    __asm__(\n        "nop\\n" /* far */\n        "bx lr\\n");\n'
    for body in (one + one, one + "    return 1;\n", "    int x;\n" + one, ""):
        (found,) = naked(f"SMELT_NAKED static int f(int a) {{\n{body}}}\n")
        assert not _STATEMENT.fullmatch(found)
    (found,) = naked(f"SMELT_NAKED static int f(int a) {{\n{one}}}\n")
    assert _STATEMENT.fullmatch(found)

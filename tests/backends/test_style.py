"""Layout, loops of one iteration and terms without effect in the C of all operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from smelt.api.options import Options
from tests.backends.test_cases import build, pairs
from tests.support.c_style import (
    COLUMNS,
    layout_changes,
    neutral_terms,
    single_iterations,
    without_comments,
)
from tests.support.graphs import compile_graph

OPERATORS = sorted({type(case.op).__name__ for case, _ in pairs()})

ROUNDED = {"RoiAlign"}
"""Bins in one row or column: their positions are sums and products of floats, rounded at each."""


def _kernels(operator: str) -> Iterator[tuple[str, str]]:
    """Yield each case's name and its kernels in C."""
    for case, dtype in pairs():
        if type(case.op).__name__ == operator:
            files = compile_graph(build(case, dtype), Options(name="net")).project.files
            for name, text in files.items():
                if name == "net_net_kernels.c":
                    yield f"{case.name} {dtype.name}", text


@pytest.mark.quick(every=8)
@pytest.mark.parametrize("operator", OPERATORS)
def test_kernels_have_no_terms_without_effect(operator: str) -> None:
    for name, text in _kernels(operator):
        code = without_comments(text)
        assert operator in ROUNDED or not neutral_terms(code), name
        assert operator in ROUNDED or not single_iterations(code), name


@pytest.mark.quick(every=8)
@pytest.mark.parametrize("operator", OPERATORS)
def test_kernels_are_laid_out(operator: str) -> None:
    texts = {text: name for name, text in _kernels(operator)}
    for text, name in texts.items():
        assert "\n\n\n" not in text, name
        assert not [line for line in text.splitlines() if len(line) > COLUMNS], name
    assert not layout_changes("kernels.c", "".join(texts), kernels=True)

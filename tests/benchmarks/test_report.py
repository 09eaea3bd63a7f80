"""Tests that documents show the figures of `bench/results/`."""

import re
import shutil

import pytest

from bench.report import documents
from bench.tour import toured
from tests.support.shared import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 700


@pytest.mark.parametrize("path", documents())
def test_a_document_shows_the_stored_results(path: str) -> None:
    written = (ROOT / path).read_text(encoding="utf-8")
    assert written == documents()[path], "run: python -m bench report"


@pytest.mark.parametrize("path", ["README.md", "docs/benchmarks.md"])
def test_documents_say_that_no_board_was_measured(path: str) -> None:
    assert "**No figure comes from a real board" in (ROOT / path).read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@pytest.mark.qemu
@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("gdb-multiarch") is None, reason="gdb-multiarch is not installed")
def test_the_tour_prints_what_the_readme_shows() -> None:
    """Instruction counts differ slightly between runs, because of the board's timer."""
    found = toured(README)
    assert NUMBER.sub("0", found) == NUMBER.sub("0", README), "run: python -m bench tour"
    figures = [
        [float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in (found, README)
    ]
    assert figures[0] == pytest.approx(figures[1], rel=1e-3), "run: python -m bench tour"

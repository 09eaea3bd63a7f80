"""The ONNX backend suite: the page `docs/conformance.md` says what happens."""

from __future__ import annotations

from collections import defaultdict

import pytest

from bench import conformance
from bench.onnx_suite import SuiteCase, cases
from tests.shared import ROOT

REGENERATE = "run: python -m bench conformance --markdown > docs/conformance.md"
PAGE = (ROOT / "docs/conformance.md").read_text(encoding="utf-8")


def _sample() -> list[SuiteCase]:
    """All cases of every twelfth of the small operators."""
    groups: dict[str, list[SuiteCase]] = defaultdict(list)
    for case in cases(["node"]):
        groups[case.operator].append(case)
    small = [name for name, own in sorted(groups.items()) if len(own) <= 6]
    return [case for name in small[::6] for case in groups[name]]


def test_a_sample_runs_as_the_page_says() -> None:
    chosen = _sample()
    assert len(chosen) >= 40
    table = conformance.by_operator(list(conformance.judge(chosen)))
    for row in table.markdown().splitlines()[2:]:
        assert row in PAGE, f"{row}\n{REGENERATE}"


def test_no_case_fails_and_the_totals_are_those_of_the_readme() -> None:
    totals = PAGE[PAGE.index("| set |") : PAGE.index("\n## Node cases")]
    assert totals in (ROOT / "README.md").read_text(encoding="utf-8"), "copy the table of totals"
    assert "## Failures" not in PAGE


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    verdicts = list(conformance.judge(cases(), execute=False))
    assert conformance.page(verdicts) == PAGE, REGENERATE

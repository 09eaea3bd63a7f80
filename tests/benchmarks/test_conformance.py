"""Tests that the page `docs/conformance.md` reports the results of the ONNX backend suite."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from bench import conformance
from bench.__main__ import app
from bench.onnx_suite import SuiteCase, cases
from tests.support.shared import ROOT

REGENERATE = "run: python -m bench conformance --markdown > docs/conformance.md"
PAGE = (ROOT / "docs/conformance.md").read_text(encoding="utf-8")


def _sample() -> list[SuiteCase]:
    """Return all cases of every sixth operator among those with at most six cases."""
    groups: dict[str, list[SuiteCase]] = defaultdict(list)
    for case in cases(["node"]):
        groups[case.operator].append(case)
    small = [name for name, own in sorted(groups.items()) if len(own) <= 6]
    return [case for name in small[::6] for case in groups[name]]


def test_a_sample_of_cases_gives_the_rows_of_the_page() -> None:
    chosen = _sample()
    assert len(chosen) >= 40
    table = conformance.by_operator(list(conformance.judge(chosen)))
    for row in table.markdown().splitlines()[2:]:
        assert row in PAGE, f"{row}\n{REGENERATE}"


def test_no_case_fails() -> None:
    assert "## Failures" not in PAGE


def _cases(*names: str) -> list[SuiteCase]:
    return [case for case in cases(["node"]) if case.name in names]


def test_onnxruntime_decides_if_the_suite_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    (relu, resize) = _cases("test_relu", "test_resize_downsample_scales_linear_align_corners")
    ((inputs, (stored,)),) = relu.data
    other = replace(relu, data=((inputs, [stored + 1]),))
    judged = list(conformance.judge([relu, other, resize]))
    assert [v.status for v in judged] == ["passed", "onnxruntime", "onnxruntime"]
    assert [v.counted for v in judged] == [True, True, False], "the last has frozen reals"
    assert "- test_relu\n" in conformance.page(judged)

    def _silent(case: SuiteCase) -> None:
        del case

    monkeypatch.setattr(SuiteCase, "by_onnxruntime", _silent)
    assert [v.status for v in conformance.judge([other])] == ["failed"]


def test_onnxruntime_excuses_only_results_like_its_own() -> None:
    (relu, abs_) = _cases("test_relu", "test_abs")
    ((inputs, (stored,)),) = relu.data
    other = replace(relu, data=((inputs, [stored + 1]),))
    wrong = replace(other, model=abs_.model)
    judge = wrong.by_onnxruntime()
    assert judge is not None
    assert other.mismatch([stored], judge[0]) is not None


def test_a_network_that_computes_nothing_does_not_pass() -> None:
    names = ("test_flatten_axis1", "test_identity", "test_reshape_one_dim", "test_relu")
    found = {v.name: (v.status, v.counted) for v in conformance.judge(_cases(*names))}
    assert found == dict.fromkeys(names[:3], ("no kernel", False)) | {"test_relu": ("passed", True)}


def test_conversions_are_exact() -> None:
    (case,) = _cases("test_cast_FLOAT_to_FLOAT16")
    expected = case.imported().expectations[0]
    (stored,) = expected.outputs
    right = stored.astype(np.float32)
    assert case.mismatch([right], expected) is None
    assert case.mismatch([right * np.float32(1 + 2**-12)], expected) is not None


def test_a_page_needs_execution() -> None:
    found = CliRunner().invoke(app, ["conformance", "--no-execute", "--markdown", "test_relu"])
    assert found.exit_code == 2
    assert "omit --no-execute" in found.output


@pytest.mark.parametrize("name", ["TfIdfVectorizer", "tfidfvectorizer", "test_tfidfvectorizer_tf_"])
def test_operators_are_found_in_lower_and_upper_case(name: str) -> None:
    found = CliRunner().invoke(app, ["conformance", "--no-execute", name])
    assert found.exit_code == 0, found.output
    assert "TfIdfVectorizer" in found.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Convv"], "did you mean Conv"),
        (["--sets", "nodes"], "no set is called 'nodes'"),
        ([""], "the name is empty"),
    ],
)
def test_unknown_names_are_errors(arguments: list[str], message: str) -> None:
    found = CliRunner().invoke(app, ["conformance", "--no-execute", *arguments])
    assert found.exit_code == 2
    assert message in found.output


@pytest.mark.thorough
def test_the_page_is_up_to_date() -> None:
    verdicts = list(conformance.judge(cases()))
    assert conformance.page(verdicts) == PAGE, REGENERATE

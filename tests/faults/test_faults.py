"""Faults that are planted: each still applies, is in the docs, and is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import FAULTS
from tests.faults.fault import Fault
from tests.faults.run import run_all
from tests.faults.table import row
from tests.support.shared import ROOT

PARTS = {"kernel", "pass", "arena", "quantizer", "wire", "verify"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.part}: {fault.says}")
def test_every_fault_still_applies(fault: Fault, tmp_path: Path) -> None:
    path = tmp_path / fault.file
    path.parent.mkdir(parents=True)
    path.write_bytes((ROOT / fault.file).read_bytes())
    before = fault.apply(tmp_path)
    assert path.read_text(encoding="utf-8") != before
    files = [argument for argument in fault.tests if argument.startswith("tests/")]
    assert files
    assert all((ROOT / file).is_file() for file in files)


def test_a_fault_that_no_longer_applies_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("twice = twice\n")
    for old, count in (("twice", 2), ("never", 0)):
        with pytest.raises(ValueError, match=f"'{old}' occurs {count} times in a.py, not once"):
            Fault("pass", "nothing", "a.py", old, "", ()).apply(tmp_path)


def test_faults_are_everywhere() -> None:
    assert len(FAULTS) >= 40
    assert {fault.part for fault in FAULTS} == PARTS
    assert len({(fault.file, fault.new, fault.old) for fault in FAULTS}) == len(FAULTS)


def test_the_docs_list_them() -> None:
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    missing = [fault.says for fault in FAULTS if row(fault) not in text]
    assert not missing, "write the table anew: python -m tests.faults --markdown"


@pytest.mark.slow
def test_every_fault_is_found() -> None:
    outcomes, broken = run_all(FAULTS, 2, lambda _: None)
    assert not broken
    assert not [outcome.fault.says for outcome in outcomes if not outcome.found_by]

"""Tests that each planted fault still applies, is in the docs, and is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import FAULTS
from tests.faults.fault import Fault
from tests.faults.run import run_all
from tests.faults.table import HEAD, row
from tests.support.shared import ROOT

COMPILER = {"kernel", "backend", "partition", "pass", "arena", "quantizer", "emit"}
PARTS = {*COMPILER, "wire", "verify"}
PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")


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


def test_every_part_and_backend_has_a_fault() -> None:
    assert len(FAULTS) >= 40
    assert {fault.part for fault in FAULTS} == PARTS
    folders = {path.parent.name for path in (ROOT / "codegen/backends").glob("*/__init__.py")}
    assert folders <= {Path(fault.file).parent.name for fault in FAULTS}, (
        "plant a fault in each backend"
    )
    assert len({(fault.file, fault.new, fault.old) for fault in FAULTS}) == len(FAULTS)


def test_the_docs_list_every_fault() -> None:
    table = PAGE.partition("\n".join(HEAD))[2].partition("\n\n")[0]
    listed = [line.rpartition(" | ")[0] + " |" for line in table.strip().splitlines()]
    assert listed == [row(f) for f in FAULTS], "run: python -m tests.faults --markdown"
    assert f"{len(FAULTS)} of {len(FAULTS)} are found" in PAGE


def test_the_tests_that_find_faults_are_quick() -> None:
    """According to the docs, `make test` runs a test that finds each fault."""
    finders = {fault: finder(fault) for fault in FAULTS}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *sorted(set(finders.values()))],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    quick = {line.partition("[")[0] for line in done.stdout.splitlines()}
    assert not [fault.says for fault, test in finders.items() if test not in quick]
    assert sum(fault.part in COMPILER for fault in finders) >= 30


def finder(fault: Fault) -> str:
    """Return the test that finds a fault according to the docs."""
    found = re.search(re.escape(row(fault)) + r" `(.+?)` \|$", PAGE, flags=re.MULTILINE)
    assert found is not None, fault.says
    return f"tests/{found[1]}"


@pytest.mark.slow
def test_every_fault_is_found() -> None:
    outcomes, broken = run_all(FAULTS, 2, lambda _: None)
    assert not broken
    assert not [outcome.fault.says for outcome in outcomes if not outcome.found_by]

"""Plant faults in copies of the tree and run the tests that must find them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from smelt.files import temporary_folder
from tests.faults.fault import Fault
from tests.support.shared import ROOT, SHARED

_LIMIT_S = 900
"""Seconds for the tests of one fault. A test that hangs has found the fault."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """The outcome of planting a fault.

    Attributes:
        fault: the planted fault.
        found_by: the test that failed; empty if none did.
        said: the end of pytest's output.
    """

    fault: Fault
    found_by: str
    said: str


def run_all(
    faults: Sequence[Fault], jobs: int, told: Callable[[Outcome], None]
) -> tuple[list[Outcome], list[str]]:
    """Plant every fault; return the outcomes, and the tests that fail without any fault.

    Args:
        faults: in the order of the outcomes.
        jobs: number of faults at a time, each in its own copy of the tree.
        told: called with each outcome as it arrives.
    """
    with temporary_folder() as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            trees.put(_copy(Path(folder) / str(number)))

        def judge(fault: Fault) -> Outcome:
            tree = trees.get()
            try:
                outcome = _judge(fault, tree)
            finally:
                trees.put(tree)
            told(outcome)
            return outcome

        with ThreadPoolExecutor(jobs) as pool:
            outcomes = list(pool.map(judge, faults))
        # A test that found a fault must pass without it.
        found = sorted({outcome.found_by for outcome in outcomes if outcome.found_by})
        code, said = _pytest(trees.get(), found) if found else (0, "")
        broken = _FAILED.findall(said)
        if code and not broken:
            broken = [said]
        return outcomes, broken


def _judge(fault: Fault, tree: Path) -> Outcome:
    before = fault.apply(tree)
    try:
        code, said = _pytest(tree, ("-x", *fault.tests))
    except subprocess.TimeoutExpired:
        return Outcome(fault, fault.tests[0], f"took more than {_LIMIT_S} s")
    finally:
        (tree / fault.file).write_text(before, encoding="utf-8")
        _forget(tree / fault.file)
    failed = _FAILED.findall(said) if code == 1 else []
    return Outcome(fault, failed[0] if failed else "", said)


def _pytest(tree: Path, arguments: Iterable[str]) -> tuple[int, str]:
    """Return pytest's exit status and the end of its output."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "SMELT_SHARED": str(SHARED),
        "CCACHE_DIR": os.environ.get("CCACHE_DIR", str(ROOT / ".pytest_cache/d/ccache")),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--tb=line", *arguments]
    done = subprocess.run(
        command,
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_LIMIT_S,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr)[-4000:]


def _forget(file: Path) -> None:
    """Drop a module's bytecode: Python reuses it for a source of equal size and time in seconds."""
    for kept in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        kept.unlink()


def _copy(to: Path) -> Path:
    for name in tree_files():
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    return to


def tree_files() -> Iterator[str]:
    """Return the paths of existing files that git tracks or does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = dict.fromkeys(name for name in listing.split("\0") if name)
    return (name for name in names if (ROOT / name).is_symlink() or (ROOT / name).is_file())

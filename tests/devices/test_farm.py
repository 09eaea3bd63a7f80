"""A farm: verification on many boards in parallel, by several kinds of executors."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from smelt import boards
from smelt.proof.farm import Job, Outcome, junit, verify_job, verify_jobs
from tests.support.board_tools import simulable
from tests.support.cli_runner import Smelt, runner
from tests.support.projects import images
from tests.support.tflite_networks import DIGITS

MODEL = DIGITS / "digits_int8.tflite"
BOARDS = ("mps2-an386", "microbit")

needs_qemu = pytest.mark.qemu


@pytest.fixture
def smelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


def job(board: str = "host", **changes: Any) -> Job:
    return replace(Job(str(MODEL), board, samples=2), **changes)


def test_jobs_and_outcomes_can_be_pickled() -> None:
    done = verify_job(pickle.loads(pickle.dumps(job())))
    assert done.passed
    assert done.message.startswith("bit-exact, 2 samples; ")
    assert done.report is not None
    assert done.report["network"]["name"] == "digits_int8"
    assert json.loads(json.dumps(done.report)) == done.report
    assert pickle.loads(pickle.dumps(done)) == done


def test_a_job_may_contain_model_and_samples() -> None:
    given, expected = images(3)
    inputs, right = {"input_0": given}, {"output_0": expected}
    done = verify_job(job(model=MODEL.read_bytes(), inputs=inputs, expect=right))
    assert done.passed
    assert done.message.startswith("bit-exact, 3 samples; ")
    wrong = {"output_0": np.roll(expected, 1, axis=0)}
    done = verify_job(job(inputs=inputs, expect=wrong))
    assert (done.passed, done.error) == (False, "VerifyError")
    assert "differs from --expect" in done.message
    assert done.report is not None
    assert not done.report["verification"]["passed"]


def test_a_failure_on_one_board_does_not_affect_others() -> None:
    jobs = [job(), job("no-such-board"), job("mps2-an386", on="socket://127.0.0.1:1")]
    with ThreadPoolExecutor(2) as executor:
        done = {outcome.board: outcome for outcome in verify_jobs(jobs, executor)}
    assert done["host"].passed
    assert done["no-such-board"].error == "ConfigError"
    assert done["mps2-an386"].error == "DeviceError"
    assert "Connection refused" in done["mps2-an386"].message


class Dying(Executor):
    """An executor whose workers die."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        del fn, args, kwargs
        future: Future[Any] = Future()
        future.set_exception(OSError("the worker's machine is gone"))
        return future


def test_a_dead_worker_gives_a_failed_outcome() -> None:
    (outcome,) = verify_jobs([job()], Dying())
    assert not outcome.passed
    assert outcome.message == "the worker failed: the worker's machine is gone"


def test_junit_counts_failures_and_errors() -> None:
    text = junit(
        "net",
        [
            Outcome("a", None, True, "bit-exact", 1.5),
            Outcome("b", "COM5", False, "sample 0: <differs>\nmore", 2, "VerifyError"),
            Outcome("c", None, False, "no board", 0.25, "ConfigError"),
        ],
    )
    (suite,) = ElementTree.fromstring(text)
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "time")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
        "time": "3.750",
    }
    good, failed, broken = suite
    assert good.findtext("system-out") == "bit-exact"
    failure = failed.find("failure")
    assert failure is not None
    assert failure.get("message") == "sample 0: <differs>"
    assert failure.text == "sample 0: <differs>\nmore"
    assert broken.find("error") is not None


@needs_qemu
def test_verify_with_boards_verifies_all_of_them(smelt: Smelt) -> None:
    for name in BOARDS:
        simulable(boards.load(name))
    names = ",".join((*BOARDS, "host"))
    options = ("--jobs", "2", "--samples", "2", "--json", "a.json", "--junit", "a.xml")
    done = smelt("verify", MODEL, "--boards", names, *options)
    assert done.code == 0, done.err
    heading, *rows = done.out.splitlines()
    assert heading.split()[:3] == ["board", "on", "verdict"]
    assert [row.split()[0] for row in rows] == [*BOARDS, "host"]
    assert all("passed" in row for row in rows)
    found = json.loads(Path("a.json").read_text())["boards"]
    assert [outcome["board"] for outcome in found] == [*BOARDS, "host"]
    assert found[0]["report"]["inference"]["instructions"] > 0
    assert 'tests="3" failures="0" errors="0"' in Path("a.xml").read_text()


def test_one_failed_board_makes_the_command_fail(smelt: Smelt) -> None:
    boards = "host,host=/dev/none"
    done = smelt("verify", MODEL, "--boards", boards, "--samples", "1", "--junit", "a.xml")
    assert done.code == 1
    assert "VerifyError: 1 of 2 boards: host: " in done.err
    assert "FAILED" in done.out
    assert 'tests="2" failures="0" errors="1"' in Path("a.xml").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--boards", "host,,microbit"], "give boards separated by commas"),
        (["--boards", "host="], "as BOARD or BOARD=PORT"),
        (["--boards", "host,microbitt"], "ConfigError: unknown board 'microbitt'; did you mean"),
        (["--boards", "host,host"], "a board is given twice with the same port"),
        (["--boards", "host", "--board", "microbit"], "cannot be combined with --board or --on"),
        (["--boards", "host", "--html", "a.html"], "cannot be combined with --html"),
        (["--boards", "host", "--max-arena", "1"], "cannot be combined with --html"),
        (["--jobs", "2"], "--jobs needs --boards"),
    ],
)
def test_contradicting_options_are_refused(smelt: Smelt, arguments: list[str], words: str) -> None:
    done = smelt("verify", MODEL, *arguments)
    assert done.code == 1
    assert words in done.err
    assert list(Path().iterdir()) == []


@pytest.mark.thorough
def test_dask_may_be_the_executor() -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):
        done = list(verify_jobs([job(), job("no-such-board"), job(seed=1)], executor))
    assert sorted(outcome.passed for outcome in done) == [False, True, True]


@pytest.mark.thorough
@needs_qemu
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_a_farm_that_ends_leaves_no_processes(tmp_path: Path, number: int, status: int) -> None:
    """After SIGTERM and SIGKILL, the workers and their QEMUs end too."""
    for name in BOARDS:
        simulable(boards.load(name))
    names = ",".join((*BOARDS, "mps2-an385", "mps2-an500", "host"))
    command = [sys.executable, "-m", "smelt", "verify", str(MODEL), "--boards", names]
    said = tmp_path / "said"
    with (
        said.open("wb") as output,
        subprocess.Popen(
            [*command, "--jobs", "2", "--samples", "100"],
            stdout=output,
            stderr=output,
            cwd=DIGITS.parents[1],
        ) as process,
    ):
        assert within(
            900, lambda: len(holders(said)) >= 4
        )  # this process, two workers, resource tracker
        time.sleep(2)  # let the workers begin their jobs
        process.send_signal(number)
        assert process.wait(900) == status
    if number == signal.SIGTERM:  # after it, the process waits for its workers
        assert set(holders(said).values()) <= {"resource tracker"}
    assert within(900, lambda: not holders(said))


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return met


def holders(file: Path) -> dict[str, str]:
    """Return the processes that have a file open: their command lines by process id.

    Python's resource tracker, listed as "resource tracker", ends shortly after the process that
    started it. A process that is ending has no command line any more, and is not returned.
    """
    found: dict[str, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process may end meanwhile
            command = (process / "cmdline").read_bytes().decode()
            if command and any(links_to(path, file) for path in (process / "fd").iterdir()):
                tracker = "multiprocessing.resource_tracker" in command
                found[process.name] = "resource tracker" if tracker else command
    return found


def links_to(path: Path, target: Path) -> bool:
    try:
        return path.readlink() == target
    except OSError:
        return False

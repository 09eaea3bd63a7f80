"""One network verified on many devices and simulators side by side.

The work is plain data, picklable, and so is what comes back: any executor of the form of
`concurrent.futures` will do, that of another machine's workers included, such as Dask's
`Client.get_executor()`. Ports are opened where the work is done.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.api.plugins import kernels, load_plugins
from smelt.errors import SmeltError, VerifyError
from smelt.ir import Array
from smelt.proof.rig import Rig
from smelt.proof.verify import failed, verified, verify_model
from smelt.samples import bind_expected, bind_samples, random_samples


@dataclass(frozen=True)
class Job:
    """What one worker does: compile a network for a board, run it there, compare.

    Attributes:
        model: the file's path, as the worker sees it, or its bytes.
        board: name of a board, path of a board file, or `host`.
        on: where it runs; see `Rig`. The default of the board where None.
        options: of the compilation; `board` and `kernels` are set by the worker.
        plugins: files with operators of the user's own.
        inputs: arrays by name, as of `smelt.samples`; random where None.
        expect: the outputs that are expected, by name.
        samples, seed: of random inputs.
        any_build: whether firmware that is there already may be another build of the network.
    """

    model: str | bytes
    board: str
    on: str | None = None
    options: Options = field(default_factory=Options)
    plugins: tuple[Path, ...] = ()
    inputs: Mapping[str, Array] | None = None
    expect: Mapping[str, Array] | None = None
    samples: int = 8
    seed: int = 0
    any_build: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        board, on: of the job.
        passed: whether the device computes what the model says.
        message: how exactly, or what is wrong.
        seconds: that the job took, of the worker's wall clock.
        error: the kind of error, None where it passed; `VerifyError` means that outputs differ.
        report: as of `smelt verify --json`, as far as there is one.
    """

    board: str
    on: str | None
    passed: bool
    message: str
    seconds: float
    error: str | None = None
    report: Mapping[str, Any] | None = None


def verify_job(job: Job) -> Outcome:
    """Do a job; errors of Smelt's own become an outcome."""
    start = time.monotonic()
    report: Mapping[str, Any] | None = None
    error: str | None = None
    try:
        own = kernels(load_plugins(job.plugins))
        artefact = compile_model(job.model, replace(job.options, board=job.board, kernels=own))
        report = artefact.report
        if job.inputs is None:
            samples = random_samples(artefact.graph, job.samples, job.seed)
        else:
            samples, _ = bind_samples(artefact.graph, job.inputs)
        expected = None if job.expect is None else bind_expected(artefact.graph, job.expect)
        verdict = verify_model(artefact, samples, Rig(job.on), expected, any_build=job.any_build)
        report, message = verified(verdict), str(verdict)
    except SmeltError as problem:
        error, message = problem.kind, str(problem)
        if report is not None:
            report = failed(report, problem, time.monotonic() - start)
    seconds = time.monotonic() - start
    return Outcome(
        board=job.board,
        on=job.on,
        passed=error is None,
        message=message,
        seconds=seconds,
        error=error,
        report=report,
    )


def verify_jobs(jobs: Sequence[Job], executor: Executor) -> Iterator[Outcome]:
    """Do all jobs; outcomes come as they are there. One whose worker died is an outcome too."""
    running: dict[Future[Outcome], Job] = {executor.submit(verify_job, job): job for job in jobs}
    for future in as_completed(running):
        job = running[future]
        try:
            yield future.result()
        except Exception as problem:  # noqa: BLE001 - whatever an executor raises for a lost worker
            message = f"the worker failed: {problem}"
            yield Outcome(job.board, job.on, False, message, 0.0, type(problem).__name__)


def end_with_parent() -> None:
    """Have this process end when the one that started it does, however that ends.

    For the workers of an executor, as its initializer: what they have started ends with them.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def junit(name: str, outcomes: Sequence[Outcome]) -> bytes:
    """Outcomes as JUnit's XML, which services of continuous integration read: one case a board.

    Outputs that differ are failures; whatever else went wrong is an error.
    """
    kinds = [outcome.error for outcome in outcomes]
    suite = ElementTree.Element(
        "testsuite",
        name=f"smelt verify {name}",
        tests=str(len(outcomes)),
        failures=str(kinds.count(VerifyError.__name__)),
        errors=str(sum(kind not in (None, VerifyError.__name__) for kind in kinds)),
        time=f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    )
    for outcome in outcomes:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            name=outcome.board,
            classname=f"smelt.{name}",
            time=f"{outcome.seconds:.3f}",
        )
        if outcome.error is None:
            ElementTree.SubElement(case, "system-out").text = outcome.message
        else:
            kind = "failure" if outcome.error == VerifyError.__name__ else "error"
            message = ElementTree.SubElement(case, kind, type=outcome.error)
            message.set("message", outcome.message.partition("\n")[0])
            message.text = outcome.message
    tree = ElementTree.Element("testsuites")
    tree.append(suite)
    ElementTree.indent(tree)
    return ElementTree.tostring(tree, encoding="utf-8", xml_declaration=True) + b"\n"

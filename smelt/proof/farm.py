"""Work on many devices and simulators in parallel: verification, and what other commands share.

Jobs and their outcomes are picklable data, so any executor with the interface of
`concurrent.futures` works, including remote ones such as Dask's `Client.get_executor()`. The worker
opens the device's port.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

from smelt.api.compile import Compiled, compile_model
from smelt.api.options import Options
from smelt.api.plugins import kernels, load_plugins
from smelt.errors import SmeltError, VerifyError
from smelt.ir import Array
from smelt.proof.rig import Rig
from smelt.proof.verify import failed, verified, verify_model
from smelt.samples import bind_expected, bind_samples, random_samples

J = TypeVar("J")
R = TypeVar("R")


@dataclass(frozen=True)
class Job:
    """Work of one worker: compile a network for a board, run it there and compare the outputs.

    Attributes:
        model: path of the file on the worker's machine, or its bytes.
        board: name of a board, path of a board file, or `host`.
        on: device to run on; see `Rig`. None selects the board's default.
        options: options of the build; the worker sets `board` and `kernels`.
        plugins: plugin files.
        inputs: arrays by name, as in `smelt.samples`; None selects random inputs.
        expect: expected outputs by name, or None.
        samples, seed: number and seed of random samples.
        any_build: whether the device may run another build of the network.
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
    """Result of a job.

    Attributes:
        board, on: those of the job.
        passed: whether the device computes the same outputs as the model.
        message: tolerance that was met, or what is wrong.
        seconds: duration of the job by the worker's wall clock.
        error: kind of error, or None if the job passed; `VerifyError` means that outputs differ.
        report: report as in `smelt verify --json`, as far as the job got, or None.
    """

    board: str
    on: str | None
    passed: bool
    message: str
    seconds: float
    error: str | None = None
    report: Mapping[str, Any] | None = None


def verify_job(job: Job) -> Outcome:
    """Run a job. A `SmeltError` becomes part of the outcome."""
    start = time.monotonic()
    report: Mapping[str, Any] | None = None
    error: str | None = None
    try:
        options = replace(job.options, board=job.board)
        artifact = compile_with_plugins(job.model, options, job.plugins)
        report = artifact.report
        if job.inputs is None:
            samples = random_samples(artifact.graph, job.samples, job.seed)
        else:
            samples, _ = bind_samples(artifact.graph, job.inputs)
        expected = None if job.expect is None else bind_expected(artifact.graph, job.expect)
        verdict = verify_model(artifact, samples, Rig(job.on), expected, any_build=job.any_build)
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
    """Run all jobs and yield each outcome when it is ready, also if its worker died."""
    for job, found in finished(verify_job, jobs, executor):
        if isinstance(found, Exception):
            message = f"the worker failed: {found}"
            found = Outcome(job.board, job.on, False, message, 0.0, type(found).__name__)
        yield found


def finished(
    work: Callable[[J], R], jobs: Sequence[J], executor: Executor
) -> Iterator[tuple[J, R | Exception]]:
    """Run all jobs; yield each with its result when it is ready, or with its worker's exception."""
    running: dict[Future[R], J] = {executor.submit(work, job): job for job in jobs}
    for future in as_completed(running):
        try:
            found = future.result()
        except Exception as problem:  # noqa: BLE001 - executors raise various types
            found = problem
        yield running[future], found


def compile_with_plugins(model: str | bytes, options: Options, plugins: Sequence[Path]) -> Compiled:
    """Load the plugins in this process and compile with their kernels; see `compile_model`.

    Kernels cannot be sent to a worker, but the paths of plugins can.
    """
    return compile_model(model, replace(options, kernels=kernels(load_plugins(plugins))))


@contextmanager
def local_workers(count: int) -> Generator[Executor]:
    """Yield an executor with processes of this computer, which end when this process ends.

    If the context is left by an exception, such as Ctrl-C, jobs that have not started are canceled.
    """
    # Spawn: forked workers would inherit the threads of the progress bar.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, spawn, end_with_parent) as executor:
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def end_with_parent() -> None:
    """Make this process end when its parent ends, for whatever reason.

    This is an initializer for an executor's workers, so that they and their children do not outlive
    the parent.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def junit(name: str, outcomes: Sequence[Outcome]) -> bytes:
    """Return outcomes as JUnit XML for continuous integration, one test case per board.

    Outputs that differ count as failures, everything else that went wrong as errors.
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

"""`smelt verify --boards`: verify a network on several boards in parallel."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from smelt.api.report import BuildLimits
from smelt.boards import find_computer, load
from smelt.cli.output import bar, progress_console, write_json
from smelt.cli.proof import ProofGroup
from smelt.cli.show import verify as show_verify
from smelt.errors import ConfigError, VerifyError
from smelt.files import distinct, write_files
from smelt.proof.farm import Job, Outcome, junit, local_workers, verify_jobs
from smelt.samples import load_arrays
from smelt.targets import HOST

ONE_PLACE = "--boards cannot be combined with --board or --on: give a port as --boards BOARD=PORT"


def verify_all(
    model: Path,
    boards: Sequence[str],
    at_once: int | None,
    proof: ProofGroup,
    *,
    any_build: bool = False,
) -> None:
    """Verify a network on several boards, at most `at_once` at a time, and print the results.

    Raises:
        ConfigError: an option is given that works for one board only.
        VerifyError: at least one board failed.
    """
    if proof.html is not None or proof.meter is not None or proof.build_limits() != BuildLimits():
        raise ConfigError("--boards cannot be combined with --html, --meter or limits (--max-...)")
    distinct({"--json": proof.json_, "--junit": proof.junit})
    work = [replace(job, any_build=any_build) for job in _jobs(model, boards, proof)]
    places = [(job.board, job.on) for job in work]
    found: list[Outcome] = []
    workers = min(at_once or os.cpu_count() or 1, len(work))
    with (
        local_workers(workers) as executor,
        bar(progress_console(proof.quiet), "verifying", len(work)) as advance,
    ):
        for outcome in verify_jobs(work, executor):
            found.append(outcome)
            advance(len(found))
    found.sort(key=lambda outcome: places.index((outcome.board, outcome.on)))
    if proof.json_ is not None:
        write_json(proof.json_, {"boards": [_record(outcome) for outcome in found]})
    if proof.junit is not None:
        write_files({proof.junit: junit(model.stem, found)})
    show_verify.farm(found).print(Console())
    wrong = [outcome for outcome in found if not outcome.passed]
    if wrong:
        raise VerifyError(
            f"{len(wrong)} of {len(found)} boards: "
            + "; ".join(f"{outcome.board}: {outcome.message}" for outcome in wrong)
        )


def _jobs(model: Path, boards: Sequence[str], proof: ProofGroup) -> list[Job]:
    """Return one job per board. Raise a `ConfigError` for an unknown board or a wrong option."""
    places = _places(boards)
    for board, _ in places:  # report an unknown board before the first job starts
        if board != HOST.name and find_computer(board) is None:
            load(board)
    proof.check()
    if proof.board is not None:
        raise ConfigError(ONE_PLACE)
    job = Job(
        str(model.resolve()),
        "host",
        options=replace(proof.build_options(), kernels={}),
        plugins=tuple(path.resolve() for path in proof.plugin_files()),
        inputs=None if proof.inputs is None else load_arrays(proof.inputs),
        expect=None if proof.expect is None else load_arrays(proof.expect),
        samples=proof.samples,
        seed=proof.seed,
    )
    return [replace(job, board=board, on=on) for board, on in places]


def _record(outcome: Outcome) -> Mapping[str, Any]:
    return {
        "board": outcome.board,
        "on": outcome.on,
        "passed": outcome.passed,
        "message": outcome.message,
        "error": outcome.error,
        "seconds": outcome.seconds,
        "report": outcome.report,
    }


def _places(texts: Sequence[str]) -> list[tuple[str, str | None]]:
    text = ",".join(texts)
    places: list[tuple[str, str | None]] = []
    for word in text.split(","):
        board, equals, port = word.strip().partition("=")
        if not board or (equals and not port):
            raise ConfigError(
                f"--boards '{text}': give boards separated by commas, as BOARD or BOARD=PORT"
            )
        places.append((board, port or None))
    if len(set(places)) < len(places):
        raise ConfigError(f"--boards '{text}': a board is given twice with the same port")
    return places

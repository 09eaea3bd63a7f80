"""A campaign's report and the files that it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.campaign import Campaign, Failure
from tests.fuzz.case import Case, made
from tests.fuzz.forked import FAILURES, Result
from tests.fuzz.formats import BY_NAME

_COLUMNS = ("format", "files", "fine", "refused", *FAILURES, "slowest s", "peak MiB")


def table(campaign: Campaign) -> Iterator[str]:
    """Return the lines of a Markdown table: one row per format, and the sum."""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield f"| --- |{' --: |' * (len(_COLUMNS) - 1)}"
    rows = sorted(campaign.tallies.items())
    for name, tally in rows:
        kinds = [tally.kinds[kind] for kind in ("fine", "refused", *FAILURES)]
        figures = [f"{number:,}" for number in (tally.kinds.total(), *kinds)]
        yield f"| {' | '.join([name, *figures])} | {tally.slowest:.1f} | {tally.largest >> 20:,} |"
    sums = [sum(t.kinds[kind] for _, t in rows) for kind in ("fine", "refused", *FAILURES)]
    slowest = max((t.slowest for _, t in rows), default=0.0)
    largest = max((t.largest for _, t in rows), default=0)
    figures = [f"{number:,}" for number in (campaign.files, *sums)]
    yield f"| {' | '.join(['all', *figures])} | {slowest:.1f} | {largest >> 20:,} |"


def write(folder: Path, number: int, failure: Failure, case: Case) -> Path:
    """Write a file that reproduces a failure, and notes beside it; return the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    format_ = BY_NAME[case.format]
    path = folder / f"{case.format}-{number}-{failure.result.kind}{format_.suffix}"
    path.write_bytes(made(case, format_))
    notes = {
        "format": case.format,
        "variant": case.variant,
        "seed": failure.case.seed,
        "steps": failure.case.steps,
        "kind": failure.result.kind,
        "place": failure.result.place,
        "message": failure.result.message,
        "files": failure.count,
        "replay": f"python -m tests.fuzz --replay {path}",
    }
    _notes(path).write_text(json.dumps(notes, indent=2) + "\n")
    return path


def read(path: Path) -> list[Case]:
    """Return the cases to try a file as: the one in its notes, or all that are possible."""
    data = path.read_bytes()
    if _notes(path).is_file():
        notes = json.loads(_notes(path).read_text())
        return [Case(notes["format"], path.name, (), notes["variant"], data)]
    return [
        Case(format_.name, path.name, (), variant, data)
        for format_ in BY_NAME.values()
        if format_.suffix == path.suffix
        for variant in range(format_.variants)
    ]


def _notes(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def line(case: Case, result: Result) -> str:
    """Describe a file in one line."""
    where = f" at {result.place}" if result.place else ""
    said = f": {result.message.splitlines()[0][:160]}" if result.message else ""
    return f"{case.format} {case.seed!r} {result.kind}{where}{said}"

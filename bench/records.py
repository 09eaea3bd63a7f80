"""Records of benchmarks: rows of figures, and when and how they were measured.

Each file of `bench/results/` is a record. `python -m bench report` writes docs/benchmarks.md, its
charts and the figures of README.md from these files.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, TypeVar

import typer
from pydantic import BaseModel, JsonValue, TypeAdapter

from bench.shared_folder import ROOT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    RowT = TypeVar("RowT", bound=DataclassInstance)
else:
    RowT = TypeVar("RowT")

WriteOption = Annotated[bool, typer.Option("--write", help="Store the results in bench/results.")]
NoteOption = Annotated[str, typer.Option("--note", help="A sentence to store with the results.")]

RESULTS = Path(__file__).parent / "results"

_CPUINFO = Path("/proc/cpuinfo")

_GENERATED = ("bench/results", "docs", "README.md", "CHANGELOG.md")
"""Paths whose changes do not affect measurements."""


class BenchmarkRun(BaseModel, frozen=True):
    """When, from which source, how and where figures were measured.

    Attributes:
        date: YYYY-MM-DD.
        commit: The abbreviated hash, with ` + changes` if the source differed from the commit.
        command: The command that measured the figures.
        compiler: Name and version of the compiler of the generated C.
        device: The device that ran it.
        note: Further remarks; may be empty.
    """

    date: str
    commit: str
    command: str
    compiler: str
    device: str
    note: str = ""


class _StoredRecord(BaseModel, frozen=True):
    run: BenchmarkRun
    rows: list[dict[str, JsonValue]]


@dataclass(frozen=True)
class MeasuredRecord(Generic[RowT]):
    """A run, and the rows that it measured."""

    run: BenchmarkRun
    rows: tuple[RowT, ...]


def this_run(command: str, compiler: str, device: str, note: str = "") -> BenchmarkRun:
    """Describe a run of `python -m bench COMMAND`, today, from the checked-out source."""
    commit = _git("rev-parse", "--short=8", "HEAD")
    changed = _git("status", "--porcelain", "--", ".", *(f":!{path}" for path in _GENERATED))
    return BenchmarkRun(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        commit=f"{commit} + changes" if changed else commit,
        command=f"python -m bench {command}",
        compiler=compiler,
        device=device,
        note=note,
    )


def write(name: str, run: BenchmarkRun, rows: Sequence[DataclassInstance]) -> None:
    """Write `bench/results/NAME.json`, with a line per row."""
    head = json.dumps(run.model_dump(), indent=1, ensure_ascii=False)
    lines = ",\n".join(f"  {json.dumps(asdict(row), ensure_ascii=False)}" for row in rows)
    text = f'{{\n"run": {head},\n"rows": [\n{lines}\n]}}\n'
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")


def read(name: str, row_type: type[RowT]) -> MeasuredRecord[RowT]:
    """Read `bench/results/NAME.json`.

    Raises:
        pydantic.ValidationError: The file does not have the fields of `row_type`.
    """
    text = (RESULTS / f"{name}.json").read_text(encoding="utf-8")
    stored = _StoredRecord.model_validate_json(text)
    adapter = TypeAdapter(row_type)
    return MeasuredRecord(stored.run, tuple(adapter.validate_python(row) for row in stored.rows))


def version(tool: str) -> str:
    """Return the name and version of a compiler or simulator, as its `--version` prints them."""
    line = _output(tool, "--version").splitlines()[0]
    number = re.search(r"\d+(\.\d+)+", re.sub(r"\([^)]*\)", "", line))
    return f"{tool} {number[0]}" if number else line


def processor() -> str:
    """Return the name of this computer's processor; its architecture if the name is unknown."""
    found = re.search(r"^model name\s*: (.+)$", _CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else platform.machine()


def _git(*arguments: str) -> str:
    return _output("git", "-C", str(ROOT), *arguments)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

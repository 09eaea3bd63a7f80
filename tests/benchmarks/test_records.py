"""Test that records that benchmarks write are read back unchanged."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import ValidationError

from bench import records


@dataclass(frozen=True)
class TimedThing:
    name: str
    seconds: float
    errors: tuple[float, ...] = ()


@dataclass(frozen=True)
class WeighedThing:
    name: str
    grams: int


RUN = records.BenchmarkRun(
    date="2026-01-01", commit="abc", command="python -m bench x", compiler="cc 1", device="µ"
)


def test_a_record_is_read_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    rows = (TimedThing("a", 1.5, (2.0, 3.0)), TimedThing("b", 2.0))
    records.write("things", RUN, rows)
    assert records.read("things", TimedThing) == records.MeasuredRecord(RUN, rows)
    with pytest.raises(ValidationError):
        records.read("things", WeighedThing)

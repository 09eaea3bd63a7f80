"""Try many files; count the outcomes, and group failures by where they occurred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tests.fuzz.case import Case, Format
from tests.fuzz.forked import FAILURES, Kind, Limits, Result, tried


@dataclass
class Tally:
    """Counts of outcomes for the files of one format."""

    kinds: Counter[Kind] = field(default_factory=Counter[Kind])
    slowest: float = 0.0
    largest: int = 0

    def add(self, result: Result) -> None:
        """Count a file."""
        self.kinds[result.kind] += 1
        self.slowest = max(self.slowest, result.seconds)
        self.largest = max(self.largest, result.peak)


@dataclass
class Failure:
    """The first file that failed at one place, and the number of files that did."""

    case: Case
    result: Result
    count: int = 0


@dataclass
class Campaign:
    """Counts and failures so far."""

    tallies: dict[str, Tally] = field(default_factory=dict[str, Tally])
    failures: dict[tuple[str, str, str], Failure] = field(
        default_factory=dict[tuple[str, str, str], Failure]
    )

    @property
    def files(self) -> int:
        """Return the number of files tried."""
        return sum(tally.kinds.total() for tally in self.tallies.values())

    def add(self, case: Case, result: Result) -> bool:
        """Count a file; return whether its failure is the first at that place."""
        self.tallies.setdefault(case.format, Tally()).add(result)
        if result.kind not in FAILURES:
            return False
        key = (case.format, *result.key)
        failure = self.failures.setdefault(key, Failure(case, result))
        failure.count += 1
        return failure.count == 1


Observer = Callable[[Campaign, Case, Result, bool], None]


def run(
    cases: Iterable[Case],
    formats: Mapping[str, Format],
    limits: Limits,
    jobs: int = 1,
    observe: Observer | None = None,
    campaign: Campaign | None = None,
) -> Campaign:
    """Try all cases; call `observe` with each result and whether its failure is new.

    Results are added to `campaign`, or to a new one if it is None, which is returned.
    """
    campaign = Campaign() if campaign is None else campaign
    for case, result in tried(cases, formats, limits, jobs):
        new = campaign.add(case, result)
        if observe is not None:
            observe(campaign, case, result, new)
    return campaign

"""Shrink a failing file to a minimal one that fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.fuzz.case import Case, Format, made
from tests.fuzz.forked import Limits, Result, tried

_QUICK, _SLOW = 300, 24
"""Most files to try: `_SLOW` if each of them runs until the time limit, else `_QUICK`."""


def shrunk(case: Case, format_: Format, wanted: Result, limits: Limits) -> Case:
    """Return a case with fewer steps and fewer bytes that still fails as `wanted` says."""
    trials = _Trials(format_, wanted, limits)
    if case.data is None:
        steps = _reduced(case.steps, lambda steps: replace(case, steps=tuple(steps)), trials)
        case = replace(case, steps=tuple(steps))
        case = replace(case, data=made(case, format_))
    few = _reduced(case.data or b"", lambda data: replace(case, data=bytes(data)), trials)
    case = replace(case, data=bytes(few))
    return _with_zeros(case, trials)


class _Trials:
    """Tries candidates, as many as the budget allows."""

    def __init__(self, format_: Format, wanted: Result, limits: Limits) -> None:
        self._formats, self._wanted, self._limits = {format_.name: format_}, wanted, limits
        self._left = _SLOW if wanted.kind == "hang" else _QUICK

    def fail(self, candidates: Sequence[Case]) -> list[bool]:
        """Return which candidates fail in the wanted way; those beyond the budget are not tried."""
        chosen = candidates[: self._left]
        self._left -= len(chosen)
        results = tried(chosen, self._formats, self._limits, batch=len(chosen) or 1)
        found = [result.key == self._wanted.key for _, result in results]
        return found + [False] * (len(candidates) - len(found))


T = TypeVar("T")


def _reduced(
    items: Sequence[T], case_of: Callable[[Sequence[T]], Case], trials: _Trials
) -> list[T]:
    """Return fewer items that still fail: remove runs of them, long ones first.

    All runs of one size are tried in one child process, each left out alone. If several can be left
    out, they are left out together if the rest still fails; otherwise only the first is left out.
    """
    kept, size = list(items), len(items)
    while size:
        starts = range(0, len(kept), size)
        failing = trials.fail([case_of(kept[:at] + kept[at + size :]) for at in starts])
        needless = [at for at, fails in zip(starts, failing, strict=True) if fails]
        together = list(kept)
        for at in reversed(needless):
            del together[at : at + size]
        if len(needless) > 1 and trials.fail([case_of(together)]) == [True]:
            kept = together
        elif needless:
            del kept[needless[0] : needless[0] + size]
            continue  # the others may still be left out, one after the other
        size = min(size // 2, len(kept))
    return kept


def _with_zeros(case: Case, trials: _Trials) -> Case:
    """Overwrite bytes with zeros where the case still fails; all bytes keep their offsets."""
    data = case.data or b""
    size = len(data) // 2
    while size >= 8:
        starts = [at for at in range(0, len(data), size) if any(data[at : at + size])]
        zeroed = [data[:at] + bytes(len(data[at : at + size])) + data[at + size :] for at in starts]
        failing = trials.fail([replace(case, data=changed) for changed in zeroed])
        harmless = [changed for changed, fails in zip(zeroed, failing, strict=True) if fails]
        if harmless:
            data = harmless[0]
        if len(harmless) < 2:
            size //= 2
    return replace(case, data=data)

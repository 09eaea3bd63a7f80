"""Packing of one memory: first fit in several orders, exact search, improvement of layouts."""

from dataclasses import dataclass
from itertools import product
from math import inf

from smelt.codegen.arena.bound import lower_bound
from smelt.codegen.arena.conflict import FAR, Arena, align_down
from smelt.codegen.arena.exact import ExactSearch
from smelt.codegen.arena.first_fit import FirstFit, sequences
from smelt.codegen.arena.in_order import layout_within
from smelt.codegen.arena.join import join
from smelt.codegen.arena.result import Effort
from smelt.codegen.arena.skyline import Skyline

_SEQUENCES = 1_500_000
_IN_ORDER = 30_000
_EXACT_FIRST = 5_000
_IMPROVE = 150_000
_EXACT_LAST = 30_000
_SKYLINE = 3_000_000
_FEW = 16
_SLACK = (0, 12, 6, 3, 1)
_HOPELESS_AT_FIRST, _HOPELESS = 1.5, 1.06
"""Search budgets.

- `_SEQUENCES`: elementary steps of first fit.
- `_IN_ORDER`: the same for the search in the order of time, for each layout that it keeps.
- `_EXACT_FIRST`: pair checks of the exact search before the local improvement.
- `_IMPROVE`: elementary steps of the local improvement.
- `_EXACT_LAST`: pair checks of the exact search after it.
- `_SKYLINE`: elementary steps of the skyline layouts.
- `_FEW`: if the local improvement can try fewer layouts than this, it is left out.
- `_HOPELESS_AT_FIRST`, `_HOPELESS`: the search is given up if it is as many times above the bytes
  that are of use, before the local improvement and after it.
- `_SLACK`: percentages above the goal that the search in the order of time tries, until it fails
  at one of them: a smaller one would be still harder to reach.

All together take about 0.15 s on a desktop computer for a hundred buffers that are live at once,
and 2 s for five hundred. They are spent only while the lower bound is not reached.
"""


@dataclass(frozen=True, slots=True)
class Packing:
    """Offsets (bytes) of the arena's buffers, and what the search proved about them.

    `given_up` says whether the search ended early because the layout would be of no use.
    """

    offsets: tuple[int, ...]
    bytes: int
    lower_bound: int
    peak_step: int
    optimal: bool
    given_up: bool
    effort: Effort


def pack(arena: Arena, *, enough: int = 0, most: float = inf) -> Packing:
    """Lay out one memory in as few bytes as the search finds.

    Buffers that are connected by no chain of pairs are laid out independently.

    A layout of more than `most` bytes is of no use. So the search is given up if the lower bound is
    above that, or if the first layouts are far above it.

    The search stops at the lower bound, at `enough` bytes, when the exact search has proved that
    the layout is optimal, or when the budgets are spent. Budgets count work instead of time, so
    that the result is deterministic.
    """
    bound, peak_step = lower_bound(arena)
    goal = max(bound, align_down(enough, arena.granule))
    offsets = [b.offset or 0 for b in arena.buffers]
    layouts = checks = needed = 0
    optimal, given_up = True, False
    for indices, part in arena.components():
        search = _PackSearch(part, max(goal, needed), 0 if bound > most else most)
        search.run()
        for i, offset in zip(indices, search.best, strict=True):
            offsets[i] = offset
        layouts += search.fit.layouts
        checks += search.exact.checks
        needed = max(needed, search.bytes)
        optimal &= search.settled or search.bytes <= bound
        given_up |= search.given_up
    effort = Effort(layouts, checks)
    return Packing(
        offsets=tuple(offsets),
        bytes=needed,
        lower_bound=bound,
        peak_step=peak_step,
        optimal=optimal,
        given_up=given_up,
        effort=effort,
    )


class _PackSearch:
    def __init__(self, arena: Arena, goal: int, most: float) -> None:
        self.arena, self.goal, self.most = arena, goal, most
        self.exact = ExactSearch(arena)
        self.settled = self.given_up = False
        self.fit = FirstFit.of(arena)
        self.recipe: tuple[list[int], bool] | None = None
        self.best: list[int] = []
        self.bytes = FAR

    def run(self) -> None:
        self._try_sequences()
        large = _FEW * self.fit.cost > _IMPROVE
        if large:
            self._try_skylines()
        if self._give_up(_HOPELESS_AT_FIRST):
            return
        self._search_in_order()
        self._lower_exactly(_EXACT_FIRST)
        if not large:
            self._improve()
        if self._give_up(_HOPELESS):
            return
        self._lower_exactly(_EXACT_LAST)
        if not large:
            self._try_skylines()

    def _give_up(self, factor: float) -> bool:
        """Return whether the layout is so many times too large to be of use; then remember it."""
        self.given_up = not self.settled and self.bytes > factor * self.most
        return self.given_up

    def _done(self) -> bool:
        return self.settled or self.bytes <= self.goal

    def _keep(self, offsets: list[int]) -> bool:
        needed = self.arena.bytes_of(offsets)
        better = needed < self.bytes
        if better:
            self.best, self.bytes = offsets, needed
        return better

    def _try_sequences(self) -> None:
        fit = self.fit
        modes = (False, True) if self.arena.in_place else (False,)
        for sequence, in_place in product(sequences(self.arena), modes):
            if self._done() or (fit.layouts + 1) * fit.cost > _SEQUENCES:
                return
            if self._keep(fit.place(sequence, in_place=in_place)):
                self.recipe = sequence, in_place

    def _try_skylines(self) -> None:
        if not self._done():
            links = self.fit.links
            skyline = Skyline(self.arena, links, join(self.arena, links, self.goal))
            for offsets in skyline.search(self.goal, _SKYLINE):
                self._keep(offsets)

    def _search_in_order(self) -> None:
        """Search in the order of time, if buffers are live in parts: the goal, then more bytes."""
        if not any(b.spans for b in self.arena.buffers):
            return
        turns = 0
        for percent in _SLACK:
            limit = align_down(self.goal * (100 + percent) // 100, self.arena.granule)
            if self._done() or limit >= self.bytes:
                continue
            turns += 1
            if turns * self.fit.cost > _IN_ORDER:
                return
            offsets = layout_within(self.arena, self.fit.links, limit)
            if offsets is not None:
                self._keep(offsets)
            elif percent:
                return

    def _improve(self) -> None:
        if self.recipe is not None and not self._done():
            sequence, in_place = self.recipe
            self._keep(
                self.fit.improve(sequence, in_place=in_place, goal=self.goal, budget=_IMPROVE)
            )

    def _lower_exactly(self, budget: int) -> None:
        """Try to save one granule at a time until the exact search proves that it is impossible.

        It stops early when the budget is spent.
        """
        stop = self.exact.checks + budget
        while not self._done():
            offsets, settled = self.exact.within(
                self.bytes - self.arena.granule, stop - self.exact.checks
            )
            if offsets is None:
                self.settled = settled
                return
            self._keep(offsets)

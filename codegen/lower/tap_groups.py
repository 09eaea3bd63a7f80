"""Groups of taps whose sums of products fit into halves of words.

A half holds a sum if the magnitudes of its weights add up to 255 at most: 255 * 128 < 2^15. The
fewer groups there are, the cheaper a convolution; since the order in which taps are summed is free,
finding them is bin packing in as many dimensions as there are output channels. Here it is greedy:
the tap with the largest weight that is left is joined by those that leave most room, the last one
by what fills it best; groups of six taps first, then of five, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from smelt.codegen.lower.requantization_32bit import ShortScaling
from smelt.ir import Array
from smelt.targets import Optimize

LARGEST_GROUP = 255
"""What the magnitudes of a group's weights may add up to."""

STATE_BYTES = 16
"""Totals of a channel whose window is summed in slices."""

_LARGEST = 6
"""Taps in a group."""

_UNROLLED = {"speed": 32, "ram": 32, "size": 8}
"""Taps in a turn of the loop over taps, about; twice as many are written out without a loop."""


@dataclass(frozen=True)
class Stretch:
    """Groups of equally many taps that are written out, and how often they are run through."""

    groups: tuple[int, ...]
    turns: int

    @property
    def taps(self) -> int:
        """Taps in a turn."""
        return sum(self.groups)

    def period(self, loaded: int) -> int:
        """Groups after which as many taps are through as a multiple of those loaded at a time."""
        return loaded // gcd(self.groups[0], loaded)

    def periods(self, loaded: int) -> int:
        """Whole periods in a turn."""
        return len(self.groups) // self.period(loaded)


@dataclass(frozen=True)
class Taps:
    """How the taps of a window, or of some of its rows, are summed.

    Attributes:
        stretches: one after the other.
        order: the taps in the order of the groups.
    """

    stretches: tuple[Stretch, ...]
    order: tuple[int, ...]

    @property
    def length(self) -> int:
        """Taps in all."""
        return len(self.order)

    @property
    def groups(self) -> int:
        """How often totals take in what has been summed up."""
        return sum(len(s.groups) * s.turns for s in self.stretches)

    @property
    def ordered(self) -> bool:
        """Whether taps are summed in their own order."""
        return self.order == tuple(range(self.length))

    @property
    def places(self) -> Array:
        """int64: where each tap stands in the order."""
        return np.argsort(np.asarray(self.order))


@dataclass(frozen=True)
class BlockSums:
    """What a function over a block of pixels sums.

    Attributes:
        taps: of the window, or of a slice of it.
        scaling: of the sums.
        words: of packed inputs a tap, two pixels in each.
        outputs: channels.
        state: whether sums go on from totals in front of the packed inputs.
        ends: whether outputs are made of the sums; else they are left there.
    """

    taps: Taps
    scaling: ShortScaling
    words: int
    outputs: int
    state: bool
    ends: bool


def grouped(weights: Array, optimize: Optimize) -> Taps:
    """The taps of `[o, k]` weights in few groups; for size, groups of one size, in their order."""
    magnitudes = np.abs(weights.astype(np.int64))
    length = weights.shape[1]
    own = _uniform(magnitudes)
    groups = own if optimize == "size" else min(own, _packed(magnitudes), key=len)
    unrolled = _UNROLLED[optimize]
    if optimize == "speed" and length <= 2 * unrolled:
        unrolled = length
    once: list[tuple[Stretch, list[list[int]]]] = []
    looped: list[tuple[Stretch, list[list[int]]]] = []
    for size in dict.fromkeys(map(len, groups)):
        same = [group for group in groups if len(group) == size]
        a_turn = max(unrolled // size, 1)
        turns, rest = divmod(len(same), a_turn)
        if turns == 1:
            turns, rest, a_turn = 0, len(same), len(same)
        if rest:
            once.append((Stretch((size,) * rest, 1), same[:rest]))
        if turns:
            looped.append((Stretch((size,) * a_turn, turns), same[rest:]))
    parts = (*once, *looped)
    order = tuple(tap for _, part in parts for group in part for tap in group)
    return Taps(tuple(stretch for stretch, _ in parts), order)


def _uniform(magnitudes: Array) -> list[list[int]]:
    """Groups of neighbours, equally many but for the last one."""
    length, size = magnitudes.shape[1], 1
    for larger in range(2, 1 + min(_LARGEST, length)):
        filled = np.pad(magnitudes, ((0, 0), (0, -length % larger)))
        if filled.reshape(len(filled), -1, larger).sum(axis=2).max() <= LARGEST_GROUP:
            size = larger
    return [list(range(i, min(i + size, length))) for i in range(0, length, size)]


def _packed(magnitudes: Array) -> list[list[int]]:
    """Groups of any taps, the largest groups first."""
    order = np.lexsort((magnitudes.sum(axis=0), magnitudes.max(axis=0)))[::-1]
    left: list[int] = order.tolist()
    groups: list[list[int]] = []
    for size in range(_LARGEST, 0, -1):
        alone: list[int] = []
        while left:
            group = _joined(magnitudes, left, size)
            if len(group) == size:
                groups.append(group)
                left = [tap for tap in left if tap not in group]
            else:
                alone.append(left.pop(0))
        left = alone
    return groups


def _joined(magnitudes: Array, taps: Sequence[int], size: int) -> list[int]:
    """The first tap with others that fit, at most `size` in all."""
    group, others = [taps[0]], np.asarray(taps[1:], np.int64)
    sums = magnitudes[:, taps[0]]
    while len(group) < size and len(others):
        together = (sums[:, None] + magnitudes[:, others]).max(axis=0)
        others, together = others[together <= LARGEST_GROUP], together[together <= LARGEST_GROUP]
        if not len(others):
            break
        last = len(group) == size - 1
        best = magnitudes[:, others].sum(axis=0).argmax() if last else together.argmin()
        group.append(int(others[best]))
        sums = sums + magnitudes[:, others[best]]
        others = np.delete(others, best)
    return group

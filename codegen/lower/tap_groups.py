"""Groups of taps whose sums of products fit into halfwords.

A sum fits into a halfword if the magnitudes of its weights add up to at most 255: 255 * 128 < 2^15.
A convolution is cheaper with fewer groups. Taps may be summed in any order, so grouping them is bin
packing with one dimension per output channel. The packing here is greedy. It forms groups of six
taps first, then of five, and so on. A group starts with the remaining tap with the largest weight.
Each next tap is the one that leaves most space, and the last tap is the one that fills the group
best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from smelt.codegen.lower.content_cache import cached_by_content
from smelt.codegen.lower.requantization_32bit import ShortScaling
from smelt.ir import Array
from smelt.targets import Optimize

LARGEST_GROUP = 255
"""Largest sum of the magnitudes of a group's weights."""

STATE_BYTES = 16
"""Bytes of a channel's totals, for a window that is summed in slices."""

_LARGEST = 6
"""Largest number of taps in a group."""

_UNROLLED = {"speed": 32, "ram": 32, "size": 8}
"""Approximate taps per loop iteration.

With `speed`, up to twice as many taps are unrolled without a loop.
"""


@dataclass(frozen=True)
class GroupLoop:
    """A loop over groups with equal numbers of taps; each iteration is unrolled."""

    groups: tuple[int, ...]
    iterations: int

    @property
    def taps(self) -> int:
        """Taps per iteration."""
        return sum(self.groups)

    def period(self, loaded: int) -> int:
        """Return after how many groups the number of taps is a multiple of `loaded`."""
        return loaded // gcd(self.groups[0], loaded)

    def periods(self, loaded: int) -> int:
        """Return the number of full periods per iteration."""
        return len(self.groups) // self.period(loaded)


@dataclass(frozen=True)
class Taps:
    """The order in which the taps of a window, or of some of its rows, are summed.

    Attributes:
        group_loops: The loops over groups, in sequence.
        order: The taps in the order of the groups.
    """

    group_loops: tuple[GroupLoop, ...]
    order: tuple[int, ...]

    @property
    def length(self) -> int:
        """The number of taps."""
        return len(self.order)

    @property
    def groups(self) -> int:
        """The number of groups, after each of which the sum is added to the totals."""
        return sum(len(s.groups) * s.iterations for s in self.group_loops)

    @property
    def ordered(self) -> bool:
        """Whether taps are summed in their original order."""
        return self.order == tuple(range(self.length))

    @property
    def places(self) -> Array:
        """The position of each tap in the order, int64."""
        return np.argsort(np.asarray(self.order))


LAYER_NUMBERS = ("outputs", "roundings", "length", "lift")
"""The first fields of a layer's struct, which a function that layers share reads."""


@dataclass(frozen=True)
class BlockSums:
    """The sums that a function computes for a block of pixels.

    Attributes:
        taps: The taps of the window or of a slice of it.
        scaling: The requantization of the sums.
        words: Words of packed inputs per tap, with two pixels in each.
        outputs: Output channels.
        state: Whether sums start from totals stored before the packed inputs.
        ends: Whether the sums are requantized to outputs; otherwise totals are stored.
        layered: Whether the function reads `numbers` from a layer's struct.
    """

    taps: Taps
    scaling: ShortScaling
    words: int
    outputs: int
    state: bool
    ends: bool
    layered: bool = False

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers in which functions for blocks of four pixels of several layers may differ.

        They are the output channels, 2^15 times the groups, the bytes of a block's inputs (and of
        eight channels' weights), and what is added to scaled sums (see `ShortScaling`).
        """
        numbers = (self.outputs, self.taps.groups << 15, 8 * self.taps.length, self.scaling.lift)
        return dict(zip(LAYER_NUMBERS, numbers, strict=True))

    @property
    def shareable(self) -> bool:
        """Whether the function's code can be independent of these numbers."""
        looped = [group_loop.iterations > 1 for group_loop in self.taps.group_loops]
        return looped == [True] and self.words == 2 and not self.state


@cached_by_content
def grouped(weights: Array, optimize: Optimize) -> Taps:
    """Group the taps of `[o, k]` weights; for size, in equal groups and original order."""
    magnitudes = np.abs(weights.astype(np.int64))
    length = weights.shape[1]
    own = _uniform(magnitudes)
    groups = own if optimize == "size" else min(own, _packed(magnitudes), key=len)
    unrolled = _UNROLLED[optimize]
    if optimize != "size" and length <= 2 * unrolled:
        unrolled = length
    once: list[tuple[GroupLoop, list[list[int]]]] = []
    looped: list[tuple[GroupLoop, list[list[int]]]] = []
    for size in dict.fromkeys(map(len, groups)):
        same = [group for group in groups if len(group) == size]
        per_iteration = max(unrolled // size, 1)
        iterations, rest = divmod(len(same), per_iteration)
        if iterations == 1:
            iterations, rest, per_iteration = 0, len(same), len(same)
        if rest:
            once.append((GroupLoop((size,) * rest, 1), same[:rest]))
        if iterations:
            looped.append((GroupLoop((size,) * per_iteration, iterations), same[rest:]))
    parts = (*once, *looped)
    order = tuple(tap for _, part in parts for group in part for tap in group)
    return Taps(tuple(group_loop for group_loop, _ in parts), order)


def _uniform(magnitudes: Array) -> list[list[int]]:
    """Return groups of consecutive taps of equal size; the last one may be smaller."""
    length, size = magnitudes.shape[1], 1
    for larger in range(2, 1 + min(_LARGEST, length)):
        filled = np.pad(magnitudes, ((0, 0), (0, -length % larger)))
        if filled.reshape(len(filled), -1, larger).sum(axis=2).max() <= LARGEST_GROUP:
            size = larger
    return [list(range(i, min(i + size, length))) for i in range(0, length, size)]


def _packed(magnitudes: Array) -> list[list[int]]:
    """Return groups of arbitrary taps, the largest groups first."""
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
    """Return the first tap with others that fit, at most `size` in all."""
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

"""Weights of two taps packed for one multiplication; see the proof in `convolution_pairs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from smelt.ir import Array

LIFT = 129
"""Number added to the input of the first tap of a pair."""

Repairs = tuple[tuple[tuple[int, int], ...], ...]
"""For each output: (position of the input, missing part of its weight) of each repair."""


@dataclass(frozen=True)
class PairedWeights:
    """Pairs of weights whose brackets fit into 16 bits for all inputs.

    Attributes:
        kept: int64 `[o, steps, 2]`: w_a (perhaps reduced) and w_b of each pair.
        repairs: for each output (index of the pair, missing part of w_a).
    """

    kept: Array
    repairs: Repairs

    @staticmethod
    def of(halves: Array) -> PairedWeights:
        """Return the pairs of int64 `[o, steps, 2]` weights; w_a is reduced if it is too large."""
        first, second = halves[..., 0], halves[..., 1]
        # The extremes of the bracket are at x_a + 129 = 256 or 1 and x_b = 127 or -128.
        most = 2**15 - 1 - np.maximum(127 * second, -128 * second)
        least = -(2**15) - np.minimum(127 * second, -128 * second)
        kept = np.clip(first, -(-least // 256), most // 256)
        repairs = tuple(
            tuple((int(i), int(lack[i])) for i in np.flatnonzero(lack))
            for lack in np.asarray(first - kept)
        )
        return PairedWeights(np.stack([kept, second], axis=-1), repairs)

    @property
    def repaired(self) -> bool:
        """Whether some output channel has repairs."""
        return any(self.repairs)

    @property
    def repair_count(self) -> int:
        """Number of repairs of all outputs."""
        return sum(map(len, self.repairs))

    @property
    def words(self) -> Array:
        """int64 `[o, steps]`: the words w_b + 2^16 w_a."""
        return self.kept[..., 1] + (self.kept[..., 0] << 16)

    @property
    def starts(self) -> Array:
        """int64 `[o]`: minus the constant that sums contain besides products of w and x."""
        # Repairs have no w_b, so their first product is 0.
        lacks = [sum(lack for _, lack in repairs) for repairs in self.repairs]
        return (self.kept[..., 1] < 0).sum(axis=1) - LIFT * (self.kept[..., 0].sum(axis=1) + lacks)


def pairs_of(run: int) -> list[tuple[int, int | None]]:
    """Return the pairs of taps of a run of contiguous inputs; None is a missing second tap.

    Of four inputs, 0 and 2 are a pair, and 1 and 3: a mask takes each pair from a loaded word.
    """
    whole = run - run % 4
    found: list[tuple[int, int | None]] = []
    for i in range(0, whole, 4):
        found += [(i, i + 2), (i + 1, i + 3)]
    return found + [(i, i + 1 if i + 1 < run else None) for i in range(whole, run, 2)]


def in_pairs(weights: Array, run: int) -> Array:
    """Return int64 `[..., pairs, 2]`: w_a and w_b along the last axis, the run of taps.

    The weight of a missing second tap is 0.
    """
    filled = np.concatenate([weights, np.zeros_like(weights[..., :1])], axis=-1)
    index = [(a, run if b is None else b) for a, b in pairs_of(run)]
    return filled[..., index].astype(np.int64)


def two_in_a_word(first: Array, second: Array) -> Array:
    """Pack two pairs `[..., 2]` of numbers from 0 to 255 into words; masks separate the pairs."""
    words = first[..., 1] | second[..., 1] << 8 | first[..., 0] << 16 | second[..., 0] << 24
    return np.asarray(words)


def repair_words(repairs: Sequence[tuple[int, int]]) -> Array:
    """Return the number of repairs of an output, followed by the repairs."""
    return np.asarray([len(repairs), *chain.from_iterable(repairs)], np.int64)

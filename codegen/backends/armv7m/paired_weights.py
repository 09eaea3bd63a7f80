"""Weights of two taps packed for one multiplication; `convolution_pairs` proves it exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from smelt.ir import Array

LIFT = 129
"""What is added to the input of the first tap of a pair."""

Repairs = tuple[tuple[tuple[int, int], ...], ...]
"""By output: where inputs stand, and what the weights that they meet lack."""


@dataclass(frozen=True)
class PairedWeights:
    """Weights of pairs that no inputs lead out of a half of a word.

    Attributes:
        kept: int64 `[o, steps, 2]`: w_a and w_b of each pair.
        repairs: indices of pairs, and what w_a lacks there.
    """

    kept: Array
    repairs: Repairs

    @staticmethod
    def of(halves: Array) -> PairedWeights:
        """Those of int64 `[o, steps, 2]` weights; where a pair is too large, w_a is reduced."""
        first, second = halves[..., 0], halves[..., 1]
        # The largest bracket has x_a + 129 of 256 or 1 and x_b of 127 or -128; so has the smallest.
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
        """Whether some output has repairs."""
        return any(self.repairs)

    @property
    def lacking(self) -> int:
        """How many repairs there are."""
        return sum(map(len, self.repairs))

    @property
    def words(self) -> Array:
        """int64 `[o, steps]`: w_b + 2^16 w_a."""
        return self.kept[..., 1] + (self.kept[..., 0] << 16)

    @property
    def starts(self) -> Array:
        """int64 `[o]`: the opposite of what sums hold besides products of weights and inputs."""
        # Repairs have no w_b, so their first product is 0.
        lacks = [sum(lack for _, lack in repairs) for repairs in self.repairs]
        return (self.kept[..., 1] < 0).sum(axis=1) - LIFT * (self.kept[..., 0].sum(axis=1) + lacks)


def pairs_of(run: int) -> list[tuple[int, int | None]]:
    """The taps of a run of neighbours in pairs, as four inputs in a word make two with masks."""
    whole = run - run % 4
    found: list[tuple[int, int | None]] = []
    for i in range(0, whole, 4):
        found += [(i, i + 2), (i + 1, i + 3)]
    return found + [(i, i + 1 if i + 1 < run else None) for i in range(whole, run, 2)]


def in_pairs(weights: Array, run: int) -> Array:
    """int64 `[..., pairs, 2]`: w_a and w_b of runs of taps along the last axis; 0 beside none."""
    filled = np.concatenate([weights, np.zeros_like(weights[..., :1])], axis=-1)
    index = [(a, run if b is None else b) for a, b in pairs_of(run)]
    return filled[..., index].astype(np.int64)


def two_in_a_word(first: Array, second: Array) -> Array:
    """Two pairs `[..., 2]` of numbers of 8 bits, from 0 on, of which masks make a word each."""
    words = first[..., 1] | second[..., 1] << 8 | first[..., 0] << 16 | second[..., 0] << 24
    return np.asarray(words)


def repair_words(repairs: Sequence[tuple[int, int]]) -> Array:
    """How many repairs an output has, and then they."""
    return np.asarray([len(repairs), *chain.from_iterable(repairs)], np.int64)

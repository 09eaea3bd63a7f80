"""The tile that multiplies patches with weights: two products an instruction, two outputs a word.

SMLAD adds two products of halfwords. A halfword of packed weights is one output channel's weight A
plus 256 times another's, B: the sum of the products with it is that of A's plus 256 times that of
B's, and SXTB16 makes A's weights of it, so that one load and one widening serve two channels. The
sum of B's products is the difference of the two sums, if 256 times it fits into 32 bits, as it does
wherever B's weights have a norm of less than 65536.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.backends.dsp.scaling import DspScaling
from smelt.ir import Array
from smelt.targets import Optimize

PATCH_BYTES = 4096
"""What the inputs of a tile may take."""

_STRAIGHT = {"speed": 48, "size": 9, "ram": 9}
"""Words of a sum up to this many are written out."""

_LOOPED = {"speed": 6, "size": 1, "ram": 1}
"""Triples of words in one turn of a loop."""


@dataclass(frozen=True)
class DspTile:
    """A tile.

    Attributes:
        pixels: at a time, 1 to 3.
        outputs: channels, at least 2.
        rows: runs of inputs that a sum goes over.
        run: inputs in a run, which stand together.
        scaling: how sums become outputs.
        optimize: what to weigh.
    """

    pixels: int
    outputs: int
    rows: int
    run: int
    scaling: DspScaling
    optimize: Optimize

    @property
    def quads(self) -> int:
        """Whole words of inputs in a run."""
        return self.run // 4

    @property
    def tail(self) -> int:
        """Inputs of a run after its whole words."""
        return self.run % 4

    @property
    def run_words(self) -> int:
        """Words of two widened inputs of a run."""
        return 2 * self.quads + (self.tail + 1) // 2

    @property
    def words(self) -> int:
        """Words of two widened inputs of a pixel."""
        return self.rows * self.run_words

    @property
    def patch_bytes(self) -> int:
        """Size of the inputs of all pixels."""
        return 4 * self.words * self.pixels

    @property
    def first(self) -> int:
        """Words of the first step, which need not be three."""
        return (self.words - 1) % 3 + 1

    @property
    def unrolled(self) -> int:
        """Triples of words in a turn of the loop."""
        return _LOOPED[self.optimize]

    @property
    def turns(self) -> int:
        """Of the loop; 0 where all is written out."""
        triples = self.words // 3 - (self.first == 3)
        return 0 if self.words <= _STRAIGHT[self.optimize] else triples // self.unrolled

    @property
    def repeats(self) -> int:
        """Triples of words between the first step and the loop."""
        return (self.words - self.first) // 3 - self.turns * self.unrolled

    @property
    def odd(self) -> bool:
        """Whether the last channel has no partner of its own."""
        return self.outputs % 2 == 1

    @property
    def row(self) -> int:
        """Words that requantize a channel."""
        return 3 if self.scaling.signed else 2

    @property
    def pair_words(self) -> int:
        """Words of a pair of channels."""
        return self.words + 2 * self.row

    @property
    def pair_bytes(self) -> int:
        """Bytes of a pair of channels."""
        return 4 * self.pair_words

    @property
    def looped_bytes(self) -> int:
        """Bytes of all pairs that overlap with no other one."""
        return self.outputs // 2 * self.pair_bytes

    @property
    def widen_unrolled(self) -> int:
        """Words of inputs in a turn of the widening loop; 0 where inputs fill no word."""
        most = min(self.quads, 4 if self.optimize == "speed" else 1)
        return max((n for n in range(1, most + 1) if self.quads % n == 0), default=0)

    @property
    def widen_turns(self) -> int:
        """Of the widening loop."""
        return self.quads // self.widen_unrolled if self.quads else 0

    def packed(self, weights: Array) -> Array:
        """int32: weights `[o, rows, run]`, int8, and the scaling as the tile reads them."""
        starts = np.arange(0, self.outputs - 1, 2)
        if self.odd:
            starts = np.append(starts, self.outputs - 2)
        chosen = (starts[:, None] + np.arange(2)).ravel()
        rows = self.scaling.rows[chosen].reshape(len(starts), -1)
        whole = np.concatenate([self.pairs(weights[chosen]), rows], axis=1)
        return whole.astype(np.uint64).astype(np.uint32).view(np.int32).ravel()

    def pairs(self, weights: Array) -> Array:
        """int64 `[o / 2, words]`: weights `[o, rows, run]`, int8, of two channels in a halfword."""
        words = _halves(weights.astype(np.int64)).reshape(len(weights), -1, 2)
        halves = (words[::2] + 256 * words[1::2]) & 0xFFFF
        return halves[..., 0] | halves[..., 1] << 16


def with_addend(packed: Array, scaling: DspScaling) -> Array:
    """Return packed weights, preceded by the addend of the signed form.

    Layers that differ in their zero points then share a function.
    """
    return np.insert(packed, 0, np.int32(scaling.addend)) if scaling.signed else packed


def pairs_exact(weights: Array) -> bool:
    """Whether pairs of int8 weights `[o, ...]` fit into halfwords, and the sums into 32 bits."""
    rows = weights.astype(np.int64).reshape(len(weights), -1)
    norms = np.abs(rows).sum(axis=1)
    return bool((norms < 65536).all() and ((rows > -128).all() or len(rows) == 1))


def _halves(weights: Array) -> Array:
    """`[o, rows, run]` as `[o, rows, words, 2]` in the order in which inputs are widened."""
    outputs, rows, run = weights.shape
    quads, tail = run // 4, run % 4
    first = weights[..., : 4 * quads].reshape(outputs, rows, quads, 2, 2).swapaxes(3, 4)
    parts = [first.reshape(outputs, rows, 2 * quads, 2)]
    if tail:
        rest = np.zeros((outputs, rows, (tail + 1) // 2, 2), np.int64)
        rest[..., 0, 0] = weights[..., 4 * quads]
        if tail > 1:
            rest[..., 0, 1] = weights[..., run - 1]
        if tail == 3:
            rest[..., 1, 0] = weights[..., run - 2]
        parts.append(rest)
    return np.concatenate(parts, axis=2)

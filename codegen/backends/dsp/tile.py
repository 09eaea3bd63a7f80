"""Tiles: up to three pixels, whose patches are multiplied by the weights of two channels at a time.

SMLAD adds two products of halfwords to a sum. A halfword of packed weights contains the weights of
two output channels, weight0 + 256 * weight1, so one load serves both channels:

1. SMLAD with the packed weights adds up to sum0 + 256 * sum1.
2. SXTB16 extracts weight0 of both halfwords, and SMLAD with these adds up to sum0.
3. The difference is 256 * sum1. It is exact if it fits into 32 bits, so the magnitudes of a
   channel's weights must add up to less than 65536.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.backends.dsp.scaling import DspScaling
from smelt.ir import Array
from smelt.targets import Optimize

PATCH_BYTES = 4096
"""Upper limit of the scratch for the widened inputs of a tile."""

UNPAIRED = (
    "has weights that cannot be paired: one is -128, or the magnitudes of a channel's weights "
    "add up to 65,536 or more."
)
"""End of the refusal of weights that are not `pairs_exact`."""

_STRAIGHT = {"speed": 48, "size": 9, "ram": 48}
"""Sums of up to this many words are written out without a loop."""

_LOOPED = {"speed": 6, "size": 1, "ram": 6}
"""Steps of three words in one iteration of a loop."""


@dataclass(frozen=True)
class DspTile:
    """The sizes and the scaling of a tile.

    Attributes:
        pixels: pixels that are computed together, 1 to 3.
        outputs: output channels, at least 2.
        rows: runs of a pixel: rows of the window.
        run: inputs of a run, which are contiguous.
        scaling: the requantization.
        optimize: goal of the optimization.
    """

    pixels: int
    outputs: int
    rows: int
    run: int
    scaling: DspScaling
    optimize: Optimize

    @property
    def quads(self) -> int:
        """Whole groups of four inputs in a run."""
        return self.run // 4

    @property
    def tail(self) -> int:
        """Inputs of a run after its whole groups of four."""
        return self.run % 4

    @property
    def run_words(self) -> int:
        """Words of a widened run; a word contains two inputs."""
        return 2 * self.quads + (self.tail + 1) // 2

    @property
    def words(self) -> int:
        """Words of the widened inputs of a pixel."""
        return self.rows * self.run_words

    @property
    def patch_bytes(self) -> int:
        """Bytes of the widened inputs of all pixels."""
        return 4 * self.words * self.pixels

    @property
    def first(self) -> int:
        """Words of a sum's first step, 1 to 3; all other steps have three."""
        return (self.words - 1) % 3 + 1

    @property
    def unrolled(self) -> int:
        """Steps of three words in an iteration of the loop."""
        return _LOOPED[self.optimize]

    @property
    def iterations(self) -> int:
        """Iterations of the loop; 0 if all steps are written out."""
        triples = self.words // 3 - (self.first == 3)
        return 0 if self.words <= _STRAIGHT[self.optimize] else triples // self.unrolled

    @property
    def repeats(self) -> int:
        """Steps of three words between the first step and the loop."""
        return (self.words - self.first) // 3 - self.iterations * self.unrolled

    @property
    def odd(self) -> bool:
        """Whether the number of channels is odd, so that the last pair overlaps the one before."""
        return self.outputs % 2 == 1

    @property
    def in_place(self) -> bool:
        """Whether the output of a 1x1 convolution may have the address of its input.

        All inputs of a group of pixels are widened before its first output is stored.
        """
        return self.rows == 1 and self.outputs <= self.run

    @property
    def row(self) -> int:
        """Words of a channel's requantization constants."""
        return 3 if self.scaling.signed else 2

    @property
    def pair_words(self) -> int:
        """Words of weights and constants of a pair of channels."""
        return self.words + 2 * self.row

    @property
    def pair_bytes(self) -> int:
        """Bytes of weights and constants of a pair of channels."""
        return 4 * self.pair_words

    @property
    def looped_bytes(self) -> int:
        """Bytes of weights and constants of all pairs but an overlapping last one."""
        return self.outputs // 2 * self.pair_bytes

    @property
    def widen_unrolled(self) -> int:
        """Groups of four inputs per iteration of the widening loop; 0 if no group is whole."""
        most = min(self.quads, 4 if self.optimize != "size" else 1)
        return max((n for n in range(1, most + 1) if self.quads % n == 0), default=0)

    @property
    def widen_iterations(self) -> int:
        """Iterations of the widening loop."""
        return self.quads // self.widen_unrolled if self.quads else 0

    def packed(self, weights: Array) -> Array:
        """Return int8 weights `[o, rows, run]` and the scaling as int32, in the tile's order."""
        starts = np.arange(0, self.outputs - 1, 2)
        if self.odd:
            starts = np.append(starts, self.outputs - 2)
        chosen = (starts[:, None] + np.arange(2)).ravel()
        rows = self.scaling.rows[chosen].reshape(len(starts), -1)
        whole = np.concatenate([self.pairs(weights[chosen]), rows], axis=1)
        return whole.astype(np.uint64).astype(np.uint32).view(np.int32).ravel()

    def pairs(self, weights: Array) -> Array:
        """Return int8 weights `[o, rows, run]` in pairs of channels, as int64 `[o / 2, words]`."""
        words = _halves(weights.astype(np.int64)).reshape(len(weights), -1, 2)
        halves = (words[::2] + 256 * words[1::2]) & 0xFFFF
        return halves[..., 0] | halves[..., 1] << 16


def with_addend(packed: Array, scaling: DspScaling) -> Array:
    """Return packed weights, preceded by the addend of the signed form.

    Layers that differ in their zero points then share a function.
    """
    return np.insert(packed, 0, np.int32(scaling.addend)) if scaling.signed else packed


def pairs_exact(weights: Array) -> bool:
    """Return whether pairs of int8 weights `[o, ...]` fit into halfwords, and sums into 32 bits."""
    rows = weights.astype(np.int64).reshape(len(weights), -1)
    magnitudes = np.abs(rows).sum(axis=1)
    return bool((magnitudes < 65536).all() and ((rows > -128).all() or len(rows) == 1))


def _halves(weights: Array) -> Array:
    """Return weights `[o, rows, run]` in the order of widened inputs, `[o, rows, words, 2]`."""
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

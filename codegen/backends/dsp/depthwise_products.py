"""The products of a block of a depthwise convolution, which is two rows of two outputs.

A word contains a pair of inputs, one above the other: the upper input in the lower halfword. SMLAD
multiplies it by two taps of the window. With stride 1, the windows of the second output row start
at the lower input of a pair. They need other pairs of taps, and taps without a partner at their
ends, whose products are of single halfwords (SMLABB, SMLABT, SMLATB, SMLATT).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

TapPosition = tuple[int, int]
"""Row and column of a tap in the window."""

WeightWord = tuple[TapPosition, TapPosition | None]
"""The taps whose weights are the lower and the upper halfword; the upper one may be unused."""


@dataclass(frozen=True)
class BlockProduct:
    """A product of a word of inputs and a word of weights.

    Attributes:
        column: column of the inputs, relative to the first that the block reads.
        output: row and column of the output within the block.
        halves: halfwords of inputs and weights, "b" or "t" each as in SMLABT; "ad" for all (SMUAD).
        weights: index of the word of weights.
    """

    column: int
    output: tuple[int, int]
    halves: str
    weights: int


@dataclass(frozen=True)
class OutputBlock:
    """The sizes of a block of outputs.

    Attributes:
        kernel: height and width of the window.
        stride: input rows from one output row to the next, and words of a row of pairs from one
            output column to the next.
        rows: output rows, 1 or 2.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    rows: int

    @property
    def taps(self) -> int:
        """Taps of the window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def pairs(self) -> int:
        """Rows of pairs that the block reads."""
        return ((self.rows - 1) * self.stride[0] + self.kernel[0] + 1) // 2

    @property
    def advance(self) -> int:
        """Rows of pairs from a block to the block below."""
        return max(self.rows * self.stride[0] // 2, 1)

    def row_taps(self, pair: int, row: int) -> tuple[int, int]:
        """Return which rows of the window lie over the upper and the lower input of a pair.

        Args:
            pair: row of pairs.
            row: output row. A row of the window is -1 if the input is outside of the window.
        """
        first = 2 * pair - row * self.stride[0]
        upper, lower = (tap if 0 <= tap < self.kernel[0] else -1 for tap in (first, first + 1))
        return upper, lower

    @cached_property
    def weights(self) -> tuple[WeightWord, ...]:
        """The words of a channel's weights: those of two taps for SMLAD, then single taps."""
        duals: dict[WeightWord, None] = {}
        singles: dict[TapPosition, None] = {}
        for pair in range(self.pairs):
            for column in range(self.kernel[1]):
                for row in range(self.rows):
                    upper, lower = self.row_taps(pair, row)
                    if upper >= 0 and lower >= 0:
                        duals[(upper, column), (lower, column)] = None
                    elif max(upper, lower) >= 0:
                        singles[max(upper, lower), column] = None
        held = {tap for word in duals for tap in word}
        others = [tap for tap in singles if tap not in held]
        halves = [*others, None] if len(others) % 2 else others
        packed = [(a, b) for a, b in zip(halves[::2], halves[1::2], strict=True) if a is not None]
        return (*duals, *packed)

    @property
    def places(self) -> list[int]:
        """For each tap, row by row, the index of a halfword with its weight."""
        found = {
            tap: 2 * i + h for i, word in enumerate(self.weights) for h, tap in enumerate(word)
        }
        return [found[y, x] for y in range(self.kernel[0]) for x in range(self.kernel[1])]

    def products(self, pair: int, columns: int) -> list[BlockProduct]:
        """Return the products of row `pair` of pairs for `columns` output columns."""
        found: list[BlockProduct] = []
        step = self.stride[1]
        for x in range((columns - 1) * step + self.kernel[1]):
            for j in range(columns):
                column = x - j * step
                if 0 <= column < self.kernel[1]:
                    found += (
                        BlockProduct(x, (row, j), *self._operands(taps, column))
                        for row in range(self.rows)
                        if max(taps := self.row_taps(pair, row)) >= 0
                    )
        return found

    def _operands(self, rows: tuple[int, int], column: int) -> tuple[str, int]:
        """Return `halves` and `weights` of the product with the given rows of the window."""
        upper, lower = rows
        if upper >= 0 and lower >= 0:
            return "ad", self.weights.index(((upper, column), (lower, column)))
        tap = max(upper, lower), column
        word = next(i for i, taps in enumerate(self.weights) if tap in taps)
        return ("b" if upper >= 0 else "t") + "bt"[self.weights[word].index(tap)], word


def neighbors(columns: Sequence[int]) -> list[list[int]]:
    """Return ascending columns in groups of one, or of two adjacent columns."""
    found: list[list[int]] = []
    for column, _ in groupby(columns):
        if found and len(found[-1]) == 1 and found[-1][0] + 1 == column:
            found[-1].append(column)
        else:
            found.append([column])
    return found

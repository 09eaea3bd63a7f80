"""Which products make a block of outputs of a depthwise convolution: two rows of two columns.

A word holds the inputs of a column in two rows, one above the other. SMLAD multiplies it with two
taps of the window. Where the stride is 1, the second row of outputs begins with the lower half of a
word: its taps are paired the other way, and what is left at either end is a product of halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

TapPosition = tuple[int, int]
"""Row and column of the window."""

WeightWord = tuple[TapPosition, TapPosition | None]
"""The taps in the lower and in the upper half of a word of weights."""


@dataclass(frozen=True)
class BlockProduct:
    """A product of a word of inputs and a word of weights.

    Attributes:
        column: of the inputs, from the first that the block reads.
        output: row and column of the output within the block.
        halves: of the inputs and of the weights, as in SMLABT; "ad" for the sum of both products.
        weights: the word of weights.
    """

    column: int
    output: tuple[int, int]
    halves: str
    weights: int


@dataclass(frozen=True)
class OutputBlock:
    """The geometry of a block.

    Attributes:
        kernel: height and width of the window.
        stride: rows of inputs, and words of a row of pairs, from one output to the next.
        rows: of outputs, 1 or 2.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    rows: int

    @property
    def taps(self) -> int:
        """Those of the window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def pairs(self) -> int:
        """Rows of input pairs that the block reads."""
        return ((self.rows - 1) * self.stride[0] + self.kernel[0] + 1) // 2

    @property
    def advance(self) -> int:
        """Rows of input pairs from one block to the one below."""
        return max(self.rows * self.stride[0] // 2, 1)

    def row_taps(self, pair: int, row: int) -> tuple[int, int]:
        """The rows of the window that the halves of a pair meet for a row of outputs.

        Rows that the window does not have are -1.
        """
        first = 2 * pair - row * self.stride[0]
        upper, lower = (tap if 0 <= tap < self.kernel[0] else -1 for tap in (first, first + 1))
        return upper, lower

    @cached_property
    def weights(self) -> tuple[WeightWord, ...]:
        """The words of weights of a channel."""
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
        """For each tap, row by row, the halfword of the weights that holds it."""
        found = {
            tap: 2 * i + h for i, word in enumerate(self.weights) for h, tap in enumerate(word)
        }
        return [found[y, x] for y in range(self.kernel[0]) for x in range(self.kernel[1])]

    def products(self, pair: int, columns: int) -> list[BlockProduct]:
        """What is done with a row of input pairs for so many columns of outputs, in their order."""
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
        """Which halves are multiplied, and the word of weights."""
        upper, lower = rows
        if upper >= 0 and lower >= 0:
            return "ad", self.weights.index(((upper, column), (lower, column)))
        tap = max(upper, lower), column
        word = next(i for i, taps in enumerate(self.weights) if tap in taps)
        return ("b" if upper >= 0 else "t") + "bt"[self.weights[word].index(tap)], word


def neighbours(columns: Sequence[int]) -> list[list[int]]:
    """Columns in ascending order, in groups of one, or of two that lie side by side."""
    found: list[list[int]] = []
    for column, _ in groupby(columns):
        if found and len(found[-1]) == 1 and found[-1][0] + 1 == column:
            found[-1].append(column)
        else:
            found.append([column])
    return found

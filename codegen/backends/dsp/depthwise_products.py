"""Which products make the outputs of a depthwise convolution: pairs of taps times pairs of rows.

A word holds a column's inputs of an even row and of the one below. SMLAD multiplies it with two
taps of the window. Where the stride is 1, the same words serve the output row below: its taps are
paired the other way, and what is left over at either end is a product of halves (SMLATB, SMLABT).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HalvesProduct = tuple[str, tuple[int, int]]
"""A product: the halves that it takes ("ad", "tb", "bt", "bb"), and the two taps of its word."""


@dataclass(frozen=True)
class Batch:
    """Input words of a column that are multiplied in one go, with two words of weights at most.

    Attributes:
        column: of the window.
        inputs: which of the column's words, one or two in a row.
        taps: in pairs that share a word of weights: rows of the window; -1 for none.
        operations: for each input word, for each output row, how it is multiplied, if it is.
    """

    column: int
    inputs: tuple[int, ...]
    taps: tuple[tuple[int, int], ...]
    operations: tuple[tuple[HalvesProduct | None, ...], ...]


def batches(kernel: tuple[int, int], rows: int) -> tuple[Batch, ...]:
    """How the taps of a window are multiplied, for one or two rows of outputs at a time."""
    height, width = kernel
    columns = [_operations(height, rows, i) for i in range(input_words(height, rows))]
    found: list[Batch] = []
    for column in range(width):
        start = 0
        while start < len(columns):
            count = 2 if len(_words(columns[start : start + 2])) <= 2 else 1
            chosen = columns[start : start + count]
            inputs = tuple(range(start, start + len(chosen)))
            found.append(Batch(column, inputs, _words(chosen), tuple(chosen)))
            start += count
    return tuple(found)


def input_words(height: int, rows: int) -> int:
    """Words of two inputs that a column of one or two outputs needs."""
    return (height + rows) // 2


def _words(columns: Sequence[tuple[HalvesProduct | None, ...]]) -> tuple[tuple[int, int], ...]:
    return tuple(dict.fromkeys(op[1] for column in columns for op in column if op is not None))


def _operations(height: int, rows: int, i: int) -> tuple[HalvesProduct | None, ...]:
    """What is done with the word of rows 2i and 2i + 1, for each row of outputs."""
    even = (2 * i, 2 * i + 1 if 2 * i + 1 < height else -1)
    if rows == 1:
        return (("ad", even),)
    odd = (2 * i - 1, 2 * i)
    first: HalvesProduct | None = ("ad", even)
    if even[1] < 0:
        first = None if 2 * i >= height else ("bb", even) if i == 0 else ("bt", odd)
    second: HalvesProduct = ("tb", even)
    if i > 0:
        second = ("ad", odd) if 2 * i < height else ("bt", (2 * i - 2, 2 * i - 1))
    return first, second

"""The rows of an operand that a row of a result is computed from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowsRead:
    """The rows that some rows of a result are computed from.

    Attributes:
        rows: The rows of the operand.
        before: Rows of padding before them.
        after: Rows of padding after them.
    """

    rows: range
    before: int = 0
    after: int = 0


@dataclass(frozen=True)
class RowWindow:
    """A window that slides along the rows of an operand.

    Row `i` of the result is computed from `size` rows, the first of which is `i * stride - before`.
    Rows outside of the operand are padding.

    Attributes:
        size: The rows from the first to the last tap.
        stride: The rows from one window to the next.
        before: The rows of padding before the first row; negative if the window starts later.
    """

    size: int = 1
    stride: int = 1
    before: int = 0

    def mirrored(self, height: int, made: int) -> RowWindow:
        """Return the window if rows are numbered from the last one.

        Args:
            height: The rows of the operand.
            made: The rows of the result.
        """
        after = (made - 1) * self.stride + self.size - self.before - height
        return RowWindow(self.size, self.stride, after)

    def read(self, made: range, height: int) -> RowsRead:
        """Return the rows, of an operand with `height` rows, that the rows `made` depend on."""
        first = made.start * self.stride - self.before
        end = (made.stop - 1) * self.stride - self.before + self.size
        inside = range(max(first, 0), min(end, height))
        return RowsRead(inside, max(-first, 0), max(end - height, 0))

"""The loop over slabs of output lines, whose inputs fit into scratch together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OutputSlabs:
    """The loop over slabs of the lines of an output; see `lower/slab_loop.j2`.

    Attributes:
        lines: Lines of the output.
        most: Lines of a slab; the last one may have fewer.
        several: Whether there is more than one slab.
        uneven: Whether the last slab has fewer lines.
        begin: C of the first line of a slab.
        count: C of the lines of a slab.
    """

    lines: int
    most: int
    several: bool
    uneven: bool
    begin: str
    count: str

    @staticmethod
    def of(lines: int, most: int) -> OutputSlabs:
        """Return the loop over slabs of at most `most` lines."""
        several = most < lines
        uneven = several and lines % most > 0
        return OutputSlabs(
            lines=lines,
            most=most,
            several=several,
            uneven=uneven,
            begin="begin" if several else "0",
            count="count" if uneven else str(min(most, lines)),
        )

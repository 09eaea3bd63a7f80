"""The distances by which a depthwise convolution's function advances over a channel's plane.

In a layer's own function, all distances are constants. A function that layers share reads some of
them from a `LayerStruct`: those between outputs if the planes of its layers have equal sizes, and
all of them if planes may have any size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from smelt.codegen.lower.assembly_builder import Assembler
from smelt.codegen.lower.depthwise_plane import Plane

WALK = {
    "across": "elements from an output to the same one in the next line",
    "along": "elements from an output to the next in its line",
    "to_outputs": "elements from the end of a line of outputs to the line after the next",
    "outputs": "in a line",
    "to_taps": "bytes from the end of a line of taps to the next one",
    "to_window": "bytes from the end of a window to the next one in its line",
    "to_windows": "bytes from the end of the windows of two lines of outputs to the next ones",
}
"""The numbers and their meanings; in a struct they come first, in this order."""

OWN, EQUAL_PLANES, ANY_PLANE = 0, 3, len(WALK)
"""How many numbers of `WALK` a function reads from a struct.

It reads none if it is a layer's own, the first three if its layers have planes of equal size, and
all if planes may have any size.
"""

LAYERS = {OWN: "", EQUAL_PLANES: "depthwise_plane", ANY_PLANE: "depthwise"}
"""Kinds of the structs of these functions."""


@dataclass(frozen=True)
class PlaneWalk:
    """The walk of a function.

    Attributes:
        plane: The plane of a layer.
        read: How many numbers the function reads from a struct: the first `read` of `WALK`.
    """

    plane: Plane
    read: int = OWN

    @property
    def numbers(self) -> dict[str, int]:
        """The layer's numbers by name."""
        p = self.plane
        values = (
            *(*p.target, p.to_next_outputs, p.outputs[1]),
            *(p.to_next_line, p.to_next_pair, p.to_next_row),
        )
        return dict(zip(WALK, values, strict=True))

    @property
    def odd(self) -> bool:
        """Whether the last output along u may have no partner."""
        return self.plane.odd or self.read == ANY_PLANE

    def at(self, name: str) -> int | None:
        """Return the offset in bytes of a number in the struct; None if it is a constant."""
        index = list(WALK).index(name)
        return 4 * index if index < self.read else None


@dataclass(frozen=True)
class WalkCode:
    """The assembly of a function that walks over a plane.

    Attributes:
        assembly: The code.
        walk: The walk.
        counts: Numbers of instructions in the code: before the loop over rows of pairs, before the
            loop over the pairs of a row, to the end of that loop, to the end of the first one, and
            in all.
    """

    assembly: Assembler
    walk: PlaneWalk
    counts: list[int] = field(default_factory=list[int])

    def count(self) -> None:
        """Add the number of instructions so far to the counts."""
        self.counts.append(self.assembly.count)

    def executed(self, rows: int) -> int:
        """Return the instructions that are executed for a number of rows of pairs."""
        row, pair, end_of_pair, end_of_row, end = self.counts
        in_row = end_of_row - row + (self.walk.plane.outputs[1] - 1) * (end_of_pair - pair)
        return row + end - end_of_row + rows * in_row

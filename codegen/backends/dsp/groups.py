"""How the pixels of a layer are divided into groups, on cores with the DSP extension.

A group's pixels are computed together (see `tile`). Groups of three take the fewest instructions
for a pixel. If the number of pixels is not a multiple of three, the last group computes some pixels
again, or the last two or four pixels are computed two at a time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from smelt.codegen.backends.dsp.assembly import assembled
from smelt.codegen.backends.dsp.tile import DspTile
from smelt.codegen.backends.dsp.tile_assembly import (
    TileParameters,
    WideningParameters,
    accumulated,
    tile_function,
    widening,
)
from smelt.codegen.lower.kernel import BodyCost

_LEAST_SAVED, _LEAST_SAVED_IN_LITTLE_RAM = 0.09, 0.01
"""Groups of two follow those of three if that saves this fraction of a layer's instructions.

Their code pays where layers are computed a few rows at a time, because memory is limited: then
several layers have few pixels, and share it.
"""

_GLUE, _CALLING = 17, 88
"""The C code that calls a group's functions: its instructions per group, and its bytes."""

_WINDOW = 10
"""Further instructions for each window of a group, and for each further row of the windows, if the
windows are inside of the image."""


@dataclass(frozen=True)
class PixelGroups:
    """Groups of equally many pixels that are computed one after another.

    Attributes:
        tile: the sizes of a group.
        first, end: the first pixel, and the one after the last pixel. If their difference is not a
            multiple of the group's pixels, the last group computes some pixels again.
    """

    tile: DspTile
    first: int
    end: int

    @property
    def count(self) -> int:
        """Number of groups."""
        return -(-(self.end - self.first) // self.tile.pixels)

    @property
    def whole_end(self) -> int:
        """The pixel after the last group that computes no pixel again."""
        return self.end - (self.end - self.first) % self.tile.pixels

    def work(self, prefix: str = "") -> dict[str, int]:
        """Return the amounts of work that depend on the pixels of a group; see `KernelCall.work`.

        Args:
            prefix: start of the names of the kinds of work.
        """
        t, pixels = self.tile, self.count * self.tile.pixels
        return {
            f"{prefix}products": pixels * t.words * 2 * (t.outputs + t.odd),
            f"{prefix}outputs": pixels * (t.outputs + t.odd),
            f"{prefix}inputs": pixels * t.words * 2,
        }


def pixel_groups(tile: DspTile, pixels: int, *, little_ram: bool) -> tuple[PixelGroups, ...]:
    """Return the groups for this many pixels, in order.

    Args:
        tile: the sizes of the largest group. All groups' weights are packed alike.
        pixels: pixels of an image, at least as many as the tile's.
        little_ram: see `Request`.
    """
    equal = (PixelGroups(tile, 0, pixels),)
    if tile.pixels < 3 or pixels % 3 == 0 or tile.optimize == "size":
        return equal
    whole = pixels - (4 if pixels % 3 == 1 else 2)
    pairs = PixelGroups(replace(tile, pixels=2), whole, pixels)
    mixed = (PixelGroups(tile, 0, whole), pairs) if whole else (pairs,)
    least = _LEAST_SAVED_IN_LITTLE_RAM if little_ram else _LEAST_SAVED
    most = (1 - least) * _instructions(equal)
    return mixed if _instructions(mixed) <= most else equal


def specialized_cost(groups: Sequence[PixelGroups]) -> BodyCost:
    """Return the cost of a layer's own functions, which contain its sizes."""
    inner: dict[Hashable, int] = {}
    for tile in (some.tile for some in groups):
        own = TileParameters.of(tile)
        sums = (*own.sums, *own.finish, *own.overlapping)
        inner[tile_function(tile).key] = 4 * assembled(sums)
        inner[widening(tile).key] = 4 * assembled(WideningParameters.of(tile).lines)
    return BodyCost(_instructions(groups), sum(inner.values()) + _CALLING, inner)


def _instructions(groups: Sequence[PixelGroups]) -> int:
    """Return the instructions of all groups."""
    return sum(some.count * _group_instructions(some.tile) for some in groups)


def _group_instructions(t: DspTile) -> int:
    """Return the instructions of a group; an estimate if the window has several rows."""
    n, function = t.pixels, TileParameters.of(t)
    tail = (0, n + 1, 3 * n + 1, 4 * n + 1)[t.tail]
    counted = 2 * t.widen_iterations + (3 if n == 3 else 1) if t.quads else 0
    widened = t.quads * (3 * n + 1) + counted + tail + 2
    head = accumulated(t, t.first, first=True)
    more = (t.words - t.first) // 3 * assembled(accumulated(t, 3))
    sums = assembled(head) + more + 3 * t.iterations
    pairs = -(-t.outputs // 2)
    entered = function.sums.index("1:") + 2
    found = _GLUE + t.rows * widened + entered + pairs * (sums + len(function.finish))
    found += (n + t.rows - 1) * _WINDOW if t.rows > 1 else 0
    return found + (len(function.overlapping) + 2) * t.odd

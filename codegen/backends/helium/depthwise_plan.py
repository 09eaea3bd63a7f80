"""The split of a depthwise convolution into strips and patches for Helium (see `depthwise`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from smelt.codegen.backends.helium.assembly import ACCUMULATORS
from smelt.codegen.backends.helium.convolution_plan import SCRATCH_LIMIT, Geometry

LANES = 16
"""Channels of a strip."""
PATCH = 16
"""Bytes of a patch."""
ROW = 4 * LANES
"""Bytes of a row of a strip."""


@dataclass(frozen=True, kw_only=True)
class Patches:
    """The outputs of a patch, and the patches of a strip.

    Attributes:
        line: whether the image is one row.
        down: output rows of a patch; for a line, its outputs.
        across: output columns of a patch; 1 for a line.
        advance: rows of the strip from one patch to the next.
        shifts: bytes by which the weights are shifted for each output.
        lead: zero bytes before the weights of a channel.
        strip_outputs: output rows of a strip; for a line, its outputs.
        starts: the first output row (for a line: the first output) of each strip.
        copied: pixels of a row of the image, if the rows of a strip are first copied to scratch, so
            that outputs may overwrite them; otherwise 0.
        even: whether the loop over patches leaves none after it if it can, so that functions for
            different numbers of patches are equal.
    """

    line: bool
    down: int
    across: int
    advance: int
    shifts: tuple[int, ...]
    lead: int
    strip_outputs: int
    starts: tuple[int, ...]
    copied: int = 0
    even: bool = False

    @property
    def outputs(self) -> int:
        """Outputs of a patch."""
        return self.down * self.across

    @property
    def patches(self) -> int:
        """Patches of a channel in a strip."""
        return -(-self.strip_outputs // self.down)

    @property
    def shared(self) -> Patches:
        """The same patches for a function that layers share."""
        return replace(self, even=True)

    @property
    def unrolled(self) -> int:
        """Patches in an iteration of the loop over patches."""
        most = len(ACCUMULATORS) // self.outputs
        divisor = max(i for i in range(1, most + 1) if self.patches % i == 0)
        suits = self.even and (2 * divisor > most or divisor == self.patches)
        return divisor if suits else most

    @property
    def iterations(self) -> int:
        """Iterations of the loop over patches; 0 if there is no loop."""
        once = self.patches == self.unrolled and not self.even
        return 0 if once else self.patches // self.unrolled

    @property
    def left(self) -> int:
        """Patches after the loop."""
        return self.patches - self.iterations * self.unrolled

    @property
    def next(self) -> int:
        """Bytes from a channel's last patch to the first one of the next channel."""
        return 4 - ROW * self.advance * self.patches

    @property
    def rows(self) -> int:
        """Rows of a strip."""
        return (self.patches - 1) * self.advance + 4

    @property
    def sums(self) -> int:
        """Sums of a channel in a strip."""
        return self.patches * self.outputs

    @property
    def strip_bytes(self) -> int:
        """Bytes of a strip, and of the rows that it is made from if they are copied."""
        return self.rows * (ROW + LANES * self.copied)

    @property
    def scratch(self) -> int:
        """Bytes of scratch: one strip and its sums."""
        return self.strip_bytes + LANES * self.sums * 4

    @property
    def last(self) -> Patches:
        """The same patches with one column of outputs, for the last column of an odd width."""
        return replace(self, across=1, shifts=self.shifts[:: self.across])

    @property
    def summary(self) -> str:
        """A patch in words."""
        shape = "16 neighbors" if self.line else "4x4 inputs"
        outputs = f"{self.outputs} output{'s' if self.outputs > 1 else ''}"
        return f"patches of {shape} with {outputs} each"

    @property
    def record(self) -> int:
        """Words of a channel's weights."""
        return -(-(self.lead + PATCH) // 4)


def patches_of(g: Geometry) -> Patches | None:
    """Return the split with the fewest strips within the scratch limit.

    Return None if a window does not fit into a patch, or if no split fits.
    """
    return next((p for p in _splits(g, 0) if p.scratch <= SCRATCH_LIMIT), None)


def patches_in_place(g: Geometry, limit: int) -> Patches | None:
    """Return the split for an output that overwrites the input, with copied rows.

    It has the fewest strips within `limit` bytes of scratch, or takes the least scratch if none
    fits. Return None if a window does not fit into a patch, if the image is one row, or if an
    output would overwrite inputs that have not been copied yet.
    """
    if g.padding[0][0] >= g.kernel[0]:
        return None
    found = [p for p in _splits(g, g.size[1]) if not p.line and _in_time(g, p)]
    return next((p for p in found if p.scratch <= limit), min(found, key=_scratch, default=None))


def _scratch(p: Patches) -> int:
    return p.scratch


def _in_time(g: Geometry, p: Patches) -> bool:
    """Return whether the rows under each strip are copied before outputs overwrite them."""
    ends = ((y * g.stride[0] - g.padding[0][0] + p.rows, y + p.strip_outputs) for y in p.starts)
    return all(min(copied, g.size[0]) * g.size[1] >= done * g.output[1] for copied, done in ends)


def _splits(g: Geometry, copied: int) -> Iterator[Patches]:
    """Yield the splits into one strip, two strips and so on; none if no window fits a patch.

    Args:
        g: the sizes of the convolution.
        copied: see `Patches`.
    """
    shape = _shape(g)
    if shape is None:
        return
    line, down, across, advance, shifts = shape
    size = g.output[1] if line else g.output[0]
    for count in range(1, size + 1):
        block = -(-size // count)
        yield Patches(
            line=line,
            down=down,
            across=across,
            advance=advance,
            shifts=shifts,
            lead=max(shifts),
            strip_outputs=block,
            starts=tuple(min(i * block, size - block) for i in range(-(-size // block))),
            copied=copied,
        )


def _shape(g: Geometry) -> tuple[bool, int, int, int, tuple[int, ...]] | None:
    """Return `line`, `down`, `across`, `advance` and `shifts`; None if no window fits a patch."""
    (height, width), (down, across) = g.kernel, g.stride
    if g.size[0] == height == g.output[0] == 1 and g.padding[0][0] == 0:
        for outputs in (4, 2, 1):
            step = outputs * across
            single = outputs == 1 == g.output[1]
            if (outputs - 1) * across + width <= PATCH and (step % 4 == 0 or single):
                shifts = tuple(across * i for i in range(outputs))
                return True, outputs, 1, max(step // 4, 1), shifts
        return None
    if height > 4 or width > 4:
        return None
    rows, columns = 1, 1
    if (4 - height) >= down:
        rows = 2
    if (4 - width) >= across and g.output[1] > 1:
        columns = 2
    shifts = tuple(4 * down * r + across * c for r in range(rows) for c in range(columns))
    return False, rows, columns, rows * down, shifts

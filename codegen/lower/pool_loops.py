"""Loops over the pixels of pooling windows, and their work for the prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smelt.codegen.lower.pooling import Pooling
from smelt.targets import Optimize

_UNROLLED = 8
"""Columns per iteration of an unrolled loop, for speed."""


@dataclass(frozen=True)
class PoolLoops:
    """Loops over the taps of windows.

    Attributes:
        columns: Columns of a window; None if they are a parameter of the function.
        rows: Rows of a window, likewise; one row needs no loop.
        most: Largest number of columns per iteration.
    """

    columns: int | None
    rows: int | None
    most: int

    def parameters(self, *, varies: bool) -> tuple[str, ...]:
        """Return the C parameters of the function; `varies` is `Pooling.varies`."""
        dimensions = ("int32_t rows", self.rows is None), ("int32_t columns", self.columns is None)
        more = (*dimensions, ("const int32_t *scale", varies))
        fixed = "const int8_t *in", "int8_t *out", "int32_t pixels"
        return (*fixed, *(text for text, wanted in more if wanted))

    @property
    def written_out(self) -> bool:
        """Whether there are so few taps that loops are not worthwhile."""
        taps = (self.rows or 0) * (self.columns or 0)
        return 1 < taps <= (9 if self.most == _UNROLLED else 4)

    @property
    def unrolled(self) -> int:
        """Columns per iteration of the loop over them; all columns if there is no loop."""
        if self.columns is None:
            return 1
        if self.columns <= self.most:
            return self.columns
        return min(range(self.most, self.most // 2, -1), key=lambda n: (self.columns or 0) % n)

    @property
    def iterations(self) -> int:
        """Iterations of the loop over columns; 0 if their number is a parameter."""
        return 0 if self.columns is None else self.columns // self.unrolled

    @property
    def rest(self) -> int:
        """Columns after the loop."""
        return 0 if self.columns is None else self.columns % self.unrolled


def walks(p: Pooling, optimize: Optimize) -> dict[str, PoolLoops]:
    """Return the needed functions: `run` for windows of full rows, `edge` for clipped ones."""
    rows, most = None if p.rows.clipped else p.rows.window, _UNROLLED if optimize != "size" else 3
    whole = {"run": PoolLoops(p.columns.window, rows, most)} if p.columns.inside else {}
    return whole | ({"edge": PoolLoops(None, rows, most)} if p.columns.clipped else {})


def work(
    p: Pooling, walks: Mapping[str, PoolLoops], lanes: int, load: int, *, written_out: bool = False
) -> dict[str, int]:
    """Return the units of work that prices are for.

    Args:
        p: The pooling.
        walks: The loops over windows.
        lanes: Channels that are computed at a time.
        load: Channels that one instruction loads.
        written_out: Whether few taps are computed without loops.
    """
    groups, loads = -(-p.channels // lanes), -(-lanes // load)
    edge, inside = p.taps, 0
    iterations = 0
    if "run" in walks:
        run = walks["run"]
        inside = p.images * sum(p.rows.covered) * p.columns.inside
        edge -= inside * p.columns.window
        iterations = inside * (max(run.iterations, 1) + (run.rest > 0))
        if run.written_out and written_out:
            iterations = 0
    return {
        "loads": p.taps * groups * loads,
        "turns": (iterations + edge) * groups,
        "groups": p.pixels * groups,
        "outputs": p.pixels * groups * loads,
        "pixels": p.pixels,
        "calls": 1,
    }

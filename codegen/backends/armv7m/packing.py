"""How the inputs under windows are packed, two channels in a word, as templates print it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.backends.armv7m.paired_weights import LIFT, pairs_of
from smelt.codegen.lower.image_product import Footprint, ImageProduct
from smelt.codegen.lower.kernel import Scratch
from smelt.ir import DType

PIXELS = 3
"""Pixels whose sums of two outputs fit into registers."""

_WIDEST_SLIDE = 5
"""Columns of a window up to which neighbouring pixels' inputs are loaded together."""


@dataclass(frozen=True)
class LastInputs:
    """A word that is made of the last inputs of a run: its index, and C."""

    word: int
    inputs: str


def last_inputs(run: int, names: Sequence[str], apart: int) -> tuple[LastInputs, ...]:
    """The words of inputs behind the last whole four of a run.

    Args:
        run: inputs.
        names: C of where those of each pixel start.
        apart: words from one pair of inputs to the next.
    """
    rest = run % 4
    return tuple(
        LastInputs(
            first // 2 * apart + i,
            f"{name}[{first}] + {LIFT}"
            + (f" + {name}[{first + 1}] * 65536" if first + 1 < rest else ""),
        )
        for first in range(0, rest, 2)
        for i, name in enumerate(names)
    )


@dataclass(frozen=True)
class SlidingInput:
    """A column under neighbouring windows: C of where it is, and the words that hold it.

    Words are in pairs: even channels and odd ones.
    """

    at: str
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PairsGathering:
    """How the inputs under windows are found, where pixels are not simply neighbours.

    Attributes:
        under: what lies under a window.
        output_pixel: C of where an output pixel starts; "" where those of a block are neighbours.
        row_end: of the rows of a window.
        row: how one of them is packed: `whole`, `sliding`, `inside` (whole if it is), `columns`.
        inside: the last column from which it lies inside of the image.
        copies: where the rows of three windows are put together first; "" for the first.
        last: row and column of the last block, if it overlaps with the one before.
        sliding: columns under three windows.
        slid: words between the last column's and the end.
    """

    under: Footprint
    output_pixel: str
    row_end: int
    row: str
    inside: int
    copies: tuple[str, ...]
    last: tuple[int, int] | None
    sliding: tuple[SlidingInput, ...]
    slid: int

    @staticmethod
    def of(product: ImageProduct) -> PairsGathering:
        """That of a convolution."""
        window, place, row = product.window, product.place, _row_of(product)
        columns, depth, last = window.kernel[1], window.depth, place.pixels - PIXELS
        slides = row == "sliding"
        return PairsGathering(
            under=Footprint.of(product, whole=row == "whole"),
            output_pixel=place.target.offset("y", "x") if last < 0 else "",
            row_end=window.end[0] if window.kernel[0] > 1 else 0,
            row=row,
            inside=window.size[1] - columns if row == "inside" else 0,
            copies=_copies(product),
            last=divmod(last, place.width) if last >= 0 and place.pixels % PIXELS else None,
            sliding=_sliding(columns, depth) if slides else (),
            slid=(columns - 1) * depth // 2 * PIXELS if slides else 0,
        )


@dataclass(frozen=True)
class PairsPacking:
    """How the inputs of three pixels are packed.

    Attributes:
        depth: channels of an input pixel, and of two pixels.
        run: inputs that are packed at once; 0 where that is a pixel's only.
        tail: words of the last inputs of a run.
        tail_words: how many they are.
        pixels: to be computed.
        last: first pixel of the last block, where outputs are neighbours; None elsewhere.
        gathering: None where inputs are neighbours too.
    """

    depth: tuple[int, int]
    run: int
    tail: tuple[LastInputs, ...]
    tail_words: int
    pixels: int
    last: int | None
    gathering: PairsGathering | None

    @staticmethod
    def of(product: ImageProduct) -> PairsPacking:
        """That of a convolution."""
        pixels, depth = product.place.pixels, product.window.depth
        together, run = pixels >= PIXELS, product.run
        neighbours = together and product.window.pointwise
        gathering = None if neighbours else PairsGathering.of(product)
        in_runs = gathering is None or gathering.copies or gathering.row in ("whole", "inside")
        tail = last_inputs(run, [f"in{i}" for i in range(PIXELS)], PIXELS)
        return PairsPacking(
            depth=(depth, 2 * depth),
            run=run if in_runs else 0,
            tail=tail,
            tail_words=len(tail),
            pixels=pixels,
            last=pixels - PIXELS if together else None,
            gathering=gathering,
        )

    def copies(self, product: ImageProduct) -> tuple[Scratch, ...]:
        """Where rows of windows are put together first, if they are."""
        if self.gathering is None or not self.gathering.copies:
            return ()
        return (Scratch("line", DType.INT8, PIXELS * product.run),)


def scratch_bytes(product: ImageProduct) -> int:
    """What the packed inputs of three pixels take, with copies of rows of their windows."""
    line = PIXELS * product.run if _splits_words(product) else 0
    return product.window.kernel[0] * len(pairs_of(product.run)) * 4 * PIXELS + line


def _splits_words(product: ImageProduct) -> bool:
    """Whether a row of the window must lie in one piece to be packed."""
    return product.window.kernel[1] > 1 and product.window.depth % 4 != 0


def _row_of(product: ImageProduct) -> str:
    """How a row of a window is packed."""
    window, columns = product.window, product.window.kernel[1]
    slides = not _splits_words(product) and 1 < columns <= _WIDEST_SLIDE
    if slides and window.stride[1] == window.dilation[1] == 1:
        return "sliding"
    if columns == 1 or (product.has_runs and not window.padded):
        return "whole"
    return "inside" if product.has_runs else "columns"


def _copies(product: ImageProduct) -> tuple[str, ...]:
    """Where the rows of three windows are put together, C behind a sum; nothing where not."""
    if not _splits_words(product) or (product.contiguous and not product.window.padded):
        return ()
    return tuple(f" + {i * product.run}" if i else "" for i in range(PIXELS))


def _sliding(columns: int, depth: int) -> tuple[SlidingInput, ...]:
    """The columns under the windows of three neighbouring pixels."""

    def words(column: int, tap: int) -> tuple[int, int]:
        even = tap * depth // 2 * PIXELS + column - tap
        return even, even + PIXELS

    return tuple(
        SlidingInput(
            f" + {i}" if i else "",
            tuple(words(i, dx) for dx in range(columns) if i - dx in range(PIXELS)),
        )
        for i in range(columns + PIXELS - 1)
    )

"""Template variables for packing the inputs under windows, two channels in a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.backends.armv7m.paired_weights import LIFT, pairs_of
from smelt.codegen.lower.image_product import Footprint, ImageProduct
from smelt.codegen.lower.kernel import InnerFunction, Parameters, Scratch
from smelt.ir import DType

PIXELS = 3
"""Pixels of a block: their sums for two output channels fit into registers."""

_WIDEST_SLIDE = 5
"""Largest number of window columns for which inputs of adjacent pixels are loaded together."""


@dataclass(frozen=True)
class LastInputs:
    """A word of the last inputs of a run.

    Attributes:
        word: index of the word.
        inputs: C text of the word's value.
    """

    word: int
    inputs: str


def last_inputs(run: int, names: Sequence[str], apart: int) -> tuple[LastInputs, ...]:
    """Return the words of the inputs after the last whole group of four of a run.

    Args:
        run: inputs of the run.
        names: C expression of each pixel's pointer to its remaining inputs.
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
    """A column under neighboring windows.

    Attributes:
        at: C text that adds the column's index; empty for column 0.
        pairs: indices of the words that hold the column's even and odd channels, for each window.
    """

    at: str
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PairsGathering:
    """The addresses of the inputs under windows, unless pixels are simply contiguous.

    Attributes:
        under: the inputs under a window.
        output_pixel: C text: offset of an output pixel; "" if those of a block are contiguous.
        row_end: end of the loop over a window's rows; 0 without a loop.
        row: how a row is packed: `whole`, `sliding` (with its neighbors), `inside` (whole if it
            is inside the image, else by columns), `columns`.
        inside: last first column for which a row is inside the image.
        copies: place of each pixel's copied row in `line`; empty if rows are not copied.
        last: row and column of the last block's first pixel, if it overlaps the one before.
        sliding: columns under three windows.
        slid: words from the end of the first column's words to the end of the row's words.
    """

    under: Footprint
    output_pixel: str
    row_end: int
    row: str
    inside: int
    copies: tuple[int, ...]
    last: tuple[int, int] | None
    sliding: tuple[SlidingInput, ...]
    slid: int

    @staticmethod
    def of(product: ImageProduct) -> PairsGathering:
        """Return the gathering for a convolution."""
        window, frame, row = product.window, product.frame, _row_of(product)
        columns, depth, last = window.kernel[1], window.depth, frame.pixels - PIXELS
        slides = row == "sliding"
        return PairsGathering(
            under=Footprint.of(product, whole=row == "whole"),
            output_pixel=frame.target.offset("y", "x") if last < 0 else "",
            row_end=window.end[0] if window.kernel[0] > 1 else 0,
            row=row,
            inside=window.size[1] - columns if row == "inside" else 0,
            copies=_copies(product),
            last=divmod(last, frame.width) if last >= 0 and frame.pixels % PIXELS else None,
            sliding=_sliding(columns, depth) if slides else (),
            slid=(columns - 1) * depth // 2 * PIXELS if slides else 0,
        )


@dataclass(frozen=True)
class PackRunParameters(Parameters):
    """Variables of `backends/armv7m/pack_run.j2`.

    Attributes:
        tail: words of the last inputs of a run.
        tail_words: number of these words.
    """

    tail: tuple[LastInputs, ...]
    tail_words: int


@dataclass(frozen=True)
class BlockAhead:
    """A last block that overlaps the one before, whose outputs may be in place of its inputs.

    It is packed ahead of all others.

    Attributes:
        words: words of a block's packed inputs; those of this block follow.
        input: offset of its first input.
        outputs: offset of the outputs of each of its pixels.
    """

    words: int
    input: int
    outputs: tuple[int, ...]

    @staticmethod
    def of(product: ImageProduct) -> BlockAhead:
        """Return the last block of a 1x1 convolution or dense layer."""
        window, first = product.window, product.frame.pixels - PIXELS
        return BlockAhead(
            words=len(pairs_of(product.run)) * PIXELS,
            input=first * window.depth,
            outputs=tuple((first + i) * window.outputs for i in range(PIXELS)),
        )


@dataclass(frozen=True)
class PairsPacking:
    """The packing of the inputs of three pixels.

    Attributes:
        depth: channels of an input pixel, and of two pixels.
        run: inputs that are packed at once; 0 if rows are never packed as a whole.
        pixels: number of output pixels.
        whole: number of those in blocks that do not overlap.
        last: first pixel of the last block; None if a block's outputs are not contiguous.
        ahead: the last block, if it is packed ahead of the others.
        gathering: how inputs are found; None if they are contiguous too.
    """

    depth: tuple[int, int]
    run: int
    pixels: int
    whole: int
    last: int | None
    ahead: BlockAhead | None
    gathering: PairsGathering | None

    @staticmethod
    def of(product: ImageProduct) -> PairsPacking:
        """Return the packing for a convolution."""
        pixels, depth = product.frame.pixels, product.window.depth
        together, run = pixels >= PIXELS, product.run
        neighbors = together and product.window.pointwise
        gathering = None if neighbors else PairsGathering.of(product)
        ahead = gathering is None and pixels % PIXELS > 0
        in_runs = gathering is None or gathering.copies or gathering.row in ("whole", "inside")
        return PairsPacking(
            depth=(depth, 2 * depth),
            run=run if in_runs else 0,
            pixels=pixels,
            whole=pixels - pixels % PIXELS,
            last=pixels - PIXELS if together else None,
            ahead=BlockAhead.of(product) if ahead else None,
            gathering=gathering,
        )

    @property
    def loads_words(self) -> bool:
        """Whether the code beside the functions that pack inputs calls `memcpy`."""
        if self.gathering is None:
            return False
        return bool(self.gathering.copies) and self.depth[0] > 1

    def copies(self, product: ImageProduct) -> tuple[Scratch, ...]:
        """Return the scratch for copied rows of windows, if rows are copied."""
        if self.gathering is None or not self.gathering.copies:
            return ()
        return (Scratch("line", DType.INT8, PIXELS * product.run),)


@dataclass(frozen=True)
class SlideParameters(Parameters):
    """Variables of `backends/armv7m/pack_slide.j2`; see `PairsGathering`.

    Attributes:
        depth: channels of an input pixel.
        sliding: columns under three windows.
        slid: words from the end of the first column's words to the end of the row's words.
    """

    depth: int
    sliding: tuple[SlidingInput, ...]
    slid: int


def slide_function(packing: PairsPacking) -> tuple[InnerFunction, ...]:
    """Return the function that packs a row of three neighboring windows; none if none does."""
    gathering, depth = packing.gathering, packing.depth[0]
    if gathering is None or not gathering.sliding:
        return ()
    function = InnerFunction(
        template="backends/armv7m/pack_slide.j2",
        stem=f"pack_{len(gathering.sliding)}_columns",
        details={"depth": f"c{depth}"},
        parameters=SlideParameters(depth, gathering.sliding, gathering.slid),
        uses={"string.h"},
    )
    return (function,)


def pack_function(run: int) -> InnerFunction:
    """Return the function that packs contiguous inputs, `run` modulo 4 of which come last."""
    tail = last_inputs(run, [f"in{i}" for i in range(PIXELS)], PIXELS)
    return InnerFunction(
        template="backends/armv7m/pack_run.j2",
        stem="pack_run",
        details={"rest": f"rest{run % 4}"},
        parameters=PackRunParameters(tail, len(tail)),
        uses={"string.h"},
    )


def scratch_bytes(product: ImageProduct) -> int:
    """Return the bytes of scratch for the packed inputs of three pixels, copied rows included."""
    line = PIXELS * product.run if _splits_words(product) else 0
    return product.window.kernel[0] * len(pairs_of(product.run)) * 4 * PIXELS + line


def _splits_words(product: ImageProduct) -> bool:
    """Return whether a row of the window must be contiguous to be packed.

    This is so if the channels of a pixel do not fill whole groups of four.
    """
    return product.window.kernel[1] > 1 and product.window.depth % 4 != 0


def _row_of(product: ImageProduct) -> str:
    """Return how a row of a window is packed; see `PairsGathering.row`."""
    window, columns = product.window, product.window.kernel[1]
    slides = not _splits_words(product) and 1 < columns <= _WIDEST_SLIDE
    if slides and window.stride[1] == window.dilation[1] == 1:
        return "sliding"
    if columns == 1 or (product.has_runs and not window.padded):
        return "whole"
    return "inside" if product.has_runs else "columns"


def _copies(product: ImageProduct) -> tuple[int, ...]:
    """Return `PairsGathering.copies`."""
    if not _splits_words(product) or (product.contiguous and not product.window.padded):
        return ()
    return tuple(i * product.run for i in range(PIXELS))


def _sliding(columns: int, depth: int) -> tuple[SlidingInput, ...]:
    """Return the columns under the windows of three neighboring pixels."""

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

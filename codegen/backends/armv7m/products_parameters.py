"""What the template of a convolution with two taps in one multiplication prints."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.images import ImageLoop
from smelt.codegen.lower.offer import Parameters
from smelt.codegen.lower.short_scaling import ScalingSteps


@dataclass(frozen=True)
class LastInputs:
    """A word that is made of the last inputs of a run: its index, and C behind `in0`, …."""

    word: int
    input: int
    inputs: str


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
        pixel: C of where an input pixel starts.
        output_pixel: C of where an output pixel starts; "" where those of a block are neighbours.
        size: of the image; None without padding.
        top, side: C of the first row and column under a window.
        width: pixels of a row of outputs.
        tall: whether windows have several rows.
        row_end, row_step: of the rows of a window.
        row: how one of them is packed: `whole`, `sliding`, `inside` (whole if it is), `columns`.
        inside: the last column from which it lies inside of the image.
        end, step: of the columns of a window.
        copies: where the rows of three windows are put together first; "" for the first.
        last: row and column of the last block, if it overlaps with the one before.
        sliding: columns under three windows.
        slid: words between the last column's and the end.
    """

    pixel: str
    output_pixel: str
    size: tuple[int, int] | None
    top: str
    side: str
    width: int
    tall: bool
    row_end: int
    row_step: int
    row: str
    inside: int
    end: int
    step: int
    copies: tuple[str, ...]
    last: tuple[int, int] | None
    sliding: tuple[SlidingInput, ...]
    slid: int


@dataclass(frozen=True)
class PairsOfTapsParameters(Parameters):
    """Variables of `backends/armv7m/products.j2`.

    Attributes:
        title: what is computed.
        images: that it is computed for.
        condition: the preprocessor's, for assembly.
        assembly: the lines of each statement of the function over a block.
        scaling: of sums.
        fields: words of a channel's requantization, and of two channels'.
        outputs: channels.
        odd: whether their number is.
        steps: pairs of taps.
        in_words: whether weights are words.
        repaired: whether some output has repairs.
        depth: channels of an input pixel, and of two pixels.
        run: inputs that are packed at once; 0 where that is a pixel's only.
        tail: words of the last inputs of a run.
        tail_words: how many they are.
        pixels: to be computed.
        last: first pixel of the last block, where outputs are neighbours; None elsewhere.
        gathering: None where inputs are neighbours too.
    """

    title: str
    images: ImageLoop
    condition: str
    assembly: tuple[str, ...]
    scaling: ScalingSteps
    fields: tuple[int, int]
    outputs: int
    odd: bool
    steps: int
    in_words: bool
    repaired: bool
    depth: tuple[int, int]
    run: int
    tail: tuple[LastInputs, ...]
    tail_words: int
    pixels: int
    last: int | None
    gathering: PairsGathering | None

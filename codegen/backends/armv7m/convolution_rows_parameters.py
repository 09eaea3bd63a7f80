"""What the template of a convolution over widened rows prints."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.armv7m.packing import LastInputs
from smelt.codegen.lower.image_loops import ImageLoop
from smelt.codegen.lower.kernel import Parameters
from smelt.codegen.lower.requantization_32bit import ScalingSteps


@dataclass(frozen=True, kw_only=True)
class Widening:
    """How a row of the image becomes words of two channels each.

    Attributes:
        size: of the image; None without padding.
        x: C of the column that word `i` of a line holds.
        pixel: C of where its inputs start.
        place: C of where column `i` stands in a line.
        pitch: words of a line, and of two lines.
        fours: of channels.
        tail: words of the last channels.
    """

    size: tuple[int, int] | None
    x: str
    pixel: str
    place: str
    pitch: tuple[int, int]
    fours: int
    tail: tuple[LastInputs, ...]


@dataclass(frozen=True)
class Bands:
    """How rows of outputs are computed, a band at a time.

    Attributes:
        height: rows of outputs.
        rows: of a band.
        count: C of the rows of a band, of which the last one may have fewer.
        uneven: whether it does.
        needed: C of the rows of the image under it.
        kept: of them, those that the next band needs too; 0 where there is none.
        moved: where these begin, and how many words they are.
        stride: from a row of outputs to the next in the image.
        row: words of a row of the image.
        line_step: words to the row of the image under the next row of outputs.
        first: C of the first row of the image under row 0, behind a sum.
        output_step: elements from a row of outputs to the next.
        blocks: fours of outputs in a row.
        last: words, and elements, to the last four outputs of a line; None for whole fours.
    """

    height: int
    rows: int
    count: str
    uneven: bool
    needed: str
    kept: int
    moved: tuple[int, int]
    stride: int
    row: int
    line_step: int
    first: str
    output_step: int
    blocks: int
    last: tuple[int, int] | None


@dataclass(frozen=True)
class RowsOfPairsParameters(Parameters):
    """Variables of `backends/armv7m/convolution_rows.j2`.

    Attributes:
        title: what is computed.
        images: that it is computed for.
        condition: the preprocessor's, for assembly.
        assembly: the lines of each statement of the function for a row and a channel.
        scaling: of sums.
        fields: words of a channel's requantization.
        outputs: channels, and four times as many.
        steps: rows of the window times pairs of channels.
        places: C of where the columns of a step stand, behind that of the first.
        repaired: whether some channel has repairs.
        widening: of rows of the image.
        bands: of rows of outputs.
        pairs: words that hold the weights of two; None where weights are words.
        odd: whether a last weight is alone.
        weights: words of a channel's weights, where they are words in flash.
    """

    title: str
    images: ImageLoop
    condition: str
    assembly: tuple[str, ...]
    scaling: ScalingSteps
    fields: int
    outputs: tuple[int, int]
    steps: int
    places: tuple[str, ...]
    repaired: bool
    widening: Widening
    bands: Bands
    pairs: int | None
    odd: bool
    weights: int

"""Variables of the template for convolutions over widened rows."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.armv7m.packing import LastInputs
from smelt.codegen.lower.image_loops import ImageLoop
from smelt.codegen.lower.kernel import Parameters
from smelt.codegen.lower.output_slabs import OutputSlabs


@dataclass(frozen=True, kw_only=True)
class WidenRowParameters(Parameters):
    """Variables of `backends/armv7m/widen_row.j2`; it makes words of two channels each.

    Attributes:
        size: height and width of the image; None without padding.
        column: variable of the loop over padded columns.
        x: C text: image column of padded column `i`; empty if `x` is the variable.
        pixel: C text: offset of the inputs of this column.
        place: C text: position of a padded column in a line.
        pitch: words of a line, and of two lines.
        fours: number of whole groups of four channels.
        tail: words of the remaining channels.
    """

    size: tuple[int, int] | None
    column: str
    x: str
    pixel: str
    place: str
    pitch: tuple[int, int]
    fours: int
    tail: tuple[LastInputs, ...]


@dataclass(frozen=True)
class Slabs:
    """The loop over slabs of output rows.

    Attributes:
        slabs: the loop.
        needed: C text: image rows under the current slab.
        kept: image rows of a slab that the next slab needs too.
        moved: offset of the kept rows in scratch, and their size, in words.
        stride: image rows from one output row to the next.
        row: words of a row of the image.
        line_step: words from the image row under an output row to that under the next.
        first: C text, added to the slab's first row times the stride: the image row with index
            `have` in the slab.
        output_step: elements of a row of outputs.
        blocks: whole blocks of four outputs in a row.
        last: offset of the last four outputs of a row in words of a line, and in elements of the
            output; None if all blocks are whole.
    """

    slabs: OutputSlabs
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


@dataclass(frozen=True, kw_only=True)
class RowText:
    """The function that computes a channel of a row of outputs.

    Attributes:
        condition: preprocessor condition for the assembly.
        assembly: C lines of its statement.
        fields: words of requantization constants for a channel.
        outputs: number of output channels, and four times that.
        steps: rows of the window times pairs of channels.
        pitch: words of a line.
        places: C texts: what to add for each column of a step; empty for 0.
        repaired: whether some channel has repairs.
        blocks: whole blocks of four outputs in a row.
    """

    condition: str
    assembly: str
    fields: int
    outputs: tuple[int, int]
    steps: int
    pitch: int
    places: tuple[str, ...]
    repaired: bool
    blocks: int


@dataclass(frozen=True)
class RowParameters(Parameters):
    """Variables of `backends/armv7m/convolution_row.j2`."""

    row: RowText


@dataclass(frozen=True)
class ExpandWeightsParameters(Parameters):
    """Variables of `backends/armv7m/expand_weights.j2`.

    Attributes:
        pairs: words in flash that are expanded to two words.
        odd: whether a last word in flash is expanded to one word.
    """

    pairs: int
    odd: bool


@dataclass(frozen=True)
class RowsOfPairsParameters(Parameters):
    """Variables of `backends/armv7m/convolution_rows.j2`.

    Attributes:
        title: text of the function's comment.
        images: the loop over images.
        outputs: number of output channels.
        padded: whether rows of the window can be partly outside of the image.
        slabs: the loop over slabs of output rows.
        expands: whether the bytes in flash are expanded to words of two weights.
        weights: words of a channel in flash if they are not expanded; else 0.
    """

    title: str
    images: ImageLoop
    outputs: int
    padded: bool
    slabs: Slabs
    expands: bool
    weights: int

"""Template parameters of convolutions with two products per multiplication."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.image_loops import ImageLoop
from smelt.codegen.lower.image_product import Footprint
from smelt.codegen.lower.kernel import Parameters
from smelt.codegen.lower.requantization_32bit import ScalingSteps


@dataclass(frozen=True)
class StretchText:
    """A stretch of taps in C.

    Attributes:
        turns: Iterations of the loop.
        groups: Groups per iteration.
        taps: Taps per group.
        step: Bytes of weights per group.
    """

    turns: int
    groups: int
    taps: int
    step: int


@dataclass(frozen=True)
class BlockFunction:
    """A function that sums a slice of the window for all channels of a block of pixels.

    Attributes:
        name: The suffix of its name.
        ends: Whether it requantizes the sums to outputs.
        stretches: The stretches of taps.
        length: Weights per channel.
        together: Bytes of the weights of interleaved channels; 0 if they are not interleaved.
        assembly: C lines of its statement.
    """

    name: str
    ends: bool
    stretches: tuple[StretchText, ...]
    length: int
    together: int
    assembly: str


@dataclass(frozen=True)
class PackedSlice:
    """Dilated rows `begin` to `end` of the window, which are packed before a function is called."""

    begin: int
    end: int
    function: str
    weights: str


@dataclass(frozen=True)
class SlideTap:
    """One tap of all pixels of a block: where its words are stored, and the two inputs of each."""

    place: str
    stores: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Slide:
    """The packing of a row of adjacent pixels' windows: each input is stored for several taps.

    Attributes:
        inputs: C of the address of each input.
        taps: The taps to store.
        step: The number of words, or of positions, in the row.
        neighbors: Columns from the first pixel to the last one.
    """

    inputs: tuple[str, ...]
    taps: tuple[SlideTap, ...]
    step: int
    neighbors: int


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """How the inputs under windows are found, if pixels are not simply adjacent in memory.

    Attributes:
        under: The input pixels under a window.
        output_pixel: C of the offset of an output pixel.
        whole: Whether each row of a window is always contiguous.
        inside: The last column at which rows are contiguous; None if there is no such check.
        run: Inputs of a contiguous row; 0 if there are none.
        checks_inside: Whether the code checks `inside` for each window.
        slide: How rows of adjacent pixels are packed together, or None.
    """

    under: Footprint
    output_pixel: str
    whole: bool
    checks_inside: bool
    inside: int | None
    run: int
    slide: Slide | None


@dataclass(frozen=True)
class HalfwordParameters(Parameters):
    """Variables of `lower/halfword_convolution.j2`.

    Attributes:
        title: The operator, types and window, for the comment.
        images: The loop over images.
        condition: The preprocessor condition for the assembly.
        functions: One for the last slice, and before it one for all others.
        scaling: The requantization of sums.
        fields: Words of a channel's row of constants.
        words: Words of packed inputs per tap, with two pixels in each.
        apart: Bytes from one weight of a channel to the next.
        outputs: Output channels.
        depth: Channels of an input pixel.
        pixels: Number of output pixels.
        at_once: Pixels of a block.
        lanes: The indices of these pixels.
        pairs: Each word with the indices of its two pixels.
        ordered: Whether inputs are packed in their original order.
        state: Words of scratch before the packed inputs.
        slices: The slices of the window.
        last: The first pixel of the last block, if pixels need no gathering.
        gathering: How inputs are gathered, or None.
    """

    title: str
    images: ImageLoop
    condition: str
    functions: tuple[BlockFunction, ...]
    scaling: ScalingSteps
    fields: int
    words: int
    apart: int
    outputs: int
    depth: int
    pixels: int
    at_once: int
    lanes: tuple[int, ...]
    pairs: tuple[tuple[int, int, int], ...]
    ordered: bool
    state: int
    slices: tuple[PackedSlice, ...]
    last: int
    gathering: Gathering | None

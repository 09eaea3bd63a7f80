"""What the template of a convolution with two products in one multiplication prints."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.image_loops import ImageLoop
from smelt.codegen.lower.image_product import Footprint
from smelt.codegen.lower.kernel import Parameters
from smelt.codegen.lower.requantization_32bit import ScalingSteps


@dataclass(frozen=True)
class StretchText:
    """A stretch in C: turns of the loop, groups in a turn, taps of each, bytes of its weights."""

    turns: int
    groups: int
    taps: int
    step: int


@dataclass(frozen=True)
class BlockFunction:
    """A function that sums a slice of the window for all channels of a block of pixels.

    Attributes:
        name: behind the function's.
        ends: whether it makes outputs of the sums.
        stretches: of its taps.
        length: weights of a channel.
        together: weights of channels that are interleaved; 0 where none are.
        assembly: the lines of each of its statements.
    """

    name: str
    ends: bool
    stretches: tuple[StretchText, ...]
    length: int
    together: int
    assembly: tuple[str, ...]


@dataclass(frozen=True)
class PackedSlice:
    """Dilated rows of the window, up to `end`, that are packed before a function is called."""

    begin: int
    end: int
    function: str
    weights: str


@dataclass(frozen=True)
class SlideTap:
    """A tap of each pixel of a block: where its words go, and which two inputs make each."""

    place: str
    stores: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Slide:
    """How a row of the windows of neighbouring pixels is packed: inputs go to several taps.

    Attributes:
        inputs: each with its place behind the first one.
        taps: what they are stored for.
        step: what the row makes of words, or of places.
        neighbours: columns from the first pixel to the last one.
    """

    inputs: tuple[str, ...]
    taps: tuple[SlideTap, ...]
    step: int
    neighbours: int


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """How the inputs under windows are found, where pixels are not simply neighbours.

    Attributes:
        under: what lies under a window.
        output_pixel: C of where an output pixel starts.
        whole: whether each row of a window lies in one piece.
        inside: the last column from which it does; None where that is not asked.
        run: inputs of such a row; 0 where there are none.
        asks: whether windows are told apart by `inside`.
        slide: how rows of neighbouring pixels are packed together.
    """

    under: Footprint
    output_pixel: str
    whole: bool
    asks: bool
    inside: int | None
    run: int
    slide: Slide | None


@dataclass(frozen=True)
class HalfwordParameters(Parameters):
    """Variables of `lower/halfword_convolution.j2`.

    Attributes:
        title: what is computed.
        images: that it is computed for.
        condition: the preprocessor's, for assembly.
        functions: one for the last slice, before it one for all others.
        scaling: of sums.
        fields: words of a channel's row of constants.
        words: of packed inputs a tap, two pixels in each.
        apart: bytes from one weight of a channel to the next.
        outputs: channels.
        depth: channels of an input pixel.
        pixels: to be computed.
        at_once: pixels of a block; `lanes` are their numbers.
        pairs: word, and the two pixels in it.
        ordered: whether inputs are packed in their own order.
        state: words of scratch before the packed inputs.
        slices: of the window.
        last: first pixel of the last block, where pixels need no gathering.
        gathering: see there.
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

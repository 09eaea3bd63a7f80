"""Template parameters of convolutions with two products per multiplication."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.image_loops import ImageLoop
from smelt.codegen.lower.image_product import Footprint
from smelt.codegen.lower.kernel import Parameters
from smelt.codegen.lower.requantization_32bit import ScalingSteps


@dataclass(frozen=True)
class GroupLoopText:
    """A loop over groups of taps, as the plain C form prints it.

    Attributes:
        iterations: Iterations of the loop.
        groups: Groups per iteration.
        taps: Taps per group.
        step: Bytes of weights per group.
    """

    iterations: int
    groups: int
    taps: int
    step: int


@dataclass(frozen=True)
class BlockFunction:
    """A function that sums a slice of the window for all channels of a block of pixels.

    Attributes:
        name: The suffix of its name.
        ends: Whether it requantizes the sums to outputs.
        group_loops: The loops over groups of taps, in sequence.
        length: Weights per channel.
        together: Bytes of the weights of a block of interleaved channels; 0 without interleaving.
        assembly: C lines of its statement.
        layered: Whether it reads numbers from a layer's struct.
    """

    name: str
    ends: bool
    group_loops: tuple[GroupLoopText, ...]
    length: int
    together: int
    assembly: str
    layered: bool


@dataclass(frozen=True)
class PackedSlice:
    """Rows of the window that are packed before a function is called.

    Attributes:
        begin: The first row, in rows of the input (the window may be dilated).
        end: The end of the rows, also in rows of the input.
        several: Whether there are several rows.
        function: The index of the inner function that sums them.
        weights: C of the pointer to the weights of these rows.
    """

    begin: int
    end: int
    several: bool
    function: int
    weights: str


@dataclass(frozen=True)
class SlideTap:
    """One tap of all pixels of a block.

    Attributes:
        place: C of the tap's position, if taps are reordered; empty otherwise.
        stores: For each word, C of its position and the indices of its two inputs.
    """

    place: str
    stores: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Slide:
    """How a row of the windows of adjacent pixels is packed.

    The windows overlap: each input is loaded once and stored for several taps.

    Attributes:
        inputs: C of the address of each input.
        taps: The taps to store.
        step: The words that a row of the window takes in scratch; its number of taps if taps are
            reordered.
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
        inside: The last column at which a window's rows are contiguous; None if all are, or none.
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


@dataclass(frozen=True, kw_only=True)
class BlockText:
    """What all functions of a layer have in common; see `lower/halfword_functions.j2`.

    Attributes:
        condition: The preprocessor condition for the assembly.
        scaling: The requantization of sums.
        fields: Words of a channel's row of constants.
        words: Words of packed inputs per tap, with two pixels in each.
        weight_stride: Bytes from one weight of a channel to the next.
        outputs: Output channels.
        at_once: Pixels of a block.
        pairs: Each word with the indices of its two pixels.
        state: Words of scratch before the packed inputs.
    """

    condition: str
    scaling: ScalingSteps
    fields: int
    words: int
    weight_stride: int
    outputs: int
    at_once: int
    pairs: tuple[tuple[int, int, int], ...]
    state: int


@dataclass(frozen=True, kw_only=True)
class HalfwordParameters(Parameters):
    """Variables of `lower/halfword_convolution.j2`.

    Attributes:
        title: The operator, types and window, for the comment.
        images: The loop over images.
        common: What the functions have in common.
        depth: Channels of an input pixel.
        pixels: Number of output pixels.
        lanes: The indices of the pixels of a block.
        ordered: Whether inputs are packed in their original order.
        slices: The slices of the window.
        last: The first pixel of the last block, if pixels need no gathering.
        gathering: How inputs are gathered, or None.
    """

    title: str
    images: ImageLoop
    common: BlockText
    depth: int
    pixels: int
    lanes: tuple[int, ...]
    ordered: bool
    slices: tuple[PackedSlice, ...]
    last: int
    gathering: Gathering | None

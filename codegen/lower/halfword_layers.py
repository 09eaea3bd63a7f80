"""The body that convolutions of all sizes share with `--optimize size` (`halfword_convolution`).

Layers whose windows are packed in the same way share the C code around the assembly. The assembly
sums a block of pixels. A window that is cut into slices needs two such functions: one for the last
slice, which also requantizes, and one for the slices before it. Many layers share these functions
too, because the functions read the sizes from the layer's struct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from smelt.codegen.lower.function_table import (
    ROW,
    ROW_MEANING,
    FunctionTableParameters,
    TableBody,
)
from smelt.codegen.lower.halfword_group import sum_group
from smelt.codegen.lower.halfword_parameters import (
    BlockFunction,
    BlockText,
    Gathering,
    GroupLoopText,
    HalfwordParameters,
)
from smelt.codegen.lower.image_product import ImageProduct
from smelt.codegen.lower.kernel import InnerFunction, KernelCall, LayerStruct, Parameters
from smelt.codegen.lower.stored_output import stored_output
from smelt.codegen.lower.tap_groups import LAYER_NUMBERS, BlockSums
from smelt.codegen.text.layer_number import LayerNumber

_KIND = "halfwords"
"""The kind of the layers' structs."""

_MEANINGS = {
    **dict(
        zip(
            LAYER_NUMBERS,
            (
                "channels of the output",
                "2^15 times the number of groups of taps",
                "bytes of a block's inputs, and of eight channels' weights",
                "number that is added to scaled sums",
            ),
            strict=True,
        )
    ),
    "height": "of the input",
    "width": "of the input",
    "depth": "channels of the input",
    "columns": "of the output",
    "pixels": "of the output",
    "rows": "of the window in a slice",
    "slice": "bytes of weights of a slice, 0 if there is only one",
    ROW: ROW_MEANING,
}
"""Fields of the struct and their meanings, first those that the assembly reads."""

_SLIDING, _RUNS, _WHOLE = (580, 514), (490, 450), (250, 218)
"""Measured bytes of a shared body and of a layer's own, by how windows are packed."""

_ROW_BYTES = 8


@dataclass(frozen=True)
class SlidingPixel:
    """A pixel of an image row that is under the windows of four neighboring outputs.

    Attributes:
        number: Its index.
        pairs: The two pixels of each word that can be stored once this pixel is loaded.
    """

    number: int
    pairs: tuple[tuple[int, int], ...]

    @staticmethod
    def of(i: int) -> SlidingPixel:
        """Return pixel `i`: one column of the four windows is in pixels `i - 3` to `i`."""
        return SlidingPixel(i, ((i - 3, i - 2), (i - 1, i)) if i > 2 else ())


@dataclass(frozen=True, kw_only=True)
class HalfwordLayersParameters(FunctionTableParameters):
    """Variables of `lower/halfword_layers.j2`.

    Attributes:
        kernel: Rows and columns of the window.
        padded: Whether the window can be partly outside of the image.
        top, side: C of the first row and column under a window.
        whole: Whether each row of a window is always contiguous.
        checks_inside: Whether the code checks for each block whether rows are contiguous.
        slide: The pixels of a row that are packed together; empty if each window is packed
            separately.
        rewind: Columns of the window after the first one.
    """

    kernel: tuple[int, int]
    padded: bool
    top: str
    side: str
    whole: bool
    checks_inside: bool
    slide: tuple[SlidingPixel, ...]
    rewind: int


@dataclass(frozen=True)
class HalfwordPixelParameters(Parameters):
    """Variables of `lower/halfword_pixel.j2`.

    Attributes:
        padded: Whether pixels can be outside of the image.
    """

    padded: bool


@dataclass(frozen=True, kw_only=True)
class HalfwordBlockParameters(Parameters):
    """Variables of `lower/halfword_block.j2`; see `HalfwordParameters`."""

    block: BlockFunction
    common: BlockText


def shared_windows(
    own: KernelCall,
    product: ImageProduct,
    slices: tuple[int, int],
    functions: Sequence[tuple[BlockSums, BlockFunction]],
) -> TableBody | None:
    """Return the body that a layer can share, or None if no such body can compute it.

    Args:
        own: The call of its own body.
        product: The layer.
        slices: Rows of a slice, and bytes of its weights.
        functions: The functions that sum slices of the window, the last one last.
    """
    window, frame, parameters = product.window, product.frame, own.parameters
    if not isinstance(parameters, HalfwordParameters) or parameters.gathering is None:
        return None
    if not (parameters.ordered and parameters.common.words == 2 and frame.batch == 1):
        return None
    if window.dilation != (1, 1) or not product.contiguous:
        return None
    (last, _), sliced = functions[-1], len(functions) > 1
    numbers = {
        **last.numbers,
        "height": window.size[0],
        "width": window.size[1],
        "depth": window.depth,
        "columns": frame.width,
        "pixels": frame.pixels,
        "rows": slices[0],
        "slice": slices[1] if sliced else 0,
        ROW: 0,
    }
    gathering = parameters.gathering
    call = replace(
        own,
        template="lower/halfword_layers.j2",
        parameters=_parameters(product, gathering),
        operands=(
            *own.operands[:-2],
            LayerStruct("layer", _KIND, numbers, _MEANINGS),
            *own.operands[-2:],
        ),
        uses={"SMELT_ARRAY"},
        inner=(_pixel(padded=window.padded),),
    )
    blocks = [_block(parameters.common, *item) for item in functions]
    row = (blocks[-1], blocks[0] if sliced else None)
    shared, alone = _SLIDING if gathering.slide else _WHOLE if gathering.whole else _RUNS
    return TableBody.of(call, (), row, (shared, _ROW_BYTES, alone))


def _parameters(product: ImageProduct, gathering: Gathering) -> HalfwordLayersParameters:
    slide = gathering.slide
    return HalfwordLayersParameters(
        table=(),
        kernel=product.window.kernel,
        padded=product.window.padded,
        top=gathering.under.top,
        side=gathering.under.side,
        whole=gathering.whole,
        checks_inside=gathering.checks_inside,
        slide=() if slide is None else tuple(map(SlidingPixel.of, range(len(slide.inputs)))),
        rewind=product.window.kernel[1] - 1,
    )


def _pixel(*, padded: bool) -> InnerFunction:
    """Return the function that finds an input pixel."""
    return InnerFunction(
        template="lower/halfword_pixel.j2",
        stem="padded_pixel" if padded else "pixel",
        parameters=HalfwordPixelParameters(padded),
        layer=_KIND,
    )


def _block(own: BlockText, sums: BlockSums, function: BlockFunction) -> InnerFunction:
    """Return the function of a slice, which layers with other numbers may share."""
    common, lifted = own, sums.layered and own.scaling.nudge is not None
    if sums.layered:
        length = LayerNumber(sums.numbers["length"], "layer->length")
        function = replace(
            function,
            group_loops=tuple(_looped(group_loop, length) for group_loop in function.group_loops),
            length=0,
            together=length,
        )
        common = replace(
            own,
            outputs=LayerNumber(own.outputs, "layer->outputs"),
            scaling=replace(own.scaling, lift=" + layer->lift" if lifted else ""),
        )
    return InnerFunction(
        template="lower/halfword_block.j2",
        stem=f"halfwords_{function.name}",
        details={"bias": "" if sums.scaling.biases is None else "biased", **sums.scaling.details},
        parameters=HalfwordBlockParameters(block=function, common=common),
        uses={"SMELT_ARRAY", "SMELT_NAKED"},
        inner=block_helpers(common, _KIND if lifted else "", ends=function.ends),
        layer=_KIND,
    )


def block_helpers(
    common: BlockText, layer: str = "", *, ends: bool = True
) -> tuple[InnerFunction, ...]:
    """Return the functions that the plain C of a function that sums blocks of pixels calls.

    Args:
        common: What all functions of the layer have in common.
        layer: The kind of the `LayerStruct` that the requantization reads; empty if it reads none.
        ends: Whether the function requantizes the sums.
    """
    group = sum_group(common.condition, common.words, common.weight_stride)
    output = stored_output(common.scaling, common.condition, layer)
    return (group, output) if ends else (group,)


def _looped(group_loop: GroupLoopText, length: LayerNumber) -> GroupLoopText:
    """Return the only loop of a window, with its number of iterations computed from `length`."""
    iterations = length // (group_loop.groups * group_loop.step)
    return replace(group_loop, iterations=iterations)

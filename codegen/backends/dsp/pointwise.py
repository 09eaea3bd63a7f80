"""Shared bodies for 1x1 convolutions of all sizes, on cores with the DSP extension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from smelt.codegen.backends.dsp.groups import PixelGroups, specialized_cost
from smelt.codegen.backends.dsp.plain_pairs import PLAIN_OUTPUTS, PLAIN_PAIRS
from smelt.codegen.backends.dsp.pointwise_assembly import FIELDS, PointwiseBody, PointwiseParts
from smelt.codegen.backends.dsp.scaling import ScalingStruct
from smelt.codegen.backends.dsp.tile import DspTile
from smelt.codegen.lower.kernel import (
    Input,
    KernelCall,
    LayerStruct,
    Output,
    Packed,
    Parameters,
    Scratch,
    SharedBody,
)
from smelt.ir import Array, DType


@dataclass(frozen=True)
class DspPointwiseParameters(Parameters):
    """Variables of `backends/dsp/pointwise.j2`.

    Attributes:
        note: text of the function's comment.
        parts: the instructions.
        looped: whether a loop adds the products of further words.
        pixels: pixels that are computed together.
        scaling: the requantization in plain C.
    """

    note: str
    parts: PointwiseParts
    looped: bool
    pixels: int
    scaling: ScalingStruct


def shared_pointwise(
    tile: DspTile, stem: str, groups: Sequence[PixelGroups], weights: Array
) -> SharedBody:
    """Return the body that a layer can share with layers of equal shifts and limits.

    Args:
        tile: the sizes of the groups of the shared body, which all have equally many pixels.
        stem: stem of the function's name.
        groups: the pixels of all images, in the groups of the layer's own body.
        weights: int8 `[o, 1, depth]`.
    """
    body, signed, pixels = PointwiseBody(tile), tile.scaling.signed, groups[-1].end
    numbers = {"pixels": pixels, "depth": tile.run, "outputs": tile.outputs}
    scaling = tile.scaling.struct
    if signed:
        numbers["addend"] = tile.scaling.addend
        scaling = replace(scaling, addend="layer->addend")
    kind = f"{stem}_signed" if signed else stem
    call = KernelCall(
        template="backends/dsp/pointwise.j2",
        stem=kind,
        details=tile.scaling.details,
        parameters=DspPointwiseParameters(
            note=tile.scaling.note,
            parts=body.parts,
            looped=body.looped,
            pixels=tile.pixels,
            scaling=scaling,
        ),
        operands=(
            Input(0, "input"),
            Packed("weights", tile.packed(weights)),
            Scratch("patch", DType.INT32, tile.words * tile.pixels),
            LayerStruct("layer", kind, numbers, FIELDS),
            Output(0, "output"),
        ),
        uses={"SMELT_DSP"},
        inner=(PLAIN_PAIRS, PLAIN_OUTPUTS),
        summary=f"{tile.pixels} pixels x 2 channels",
    )
    return SharedBody(call, body.cost(pixels), specialized_cost(groups), (kind, body.family))

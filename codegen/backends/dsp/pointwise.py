"""1x1 convolutions by a body that layers of all sizes share, on cores with the DSP extension."""

from __future__ import annotations

from dataclasses import dataclass, replace

from smelt.codegen.backends.dsp.pointwise_assembly import FIELDS, PointwiseBody, specialized_cost
from smelt.codegen.backends.dsp.scaling import OutputDefinition
from smelt.codegen.backends.dsp.tile import DspTile
from smelt.codegen.backends.dsp.tile_assembly import PairDefinition
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
    """Of `backends/dsp/pointwise.j2`.

    Attributes:
        note: of the comment.
        pieces: all instructions.
        pixels: that are computed at a time.
        step: words of four inputs of all of them.
        constants: words that requantize two channels.
        pair: what plain C has of two channels.
        output: what makes outputs of sums.
    """

    note: str
    pieces: tuple[tuple[str, ...], ...]
    pixels: int
    step: int
    constants: int
    pair: PairDefinition
    output: OutputDefinition


def shared_pointwise(tile: DspTile, stem: str, pixels: int, weights: Array) -> SharedBody:
    """The body that computes a layer as others of its requantization.

    Args:
        tile: how the layer is computed.
        stem: of the function's name.
        pixels: of all its images.
        weights: int8 `[o, 1, depth]`.
    """
    body, signed = PointwiseBody(tile), tile.scaling.signed
    numbers: dict[str, int] = dict(zip(FIELDS, (pixels, tile.run, tile.outputs), strict=True))
    pair = PairDefinition.of(tile, "words")
    if signed:
        numbers["addend"] = tile.scaling.addend
        lower, upper = pair.rest
        pair = replace(pair, rest=(f"{lower}, layer->addend", f"{upper}, layer->addend"))
    kind = f"{stem}_signed" if signed else stem
    call = KernelCall(
        template="backends/dsp/pointwise.j2",
        stem=kind,
        parameters=DspPointwiseParameters(
            note=tile.scaling.note,
            pieces=body.pieces,
            pixels=tile.pixels,
            step=2 * tile.pixels,
            constants=2 * tile.row,
            pair=pair,
            output=replace(tile.scaling.definition, addend=0 if signed else None, passed=signed),
        ),
        operands=(
            Input(0, "input"),
            Packed("weights", tile.packed(weights)),
            Scratch("patch", DType.INT32, tile.words * tile.pixels),
            LayerStruct("layer", kind, numbers),
            Output(0, "output"),
        ),
        uses={"SMELT_NAKED"},
        summary=f"{tile.pixels} pixels x 2 channels",
    )
    return SharedBody(call, body.cost(pixels), specialized_cost(tile, pixels), (kind, body.family))

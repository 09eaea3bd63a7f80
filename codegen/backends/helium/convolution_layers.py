"""A body for 1x1 convolutions and dense layers of any sizes on Helium (see `function_table`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from smelt.codegen.backends.helium.convolution_plan import TilePlan
from smelt.codegen.backends.helium.scaling import HeliumScaling
from smelt.codegen.backends.helium.tile_functions import tile_functions
from smelt.codegen.lower.function_table import (
    ROW,
    ROW_MEANING,
    FunctionTableParameters,
    TableBody,
)
from smelt.codegen.lower.kernel import KernelCall, LayerStruct

_MEANINGS = {
    "pixels": "of all images",
    "depth": "elements of the inputs of a pixel",
    "channels": "of the output",
    ROW: ROW_MEANING,
}
_BYTES = (260, 8, 100)
"""Bytes of the body, of a row of its table, and of a layer's own function and struct."""


@dataclass(frozen=True)
class TileLayersParameters(FunctionTableParameters):
    """Variables of `backends/helium/tile_layers.j2`.

    Attributes:
        pixels: pixels of a group.
        outputs: output channels of a tile.
        copies: whether the last inputs of the tensor are copied.
        zero: zero point of the outputs.
        limits: smallest and largest output.
    """

    pixels: int
    outputs: int
    copies: bool
    zero: int
    limits: tuple[int, int]


def shared_body(own: KernelCall, plan: TilePlan, scaling: HeliumScaling) -> TableBody | None:
    """Return the body that layers with the same zero point and limits can share.

    It is None if channels are in blocks, or inputs are not one row of windows side by side.

    Args:
        own: the call of the layer's own function.
        plan: the split of the layer.
        scaling: the scaling of the sums.
    """
    g, t = plan.geometry, plan.tiles
    if plan.padded or g.images * g.output[0] > 1 or len(plan.blocks) > 1 or t.pitch != t.length:
        return None
    numbers = dict(zip(_MEANINGS, (g.output[1], t.length, t.channels, 0), strict=True))
    tile, dots, *rest = tile_functions(t, scaling)
    call = replace(
        own,
        template="backends/helium/tile_layers.j2",
        details={"inputs": "copying" if t.copies else "direct", **own.details},
        parameters=TileLayersParameters(
            table=(),
            pixels=t.pixels,
            outputs=t.outputs,
            copies=t.copies > 0,
            zero=scaling.zero_point,
            limits=(scaling.low, scaling.high),
        ),
        operands=(
            *own.operands[:-1],
            LayerStruct("layer", "tiles", numbers, _MEANINGS),
            own.operands[-1],
        ),
        inner=own.inner[: own.inner.index(tile) + 1],
    )
    return TableBody.of(call, (), (dots, rest[0] if rest else None), _BYTES)

"""A body for depthwise convolutions of any sizes on Helium, which it reads from a struct.

It calls fewer functions than the layers' own: one of them stores up to 16 channels of a strip. The
constants of missing channels are zero, and their outputs are not stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from smelt.codegen.backends.helium.convolution_plan import Geometry
from smelt.codegen.backends.helium.depthwise_functions import (
    STRIP,
    StripLanes,
    driver_function,
    interleave_function,
    outputs_function,
    sums_function,
)
from smelt.codegen.backends.helium.depthwise_plan import LANES, Patches
from smelt.codegen.backends.helium.scaling import HeliumScaling, LaneGroup
from smelt.codegen.lower.function_table import (
    ROW,
    ROW_MEANING,
    FunctionTableParameters,
    TableBody,
)
from smelt.codegen.lower.kernel import KernelCall, LayerStruct, Operand, Packed

_MEANINGS = {
    "channels": "of a pixel",
    "height": "of an input image",
    "width": "of an input image",
    "output_rows": "of an image",
    "output_columns": "of an image",
    "stride_y": "between rows",
    "stride_x": "between columns",
    "above": "rows of padding",
    "before": "columns of padding",
    "rows": "of outputs in a strip; outputs, if the image is one row",
    "patches": "of a channel in a strip",
    ROW: ROW_MEANING,
}
_BYTES = (250, 48, 172)
"""Bytes of the body, of a row of its table, and of a layer's own function and struct."""


@dataclass(frozen=True)
class DepthwiseLayersParameters(FunctionTableParameters):
    """Variables of `backends/helium/depthwise_layers.j2`.

    Attributes:
        line: whether images are one row.
        images: number of images.
        fields: words of a channel's constants.
        padding: zero point of the inputs.
        zero: zero point of the outputs.
        limits: smallest and largest output.
    """

    line: bool
    images: int
    fields: int
    padding: int
    zero: int
    limits: tuple[int, int]


def shared_body(
    own: KernelCall, g: Geometry, p: Patches, scaling: HeliumScaling, padding: int
) -> TableBody:
    """Return the body that layers with the same zero points and limits can share.

    Args:
        own: the call of the layer's own function.
        g: the layer's sizes.
        p: the patches of that function.
        scaling: the scaling of the sums.
        padding: the zero point of the inputs.
    """
    p = p.shared
    last = p.last if g.output[1] % p.across else None
    lanes = StripLanes.up_to(min(g.channels, LANES))
    call = replace(
        own,
        template="backends/helium/depthwise_layers.j2",
        parameters=DepthwiseLayersParameters(
            table=(),
            line=p.line,
            images=g.images,
            fields=scaling.fields,
            padding=padding,
            zero=scaling.zero_point,
            limits=(scaling.low, scaling.high),
        ),
        operands=(
            *(_padded(o, g.channels, lanes, scaling) for o in own.operands[:-1]),
            LayerStruct("layer", "strips", _numbers(g, p), _MEANINGS),
            own.operands[-1],
        ),
        inner=(STRIP, driver_function(p), *map(interleave_function, (LANES, 1))),
    )
    row = (p.across, p.advance, p.record, p.outputs, p.unrolled)
    row += (last.outputs, last.unrolled) if last else (1, 1)
    functions = [q and sums_function(q) for q in (p, last)]
    functions += [q and outputs_function(q, scaling, lanes) for q in (p, last)]
    return TableBody.of(call, row, tuple(functions), _BYTES)


def _numbers(g: Geometry, p: Patches) -> dict[str, int]:
    """Return the fields of a layer's struct; the index of its row is added later."""
    numbers = (
        *(g.channels, *g.size, *g.output, *g.stride),
        *(g.padding[0][0], g.padding[1][0], p.strip_outputs, p.patches, 0),
    )
    return dict(zip(_MEANINGS, numbers, strict=True))


def _padded(operand: Operand, channels: int, lanes: StripLanes, scaling: HeliumScaling) -> Operand:
    """Return the operand; the constants of channels are padded to whole groups."""
    if not isinstance(operand, Packed) or operand.name != "channels":
        return operand
    vectors = lanes.parts[0].vectors
    starts = range(0, channels, LANES)
    parts = tuple(LaneGroup(o, vectors, min(channels - o, LANES)) for o in starts)
    return replace(operand, array=scaling.constants(parts))
